"""A Flower grid in this process: no Ray, no SuperLink. Messages are pickled as a real one would."""

from __future__ import annotations

import itertools
import pickle
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

FIRST_NODE = 100
INTRODUCTION = "query.fl_dp_identity"  # written out: a plain Flower project must not load fl_dp
Answer = Callable[[Message, int], Message | None]


class EitherName(Grid):
    """A grid whose `pull_messages` is that of Flower before and from 1.43 on."""

    def pull_messages(  # type: ignore[override]  # as in Flower 1.43, and before
        self,
        reply_to_message_ids: Iterable[str] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
    ) -> Iterable[Message]:
        assert (reply_to_message_ids is None) != (message_ids is None)
        return self.replies_to(reply_to_message_ids or message_ids or ())

    @abstractmethod
    def replies_to(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class LocalGrid(EitherName):
    """Nodes 100, 101, ...; `answer(message, partition)` replies, or returns None and never does.

    Identity queries lie in `introductions`, all other messages in `sent`. Unless `introduces`,
    queries are answered as by a plain Flower client, which does not know them.
    """

    def __init__(self, answer: Answer, num_nodes: int, *, introduces: bool = False) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.answer = answer
        self.num_nodes = num_nodes
        self.introduces = introduces or getattr(answer, "introduces", False)
        self.introductions: list[Message] = []
        self.sent: list[Message] = []
        self.most_under_way = 0
        self._ids = itertools.count()
        self._replies: dict[str, Message | None] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return range(FIRST_NODE, FIRST_NODE + self.num_nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message_id = f"m{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = message_id
            introduction = message.metadata.message_type == INTRODUCTION
            (self.introductions if introduction else self.sent).append(message)
            copy = pickle.loads(pickle.dumps(message))
            answer = self.answer
            if introduction and not self.introduces:
                answer = _as_a_plain_client
            self._replies[message_id] = answer(copy, copy.metadata.dst_node_id - FIRST_NODE)
            ids.append(message_id)
        self.most_under_way = max(self.most_under_way, len(self._replies))
        return ids

    def replies_to(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = [i for i in message_ids if self._replies.get(i) is not None]
        return [self._replies.pop(i) for i in ready]  # type: ignore[misc]  # None was filtered

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.replies_to(self.push_messages(messages))


def _as_a_plain_client(message: Message, partition: int) -> Message:
    try:
        return ClientApp()(message, Context(1, FIRST_NODE + partition, {}, RecordDict(), {}))
    except Exception as error:
        return Message(Error(code=2, reason=repr(error)), reply_to=message)


def answer_with_app(app: ClientApp, num_nodes: int) -> Answer:
    """Answer with a ClientApp, one context a node; its exceptions become error replies."""
    configs = [{"partition-id": i, "num-partitions": num_nodes} for i in range(num_nodes)]
    return answer_at_nodes(app, configs)


def answer_at_nodes(app: ClientApp, configs: Sequence[dict[str, Any]]) -> Answer:
    """As `answer_with_app`, at nodes with these configs of their owners."""
    contexts = [
        Context(1, FIRST_NODE + i, config, RecordDict(), {}) for i, config in enumerate(configs)
    ]

    def answer(message: Message, partition: int) -> Message:
        try:
            return app(message, contexts[partition])
        except Exception as error:
            return Message(Error(code=2, reason=repr(error)), reply_to=message)

    return introducing(answer)


def introducing(answer: Answer) -> Answer:
    """Let a grid hand identity queries to this answer, too."""
    answer.introduces = True  # type: ignore[attr-defined]  # read by the grid
    return answer


def reply(message: Message, arrays: dict[str, Any], **metrics: Any) -> Message:
    """Reply to a train message with these arrays, as Flower's own clients do."""
    record = ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})
    return Message(
        RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1} | metrics)}),
        reply_to=message,
    )


def arrays_of(message: Message) -> dict[str, Any]:
    """The arrays of a message by name."""
    (record,) = message.content.array_records.values()
    return {name: array.numpy() for name, array in record.items()}


def answer_with_update(updates: Sequence[dict[str, Any]]) -> Answer:
    """Answer with the model plus each node's own update."""

    def answer(message: Message, partition: int) -> Message:
        if message.metadata.message_type != "train":
            return Message(Error(code=2, reason="trains only"), reply_to=message)
        model = arrays_of(message)
        return reply(
            message,
            {
                name: (values + updates[partition].get(name, 0)).astype(values.dtype)
                for name, values in model.items()
            },
        )

    return answer
