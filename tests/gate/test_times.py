"""When an answer leaves: at a public instant, whatever the app takes, and once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from gated_site import Site, adding
from owned_clock import OwnedClock

from fl_dp import clock
from fl_dp.gate.flower_hook import Parts

MODEL = {"w": np.zeros(3, np.float32)}


@pytest.fixture
def leaves(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the times at which answers leave."""
    times: list[float] = []
    send = Site.__init__

    def timed(here: Site, *told: Any, **policy: Any) -> None:
        send(here, *told, **policy)
        real = here.gated._real

        def sent(*parts: Any) -> Any:
            times.append(clock.now())
            return real.send(*parts)

        here.gated._real = real._replace(send=sent)

    monkeypatch.setattr(Site, "__init__", timed)
    return times


@pytest.mark.parametrize("seconds", [0.0, 1.0, 47.0])
def test_it_leaves_at_one_time_whatever_the_app_takes(
    site: Any, owned: OwnedClock, leaves: list[float], seconds: float
) -> None:
    def app(message: Message) -> Iterator[Message | Parts]:
        owned.sleep(seconds)
        yield from adding(1.0)(message)

    here = site(app)
    here.answers(MODEL)
    assert leaves == [60.0]


def test_it_leaves_then_where_no_app_starts(
    site: Any, owned: OwnedClock, leaves: list[float]
) -> None:
    here = site(adding(1.0), **{"dp-max-epsilon": 1e-3})
    here.answers(MODEL)
    assert not here.seen
    assert leaves == [60.0]


def test_it_leaves_then_where_the_app_never_answers_and_what_comes_later_is_dropped(
    site: Any, owned: OwnedClock, leaves: list[float]
) -> None:
    here = site(adding(1e3))
    left = threading.Event()
    push = here.server._push

    def pushed(*told: Any) -> None:
        push(*told)
        if here.server.arrived:
            left.set()

    here.gated._real = here.gated._real._replace(push_object=pushed)
    here.server.train(MODEL)
    got = here.connection.receive()
    owned.let_this_process_hang()
    assert left.wait(60)
    assert leaves == [60.0]
    [arrived] = here.server.arrived
    assert np.abs(arrived.arrays["w"]).max() < 20

    assert got is not None
    shell, tree = got
    late = Message(arrived.message.content, reply_to=shell)
    late.metadata.__dict__["_reply_to_message_id"] = tree.object_id
    here.send(late)
    assert len(here.server.pushed) == 1
    assert here.abandoned == 0
    here.answers(MODEL)
    assert len(here.server.arrived) == 2


def test_a_supernode_whose_app_never_comes_back_is_ended_after_the_answer(
    site: Any, owned: OwnedClock
) -> None:
    here = site(adding(1.0))
    ended = threading.Event()
    order: list[int] = []

    def abandon() -> None:
        order.append(len(here.server.arrived))
        ended.set()

    here.gated._abandon = abandon
    here.server.train(MODEL)
    assert here.connection.receive() is not None
    owned.let_this_process_hang(times=2)
    assert ended.wait(60)
    assert order == [1]
    here.gated.receive()


@pytest.mark.parametrize(("timeout", "in_time"), [(45.0, False), (60.0, False), (61.0, True)])
def test_an_answer_that_would_come_too_late_is_refused_and_costs_nothing(
    site: Any, leaves: list[float], timeout: float, in_time: bool
) -> None:
    here = site(adding(1.0))
    here.server.train(MODEL, timeout=timeout)
    here.step()
    here.step()  # which ends what the app has left open
    [arrived] = here.server.arrived
    assert arrived.message.has_error() is not in_time
    assert here.charges() == len(here.seen) == in_time
    assert leaves == [60.0 if in_time else 0.0]


def test_a_refusal_leaves_at_once(site: Any, leaves: list[float]) -> None:
    here = site(adding(1.0))
    here.server.ask("evaluate", {})
    here.step()
    assert leaves == [0.0]
