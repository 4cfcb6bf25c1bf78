"""Grids of a simulation in one process: answers in the order of their delays, under either name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fl_dp.strategies.message_exchange import default_window, exchange, patience
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from local_grid import FIRST_NODE, Answer, LocalGrid, answer_with_update
from owned_clock import OwnedClock

from fl_dp.app.in_process import InProcessGrid
from fl_dp.app.virtual_time import VirtualTime, drawn_delays
from fl_dp.protocol.own_grid import OwnGrid


def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


GRIDS: dict[str, Callable[[Callable[[Message, Context], Message], int], OwnGrid]] = {
    "in_process": lambda app, nodes: InProcessGrid(app, [{}] * nodes),
    "virtual_time": lambda app, nodes: VirtualTime(
        InProcessGrid(app, [{}] * nodes), lambda place: 1.0
    ),
}


@pytest.mark.parametrize("name", ["reply_to_message_ids", "message_ids", None])
@pytest.mark.parametrize("kind", GRIDS)
def test_a_grid_answers_to_either_name_of_flower_s(kind: str, name: str | None) -> None:
    grid = GRIDS[kind](echo, 3)
    message = Message(RecordDict(), dst_node_id=1, message_type="query")
    ids = list(grid.push_messages([message]))
    asked = grid.pull_messages(ids) if name is None else grid.pull_messages(**{name: ids})
    assert [each.metadata.reply_to_message_id for each in asked] == ids
    assert list(grid.pull_messages([])) == []


@pytest.mark.parametrize("kind", GRIDS)
def test_nodes_that_answer_one_by_one_are_waited_for_before_a_training(
    clock: OwnedClock, kind: str
) -> None:
    """Each takes 40 s: the second is done after the 60 s that real nodes have together."""

    def slow(message: Message, context: Context) -> Message:
        clock.sleep(40.0)
        return echo(message, context)

    grid = GRIDS[kind](slow, 12)
    asked = [
        Message(RecordDict(), dst_node_id=node, message_type="query", ttl=60.0)
        for node in grid.get_node_ids()
    ]
    assert patience(grid, 60.0) == 300.0
    assert default_window(grid) is None
    assert len(list(exchange(grid, asked, window=None, timeout=60.0, patient=True))) == 12


def model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(2))})


def moving_by(update: float, nodes: int) -> Answer:
    return answer_with_update([{"w": update}] * nodes)


def test_answers_come_in_the_order_of_their_delays_on_a_clock_that_never_waits() -> None:
    grid = LocalGrid(moving_by(0.0, 4), 4)
    clock = VirtualTime(grid, lambda place: [4.0, 2.0, 3.0, 1.0][place])
    content = RecordDict({"arrays": model(), "config": ConfigRecord()})
    ids = list(
        clock.push_messages(
            Message(content, message_type="train", dst_node_id=FIRST_NODE + place, ttl=60.0)
            for place in range(4)
        )
    )
    seen: list[tuple[int, float]] = []
    while len(seen) < 4:
        replies = list(clock.pull_messages(ids))
        seen += [(each.metadata.src_node_id - FIRST_NODE, clock.now) for each in replies]
    assert seen == [(3, 1.0), (1, 2.0), (2, 3.0), (0, 4.0)]


def test_a_silent_node_does_not_stop_the_clock_for_good(clock: OwnedClock) -> None:
    answer = moving_by(0.0, 2)
    grid = LocalGrid(lambda message, place: None if place == 0 else answer(message, place), 2)
    virtual = VirtualTime(grid, lambda place: 1.0 + place)
    content = RecordDict({"arrays": model(), "config": ConfigRecord()})
    messages = [
        Message(content, message_type="train", dst_node_id=FIRST_NODE + place, ttl=ttl)
        for place, ttl in ((0, 1.0), (1, 60.0))
    ]
    ids = list(virtual.push_messages(messages))
    clock.sleep(2.0)
    assert [each.metadata.src_node_id for each in virtual.pull_messages(ids)] == [FIRST_NODE + 1]


def test_delays_follow_their_seed_and_their_spread() -> None:
    first, again = (drawn_delays(spread=1.0, seed=7) for _ in range(2))
    drawn = [first(place) for place in range(400)]
    assert drawn == [again(place) for place in range(400)]
    assert 0.8 < np.median(drawn) < 1.2 and 0.8 < np.log(drawn).std() < 1.3
    alike = drawn_delays(spread=0.0, seed=7)
    assert all(0.5 <= alike(place) <= 1.5 for place in range(100))
