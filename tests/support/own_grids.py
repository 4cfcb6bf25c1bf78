"""Our own grids for tests: nodes that answer one by one, or each after its own time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fl_dp.protocol.own_grid import OwnGrid


class OneByOne(OwnGrid):
    """Nodes 1, 2, ..., each of which answers when its reply is asked for."""

    def __init__(self, app: Callable[[Message, Context], Message], num_nodes: int) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.num_nodes = app, num_nodes
        self._ids = itertools.count()
        self._asked: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return range(1, self.num_nodes + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(f"m{next(self._ids)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self._asked[ids[-1]] = message
        return ids

    def replies_to(self, message_ids: Sequence[str]) -> Iterable[Message]:
        for message_id in message_ids:
            if message_id in self._asked:
                message = self._asked.pop(message_id)
                node = message.metadata.dst_node_id
                return [self.app(message, Context(1, node, {}, RecordDict(), {}))]
        return []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


class LateAnswers(OwnGrid):
    """Trainings take their own time: replies come in the order in which they are due."""

    def __init__(self, grid: Grid, delay: Callable[[int], float]) -> None:
        """Put delays in front of a grid, by a node's place among all."""
        self.now = 0.0
        self._grid, self._delay = grid, delay
        self._due: list[tuple[float, int, str]] = []
        self._pushed = 0

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        ids = list(self._grid.push_messages(sent))
        places = {node: index for index, node in enumerate(sorted(self.get_node_ids()))}
        for message, message_id in zip(sent, ids, strict=True):
            if message.metadata.message_type == "train":
                self._pushed += 1
                due = self.now + self._delay(places[message.metadata.dst_node_id])
                heapq.heappush(self._due, (due, self._pushed, message_id))
        return ids

    def replies_to(self, message_ids: Sequence[str]) -> Iterable[Message]:
        late = {message_id for _, _, message_id in self._due}
        replies = list(
            self._grid.pull_messages(
                [message_id for message_id in message_ids if message_id not in late]
            )
        )
        if self._due and self._due[0][2] in message_ids:
            answer = list(self._grid.pull_messages([self._due[0][2]]))
            if answer:
                self.now = max(self.now, heapq.heappop(self._due)[0])
            replies += answer
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)


def unequal_delays(*, spread: float, seed: int) -> Callable[[int], float]:
    """Delays of nodes with lognormal speeds that vary a little each time."""
    jitter = np.random.default_rng([seed, 1])

    def delay(place: int) -> float:
        of_node = np.random.default_rng([seed, 2, place])
        return float(np.exp(spread * of_node.standard_normal()) * jitter.uniform(0.5, 1.5))

    return delay
