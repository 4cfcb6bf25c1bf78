"""A gate's figures: they count messages and the budget, whatever an app does and holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message
from gated_site import App, Site, adding, replying
from owned_clock import OwnedClock

from fl_dp.gate.figures import FiguresOfNode
from fl_dp.gate.superlink_signs import Signs

MODEL = {"w": np.zeros(3, np.float32)}


def fails(message: Message) -> Iterable[Message]:
    raise ValueError("record 4711")


def shown(here: Site) -> dict[str, float]:
    figures = FiguresOfNode(here.figures, here.file)()
    return {name.removeprefix("fl_dp_node_"): value for name, _, value in figures}


def after_two_answers_and_a_refusal(here: Site) -> dict[str, float]:
    here.answers(MODEL, rounds=2)
    here.server.ask("query", {"config": ConfigRecord({})})
    here.step()
    return shown(here)


@pytest.mark.parametrize("app", [adding(9.0), fails, replying(lambda message: {})])
def test_answers_refusals_and_the_budget_s_rest_are_those_of_an_app_that_does_nothing(
    app: App, site: Callable[..., Site]
) -> None:
    policy = {"dp-max-epsilon": 10.0, "dp-gate-noise-multiplier": 2.0}
    before, here = site(adding(0.0), "before", **policy), site(app, **policy)
    figures = after_two_answers_and_a_refusal(here)
    assert (figures["answers"], figures["refusals"]) == (2, 1)
    assert shown(before)["epsilon_left"] == 10.0
    assert 0.0 < figures["epsilon_left"] < 9.5
    assert figures == after_two_answers_and_a_refusal(before)


def test_a_budget_is_read_once_a_minute_and_what_is_not_known_is_left_out(
    site: Callable[..., Site], owned: OwnedClock
) -> None:
    here = site(adding(1.0), **{"dp-max-epsilon": 10.0})
    figures = FiguresOfNode(here.figures, here.file)
    assert figures.left() == 10.0
    here.figures.signs = Signs(1.9e9, -3.0)
    assert shown(here)["certificate_ends"] == 1.9e9
    here.answers(MODEL)  # which takes more than a minute
    left = figures.left()
    assert left is not None and left < 10.0
    here.ledger.unlink()
    assert figures.left() == left
    owned.sleep(60.0)
    here.rewrite(**{"dp-max-epsilon": None, "dp-gate-promise": "nothing"})
    assert figures.left() is None
