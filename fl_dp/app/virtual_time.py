"""Slow simulated nodes without waiting: answers arrive in order of drawn delays.

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
    """A grid whose nodes each take their own time to train, on a clock that never waits.

    It hands over a training answer after all earlier ones, and sets the clock to its due time.

    Attributes:
        now: Virtual time passed, in training times of a typical node.
    """

    def __init__(self, grid: Grid, delay: Callable[[int], float]) -> None:
        """Put a virtual clock in front of a grid whose nodes answer.

        `delay` returns how long a node takes for its next answer, by its index.
        """
        self.now = 0.0
        self._grid = grid
        self._delay = delay
        self._indices: dict[int, int] = {}
        self._due: list[tuple[float, int, str]] = []
        self._given_up_at: dict[str, float] = {}
        self._pushed = 0

    def set_run(self, run: Any) -> None:
        """Delegate to the grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The grid's own."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Delegate to the grid."""
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of all nodes."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and draw each training's time."""
        sent = list(messages)
        ids = list(self._grid.push_messages(sent))
        for message, message_id in zip(sent, ids, strict=True):
            if message_id and message.metadata.message_type == MessageType.TRAIN:
                self._pushed += 1
                due = self.now + self._delay(self._index_of(message.metadata.dst_node_id))
                heapq.heappush(self._due, (due, self._pushed, message_id))
                self._given_up_at[message_id] = clock.now() + message.metadata.ttl
        return ids

    def replies_to(self, message_ids: Sequence[str]) -> Iterable[Message]:
        """The training answer due next, if among these and computed; other answers at once."""
        at_once = [message_id for message_id in message_ids if message_id not in self._given_up_at]
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
        """Delegate to the grid: waiting for all answers bypasses the virtual clock."""
        return self._grid.send_and_receive(messages, timeout=timeout)

    def _index_of(self, node: int) -> int:
        if node not in self._indices:
            indices = {other: index for index, other in enumerate(sorted(self.get_node_ids()))}
            self._indices |= indices | {node: indices.get(node, len(indices))}
        return self._indices[node]


def drawn_delays(*, spread: float, seed: int) -> Callable[[int], float]:
    """Delays of different nodes; a median node takes about 1.

    Args:
        spread: Standard deviation of the logarithm of nodes' delays. With 1 the slowest of 100
            nodes takes about ten times as long as the median.
        seed: Seed of the nodes' delays, and of each answer's own factor in [0.5, 1.5].
    """
    speeds: dict[int, float] = {}
    factors = np.random.default_rng([seed, 1])

    def delay(index: int) -> float:
        if index not in speeds:
            normal = np.random.default_rng([seed, 2, index]).standard_normal()
            speeds[index] = float(np.exp(spread * normal))
        return speeds[index] * float(factors.uniform(0.5, 1.5))

    return delay
