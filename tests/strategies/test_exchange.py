"""Messages out, replies in: on a grid that answers by a script, at times of its own clock."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from fl_dp.strategies.message_exchange import default_window, exchange, patience
from fl_dp.strategies.unit_roster import RosterIncomplete, wait_for_roster
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from local_grid import EitherName
from own_grids import LateAnswers, OneByOne
from owned_clock import OwnedClock

from fl_dp.protocol.own_grid import OwnGrid

Answer = Callable[[Message], Iterable[Message]]


@dataclass
class Due:
    at: float
    reply: Message


class ScriptedGrid(EitherName):
    """Stores what is pushed, and hands out the replies of `answer` when their time has come."""

    def __init__(
        self, clock: OwnedClock, answer: Answer | None = None, *, delay: float = 0.0
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.clock = clock
        self.answer = answer or (lambda message: [ok(message)])
        self.delay = delay
        self.refused: Callable[[Message], bool] = lambda message: False
        self.leaves_out_refused = False
        self.nodes: list[int] | None = None  # all that were asked
        self.pushed: list[Message] = []
        self.asked: list[list[str]] = []
        self.pushes: list[int] = []
        self.most_waiting = 0
        self.due: list[Due] = []
        self._waiting: set[str] = set()
        self._ids = itertools.count()

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        if self.nodes is not None:
            return self.nodes
        return [message.metadata.dst_node_id for message in self.pushed]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids: list[Any] = []
        for message in messages:
            if self.refused(message):
                ids += [] if self.leaves_out_refused else [None]
                continue
            message.metadata.__dict__["_message_id"] = f"m{next(self._ids)}"
            self.pushed.append(message)
            self._waiting.add(message.metadata.message_id)
            self.due += [Due(self.clock.now() + self.delay, each) for each in self.answer(message)]
            ids.append(message.metadata.message_id)
        self.pushes.append(len(ids))
        self.most_waiting = max(self.most_waiting, len(self._waiting))
        return ids

    def replies_to(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = list(message_ids)
        self.asked.append(asked)
        ready = [
            each
            for each in self.due
            if each.at <= self.clock.now() and each.reply.metadata.reply_to_message_id in asked
        ]
        self.due = [each for each in self.due if each not in ready]
        self._waiting -= {each.reply.metadata.reply_to_message_id for each in ready}
        return [each.reply for each in ready]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise AssertionError("slow, and it keeps every reply")


class InMemoryGrid(ScriptedGrid):
    """Simulated nodes, which are known by the name of their grid."""


def instruction(node: int) -> Message:
    return Message(
        RecordDict({"config": ConfigRecord({"node": node})}),
        dst_node_id=node,
        message_type=MessageType.TRAIN,
        ttl=60.0,
    )


def instructions(count: int) -> list[Message]:
    return [instruction(node) for node in range(100, 100 + count)]


def ok(message: Message) -> Message:
    return Message(RecordDict(), reply_to=message)


def failed(message: Message) -> Message:
    return Message(Error(code=3, reason="Node Unavailable"), reply_to=message)


def through(grid: ScriptedGrid, count: int, **options: Any) -> list[Message]:
    """Send that many messages, and return every reply."""
    given: dict[str, Any] = {"window": None, "timeout": 60.0} | options
    return list(exchange(grid, instructions(count), **given))


def answered(replies: Iterable[Message]) -> list[str]:
    return [reply.metadata.reply_to_message_id for reply in replies]


def ids(messages: Sequence[Message]) -> list[str]:
    return [message.metadata.message_id for message in messages]


@pytest.mark.parametrize("window", [None, 1, 32])
def test_each_message_gets_its_reply_once(clock: OwnedClock, window: int | None) -> None:
    grid = ScriptedGrid(clock)
    seen = answered(through(grid, 100, window=window))
    assert sorted(seen) == sorted(ids(grid.pushed))
    assert len(set(seen)) == 100


@pytest.mark.parametrize("window", [1, 32])
def test_no_more_than_the_window_is_under_way(clock: OwnedClock, window: int) -> None:
    grid = ScriptedGrid(clock, delay=0.03)
    through(grid, 100, window=window)
    assert grid.most_waiting == window


def test_real_nodes_get_their_messages_at_once_in_requests_of_a_bounded_size(
    clock: OwnedClock,
) -> None:
    grid = ScriptedGrid(clock, delay=1.0)
    replies = exchange(grid, instructions(100), window=None, timeout=60.0)
    next(replies)
    assert sum(grid.pushes) == grid.most_waiting == 100
    assert max(grid.pushes) == 32
    replies.close()


def test_a_reply_belongs_to_the_message_it_names_whoever_sent_it(clock: OwnedClock) -> None:
    def from_the_superlink(message: Message) -> Iterable[Message]:
        reply = failed(message)
        reply.metadata.__dict__["_src_node_id"] = 1
        return [reply]

    grid = ScriptedGrid(clock, from_the_superlink)
    replies = through(grid, 3)
    assert sorted(answered(replies)) == sorted(ids(grid.pushed))
    assert all(reply.has_error() for reply in replies)
    assert {reply.metadata.src_node_id for reply in replies} == {1}


def test_a_second_reply_to_the_same_message_is_ignored(clock: OwnedClock) -> None:
    grid = ScriptedGrid(clock, lambda message: [ok(message), ok(message), failed(message)])
    replies = through(grid, 5, window=2)
    assert len(replies) == 5
    assert not any(reply.has_error() for reply in replies)


def test_replies_to_messages_of_somebody_else_are_ignored(clock: OwnedClock) -> None:
    class Overflowing(ScriptedGrid):
        def replies_to(self, message_ids: Iterable[str]) -> Iterable[Message]:
            stranger = instruction(7)
            stranger.metadata.__dict__["_message_id"] = "older"
            return [ok(stranger), *super().replies_to(message_ids), ok(stranger)]

    grid = Overflowing(clock)
    seen = answered(through(grid, 4))
    assert sorted(seen) == sorted(ids(grid.pushed))


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("leaves_out", [False, True])
def test_a_message_that_could_not_be_stored_is_a_missing_client(
    clock: OwnedClock, window: int | None, leaves_out: bool
) -> None:
    # Flower's HTTP grid says None in its place, the one in memory leaves it out.
    grid = ScriptedGrid(clock)
    grid.refused = lambda message: message.metadata.dst_node_id % 3 == 0
    grid.leaves_out_refused = leaves_out
    seen = answered(through(grid, 30, window=window))
    assert sorted(seen) == sorted(ids(grid.pushed))
    assert len(seen) == 20
    assert clock.now() < 1.0


def test_after_the_timeout_what_is_missing_is_given_up_and_never_looked_at(
    clock: OwnedClock,
) -> None:
    def slow_for_odd_nodes(message: Message) -> Iterable[Message]:
        return [ok(message)] if message.metadata.dst_node_id % 2 == 0 else []

    grid = ScriptedGrid(clock, slow_for_odd_nodes)
    assert len(list(exchange(grid, instructions(10), window=None, timeout=5.0))) == 5
    assert clock.now() == pytest.approx(5.0)
    late = [message for message in grid.pushed if message.metadata.dst_node_id % 2]
    grid.due += [Due(clock.now(), ok(message)) for message in late]
    asked_before = len(grid.asked)
    seen = answered(exchange(grid, instructions(2), window=None, timeout=5.0))
    assert not set(seen) & set(ids(late))
    assert not {each for asked in grid.asked[asked_before:] for each in asked} & set(ids(late))


def test_a_slow_reader_does_not_extend_the_timeout(clock: OwnedClock) -> None:
    grid = ScriptedGrid(clock)
    seen = []
    for reply in exchange(grid, instructions(100), window=4, timeout=5.0):
        seen.append(reply)
        clock.sleep(1.0)
    # The last four had come before the time was over; the next were sent, and not looked at.
    assert len(seen) == 8
    assert len(grid.pushed) == 12


def test_pauses_are_short_while_replies_come_and_at_most_a_quarter_of_a_second(
    clock: OwnedClock,
) -> None:
    grid = ScriptedGrid(clock, delay=20.0)
    through(grid, 2, window=1)
    assert clock.pauses[0] <= 0.02
    assert max(clock.pauses) == 0.25
    again = clock.pauses.index(clock.pauses[0], 1)
    assert clock.pauses[again - 1] == 0.25  # back to short ones after the first reply


@pytest.mark.parametrize("after", [3.0, 33.0])
def test_a_node_that_is_gone_is_not_waited_for(clock: OwnedClock, after: float) -> None:
    """Flower lists it no longer, and does not answer for it."""

    class Leaving(ScriptedGrid):
        def get_node_ids(self) -> Iterable[int]:
            return [100, 102, 103] if self.clock.now() > after else [100, 101, 102, 103]

    def silent(message: Message) -> Iterable[Message]:
        return [] if message.metadata.dst_node_id == 101 else [ok(message)]

    grid = Leaving(clock, silent, delay=1.0)
    assert len(through(grid, 4, timeout=60.0)) == 3
    assert after < clock.now() < after + 6.0


def test_a_node_that_is_there_and_one_that_is_simulated_have_all_their_time(
    clock: OwnedClock,
) -> None:
    assert len(through(ScriptedGrid(clock, delay=59.0), 3)) == 3
    simulated = InMemoryGrid(clock, delay=59.0)
    simulated.nodes = []
    assert len(through(simulated, 3)) == 3


def test_a_reply_is_not_kept_once_it_is_handed_over(clock: OwnedClock) -> None:
    grid = ScriptedGrid(clock)
    alive: list[weakref.ref[Message]] = []
    most = 0
    for reply in exchange(grid, instructions(200), window=None, timeout=60.0):
        alive.append(weakref.ref(reply))
        del reply
        gc.collect(0)
        most = max(most, sum(one() is not None for one in alive))
    assert len(alive) == 200
    assert most <= 1


def test_slow_nodes_at_the_front_do_not_hold_up_those_behind(clock: OwnedClock) -> None:
    def first_forty_never(message: Message) -> Iterable[Message]:
        return [ok(message)] if message.metadata.dst_node_id >= 140 else []

    grid = ScriptedGrid(clock, first_forty_never)
    replies = exchange(grid, instructions(100), window=None, timeout=60.0)
    assert len([next(replies) for _ in range(60)]) == 60
    assert clock.now() == 0.0


def test_the_window_is_bounded_in_a_simulation_and_not_on_real_nodes(clock: OwnedClock) -> None:
    # Twice the 32 threads that the engine has at most: each has a message in reserve.
    assert default_window(InMemoryGrid(clock)) == 64
    assert default_window(ScriptedGrid(clock)) is None


@pytest.mark.parametrize("delay", [290.0, 310.0])
def test_simulated_nodes_are_as_slow_as_the_machine_is_busy_and_waited_for_while_answers_come(
    clock: OwnedClock, delay: float
) -> None:
    """Seconds until an answer: Ray starts slowly, and works as slowly on a busy machine."""
    grid = InMemoryGrid(clock, delay=delay)
    replies = exchange(grid, instructions(12), window=1, timeout=60.0, patient=True)
    assert len(list(replies)) == (12 if delay < 300.0 else 0)
    assert min(message.metadata.ttl for message in grid.pushed) > 12 * 290.0


def test_real_nodes_and_rounds_have_the_time_that_was_given(clock: OwnedClock) -> None:
    real, simulated = ScriptedGrid(clock, delay=61.0), InMemoryGrid(clock, delay=61.0)
    assert not list(exchange(real, instructions(3), window=None, timeout=60.0, patient=True))
    assert not through(simulated, 3)
    assert {message.metadata.ttl for message in real.pushed} == {60.0}


@pytest.mark.parametrize("ahead", [lambda grid: grid, lambda grid: LateAnswers(grid, lambda _: 1)])
def test_nodes_that_answer_one_by_one_in_this_process_are_waited_for_before_a_training(
    clock: OwnedClock, ahead: Callable[[OwnGrid], OwnGrid]
) -> None:
    """Each takes 40 s: the second is done after the 60 s that real nodes have together."""

    def slow(message: Message, context: Context) -> Message:
        clock.sleep(40.0)
        return ok(message)

    grid = ahead(OneByOne(slow, 12))
    asked = [
        Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY, ttl=60.0)
        for node in grid.get_node_ids()
    ]
    assert patience(grid, 60.0) == 300.0
    assert default_window(grid) is None
    assert len(list(exchange(grid, asked, window=None, timeout=60.0, patient=True))) == 12


def test_a_simulation_s_roster_is_waited_for_while_nodes_are_made(
    clock: OwnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, stuck = InMemoryGrid(clock), InMemoryGrid(clock)
    monkeypatch.setattr(made, "get_node_ids", lambda: range(int(clock.now() / 40.0)))
    assert len(wait_for_roster(made, 5, timeout=60.0)) == 5
    stuck.nodes = [100]
    with pytest.raises(RosterIncomplete, match="1 nodes are connected after 60 s"):
        wait_for_roster(stuck, 5, timeout=60.0)


def test_the_roster_is_waited_for(clock: OwnedClock) -> None:
    grid = ScriptedGrid(clock)
    grid.nodes = [103, 101]
    with pytest.raises(RosterIncomplete, match="declares 3 clients, but 2 nodes are connected"):
        wait_for_roster(grid, 3, timeout=2.0)
    grid.nodes = [103, 101, 102, 104]
    assert wait_for_roster(grid, 3, timeout=2.0) == [101, 102, 103, 104]
