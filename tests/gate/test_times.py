"""When an answer leaves: at a public instant, whatever the app takes, and once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from gated_site import Server, adding, bundle
from opposite_apps import misbehaving
from owned_clock import OwnedClock

from fl_dp import clock
from fl_dp.gate.flower_wire import Parts
from fl_dp.gate.gate import PULLS

MODEL = {"w": np.zeros(3, np.float32)}


@pytest.fixture
def leaves(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the times at which answers leave."""
    times: list[float] = []
    server = Server.__init__

    def timed(here: Server, *told: Any, **options: Any) -> None:
        server(here, *told, **options)
        here.before_taking = lambda shell: times.append(clock.now())

    monkeypatch.setattr(Server, "__init__", timed)
    return times


DUE = PULLS + 60.0
"""When the answer to a message leaves that came with the first pull."""


@pytest.mark.parametrize("seconds", [0.0, 1.0, 47.0])
def test_it_leaves_at_one_time_whatever_the_app_takes(
    site: Any, owned: OwnedClock, leaves: list[float], seconds: float
) -> None:
    def app(message: Message) -> Iterator[Message | Parts]:
        owned.sleep(seconds)
        yield from adding(1.0)(message)

    here = site(app)
    here.answers(MODEL)
    assert leaves == [DUE]


def test_it_leaves_then_where_no_app_starts(
    site: Any, owned: OwnedClock, leaves: list[float]
) -> None:
    here = site(adding(1.0), **{"dp-max-epsilon": 1e-3})
    here.answers(MODEL)
    assert not here.seen
    assert leaves == [DUE]


def test_it_leaves_then_where_the_app_never_answers_and_what_comes_later_is_dropped(
    site: Any, owned: OwnedClock, leaves: list[float]
) -> None:
    here = site(lambda message: [])
    [arrived] = here.answers(MODEL)
    assert leaves == [DUE]
    assert np.abs(arrived.arrays["w"]).max() < 20
    [asked] = here.seen
    [late] = adding(1e3)(asked)
    here.node.send(late)
    assert here.node.refused == ["push-messages"]
    here.answers(MODEL)
    assert len(here.server.arrived) == 2


def test_a_supernode_whose_app_never_comes_back_is_told_to_end(site: Any) -> None:
    """Flower's SuperNode waits for that app for good, and ends itself where it is not known."""
    here = site(lambda message: [])
    assert here.node.call("send-node-heartbeat").success
    here.answers(MODEL)
    assert here.node.desk.answer("send-node-heartbeat", b"").status == 401
    here.node.call("activate-node")  # the next one
    assert here.node.call("send-node-heartbeat").success


@pytest.mark.parametrize(("timeout", "passed"), [(45.0, 0.0), (60.0, 0.0), (90.0, 30.0)])
def test_an_answer_that_would_come_too_late_is_refused_and_costs_nothing(
    site: Any, leaves: list[float], timeout: float, passed: float
) -> None:
    here = site(adding(1.0))
    here.server.train(MODEL, timeout=timeout, passed=passed)
    here.step()
    [arrived] = here.server.arrived
    assert arrived.message.has_error()
    assert here.charges() == len(here.seen) == 0
    assert leaves == [PULLS + 2.0]


def test_an_answer_for_which_there_is_time_left_at_the_pull_is_given(
    site: Any, leaves: list[float]
) -> None:
    here = site(adding(1.0))
    here.server.train(MODEL, timeout=600.0, passed=30.0)
    here.step()
    assert not here.server.arrived[0].message.has_error()
    assert here.charges() == 1
    assert leaves == [DUE]


def test_a_message_whose_rest_comes_late_is_due_by_its_end(
    site: Any, owned: OwnedClock, leaves: list[float]
) -> None:
    here = site(adding(1.0))
    pull = here.server._pull_object

    def slow(asked: Any) -> Any:
        if here.server.calls[-2][0] == "pull-messages":
            owned.sleep(10.5)
        return pull(asked)

    here.server._pull_object = slow
    here.answers(MODEL)
    assert leaves == [DUE + 10.0]


def test_a_refusal_leaves_soon(site: Any, leaves: list[float]) -> None:
    here = site(adding(1.0))
    here.server.ask("evaluate", {})
    here.step()
    assert leaves == [PULLS + 2.0]


POLICIES: dict[str, dict[str, Any]] = {
    "local": {},
    "clip": {"dp-gate-noise-multiplier": None, "dp-max-epsilon": None},
    "record": {
        "dp-gate-noise-multiplier": None,
        "dp-gate-clipping-norm": None,
        "dp-allowed-apps": f"hospital/heart@{sha256(bundle()).hexdigest()}",
        "dp-gate-dp-sgd": {
            "noise-multiplier": 1.1,
            "sampling-rate": 0.05,
            "steps": 20,
            "clipping-norm": 1.0,
        },
        "dp-gate-environment": "/srv/app/venv",
        "dp-shared-parameters": "w",
    },
}


@pytest.mark.parametrize("promise", POLICIES)
def test_all_instants_that_the_server_sees_are_those_of_an_app_that_behaves(
    site: Any, owned: OwnedClock, promise: str
) -> None:
    """Pulls, receipts and answers of 20 rounds, with their sizes, after two opposite apps."""
    told = []
    for name in ("behaves", "misbehaves"):
        here = site(adding(1.0), name, **{"dp-gate-promise": promise} | POLICIES[promise])
        if name == "misbehaves":
            here.app = misbehaving(here, owned)
        start = clock.now()
        for _ in range(20):
            here.server.train(MODEL, {"server-round": 1})
            here.step()
        # Objects of one answer are pushed by several threads at once.
        told.append(
            sorted((round(time - start, 6), call, size) for call, time, size in here.server.calls)
        )
        assert len(here.server.arrived) == 20
        assert not any(arrived.message.has_error() for arrived in here.server.arrived)
    assert told[0] == told[1]


def test_receipt_is_confirmed_before_anything_is_judged_and_after_the_message_is_on_disk(
    site: Any, owned: OwnedClock
) -> None:
    here = site(adding(1.0))
    seen: list[tuple[int, bool]] = []
    confirm = here.server._confirm_message_received

    def confirmed(asked: Any) -> None:
        seen.append((here.charges(), here.kept.exists()))
        confirm(asked)

    here.server._confirm_message_received = confirmed
    here.answers(MODEL)
    assert seen == [(0, True)]
    assert not here.kept.exists()
    times = [time for call, time, _ in here.server.calls if call == "confirm-message-received"]
    assert times == [PULLS + 1.0]


def test_the_next_pull_depends_on_the_due_time_alone(site: Any, owned: OwnedClock) -> None:
    for seconds in (0.0, 0.9, 1.9):  # that an answer takes on its way
        # Due one second before an instant of the grid, which comes too soon for some of them.
        here = site(adding(1.0), f"{seconds} s", **{"dp-gate-answer-after": 59.0})
        start = clock.now()
        here.server.after_taking = partial(owned.sleep, seconds)
        here.answers(MODEL, rounds=2)
        pulls = [time - start for call, time, _ in here.server.calls if call == "pull-messages"]
        # The first instant of the grid that is two seconds or more after the answer was due.
        assert pulls == pytest.approx([PULLS, DUE + PULLS])
