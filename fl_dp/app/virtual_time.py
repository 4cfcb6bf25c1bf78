"""Slow simulated nodes without waiting: answers arrive in the order of delays that are drawn.

>>> grid = VirtualTime(grid, drawn_delays(spread=1.0, seed=0))
>>> strategy.start(grid, ...)
>>> grid.now  # what the training would have taken, in times of a typical node
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fl_dp import clock
from fl_dp.protocol.own_grid import OwnGrid


class VirtualTime(OwnGrid):
    """A grid whose nodes take a time of their own to train, on a clock that never waits.

    A training answer is handed over when every one that is due before it was; the clock then shows
    when it was due.

    Attributes:
        now: Virtual time that has passed.
    """

    def __init__(self, grid: Grid, delay: Callable[[int], float]) -> None:
        """Put a clock in front of a grid.

        Args:
            grid: Whose nodes answer.
            delay: Returns how long a node takes for its next answer, by its place among all nodes.
        """
        self.now = 0.0
        self._grid = grid
        self._delay = delay
        self._places: dict[int, int] = {}
        self._due: list[tuple[float, int, str]] = []
        self._given_up_at: dict[str, float] = {}
        self._pushed = 0

    def set_run(self, run: Any) -> None:
        """Hand on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The grid's own."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Hand on."""
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and draw how long each training takes."""
        sent = list(messages)
        ids = list(self._grid.push_messages(sent))
        for message, message_id in zip(sent, ids, strict=True):
            if message_id and message.metadata.message_type == MessageType.TRAIN:
                self._pushed += 1
                due = self.now + self._delay(self._place_of(message.metadata.dst_node_id))
                heapq.heappush(self._due, (due, self._pushed, message_id))
                self._given_up_at[message_id] = clock.now() + message.metadata.ttl
        return ids

    def replies_to(self, message_ids: Sequence[str]) -> Iterable[Message]:
        """Return the answer that is due next, if it is among these and computed."""
        at_once = [each for each in message_ids if each not in self._given_up_at]
        replies = list(self._grid.pull_messages(at_once)) if at_once else []
        while self._due and clock.now() > self._given_up_at[self._due[0][2]]:
            del self._given_up_at[heapq.heappop(self._due)[2]]  # else it would hold up the others
        if not self._due or self._due[0][2] not in message_ids:
            return replies
        due, _, message_id = self._due[0]
        answer = list(self._grid.pull_messages([message_id]))
        if answer:
            heapq.heappop(self._due)
            del self._given_up_at[message_id]
            self.now = max(self.now, due)
        return replies + answer

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Hand on: who waits for everybody at once sees no delays."""
        return self._grid.send_and_receive(messages, timeout=timeout)

    def _place_of(self, node: int) -> int:
        if node not in self._places:
            there = {each: place for place, each in enumerate(sorted(self.get_node_ids()))}
            self._places |= there | {node: there.get(node, len(there))}
        return self._places[node]


def drawn_delays(*, spread: float, seed: int) -> Callable[[int], float]:
    """Return delays of nodes that differ: a median node takes about 1.

    Args:
        spread: Standard deviation of the logarithm of the nodes' speeds. With 1 the slowest of 100
            nodes takes about ten times as long as the median.
        seed: Of the speeds, and of each answer's own factor in [0.5, 1.5].
    """
    speeds: dict[int, float] = {}
    each = np.random.default_rng([seed, 1])

    def delay(place: int) -> float:
        if place not in speeds:
            of_node = np.random.default_rng([seed, 2, place])
            speeds[place] = float(np.exp(spread * of_node.standard_normal()))
        return speeds[place] * float(each.uniform(0.5, 1.5))

    return delay
