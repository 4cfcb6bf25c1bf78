"""Starts of apps before their runs, of which the owner's log tells, and nothing else does."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from gated_site import App, Site, adding, knows_no_query, replying
from owned_clock import OwnedClock

from fl_dp.codec import encode_text
from fl_dp.gate.flower_wire import Parts
from fl_dp.gate.gate import PULLS
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction
from fl_dp.protocol.message_keys import IDENTITY_ACTION, INSTRUCTION_KEY, WIRE, WIRE_KEY

MODEL = {"w": np.zeros(3, np.float32)}
NOISE = NoiseInstruction(scheme="gaussian", noise_multiplier=9.0, clipping_norm=0.1)
ASKED: dict[str, Any] = {
    WIRE_KEY: WIRE,
    INSTRUCTION_KEY: encode_text(RoundInstruction(server_round=0, client_noise=NOISE)),
}


def silent(message: Message) -> Iterator[Message | Parts]:
    yield from ()


def failing(message: Message) -> Iterator[Message | Parts]:
    yield Message(Error(1, "no module\nnamed torch"), reply_to=message)


def large(message: Message) -> Iterator[Message | Parts]:
    yield Message(RecordDict({"a": ConfigRecord({"b": "x" * (4 << 20)})}), reply_to=message)


STARTS: list[tuple[App, str]] = [
    (knows_no_query, "starts here"),
    (replying(lambda message: {"identity": ConfigRecord({})}), "starts here"),  # one of fl-dp
    (failing, r"does not start here, .*no module\\nnamed torch"),
    (silent, "does not start here, .*it has not come back in time"),
    (large, "does not start here, .*can't be read"),
]


def rehearse(here: Site, steps: int = 1) -> None:
    """Have the server ask who the node is, and the gate pull so often."""
    here.server.ask(f"query.{IDENTITY_ACTION}", {"config": ConfigRecord(ASKED)})
    for _ in range(steps):
        here.step()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the owner was told of the start of an app."""
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if re.match("hospital/heart==1.4.0@[0-9a-f]{64} .*here", line)]


@pytest.mark.parametrize(("starts", "line"), STARTS)
def test_the_owner_alone_is_told_how_an_app_starts(
    site: Callable[..., Site],
    owned: OwnedClock,
    caplog: pytest.LogCaptureFixture,
    starts: App,
    line: str,
) -> None:
    caplog.set_level(logging.INFO)
    seen = []
    for name, app in (("starts", knows_no_query), ("other", starts)):
        caplog.clear()
        began = owned.now()
        here = site(adding(1.0), name)
        here.node.starts = app
        rehearse(here, steps=20)
        [only] = told(caplog)
        assert here.charges() == 0
        here.answers(MODEL)
        [query] = here.node.started
        assert not query.content  # nothing of the server's
        seen.append(
            sorted((round(time - began, 6), call, size) for call, time, size in here.server.calls)
        )
    assert re.search(line, only)
    assert seen[0] == seen[1]


def test_it_is_started_once_a_run_and_never_where_the_run_would_be_refused(
    site: Callable[..., Site], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    here = site(adding(1.0), "other", **{"dp-allowed-apps": "hospital/lung"})
    rehearse(here, steps=2)
    assert not here.node.started
    here = site(adding(1.0))
    for _ in range(3):
        rehearse(here, steps=2)
    assert len(here.node.started) == len(told(caplog)) == 1


def test_a_training_ends_a_start_that_hangs_and_has_half_of_its_time_left(
    site: Callable[..., Site], owned: OwnedClock, caplog: pytest.LogCaptureFixture
) -> None:
    began: list[float] = []

    def app(message: Message) -> Iterator[Message | Parts]:
        began.append(owned.now())
        yield from adding(np.array([1.0, 0.0, 0.0]))(message)

    here = site(app, **{"dp-gate-noise-multiplier": 1e-4, "dp-max-epsilon": 1e12})
    here.node.starts = silent
    rehearse(here)
    arrived = here.answers(MODEL)[-1]
    assert arrived.arrays["w"][0] == pytest.approx(1.0, abs=8e-4)
    # Of 60 s the app has 48 s.
    assert began == [2 * PULLS + 24.0]
    assert "it has not come back in time" in told(caplog)[0]
