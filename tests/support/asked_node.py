"""One node that answers one message, and a client that obeys."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from local_grid import FIRST_NODE, LocalGrid

from fl_dp.codec import encode_text
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import INSTRUCTION_KEY


class ToldClient(NumPyClient):
    """Adds an update to the first array, or does whatever else it was told."""

    def __init__(
        self,
        update: Any = 0.0,
        *,
        num_examples: Any = 10,
        metrics: Any = None,
        loss: Any = 0.5,
        returns: Any = None,
        error: BaseException | None = None,
    ) -> None:
        self.update = update
        self.num_examples = num_examples
        self.metrics = metrics if metrics is not None else {}
        self.loss = loss
        self.returns = returns
        self.error = error
        self.calls = 0

    def fit(self, parameters: Any, config: Any) -> Any:
        self.calls += 1
        if self.error is not None:
            raise self.error
        if self.returns is not None:
            return self.returns, self.num_examples, self.metrics
        first = (parameters[0] + self.update).astype(parameters[0].dtype)
        return [first, *parameters[1:]], self.num_examples, self.metrics

    def evaluate(self, parameters: Any, config: Any) -> Any:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.loss, self.num_examples, self.metrics


def record_of(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


class Node:
    """Sends messages to an app on a node of its own."""

    def __init__(
        self, app: ClientApp, node_config: dict[str, Any] | None = None, *, run: int = 1
    ) -> None:
        config: dict[str, Any] = {"partition-id": 0} if node_config is None else node_config
        context = Context(run, FIRST_NODE, config, RecordDict(), {})
        self.grid = LocalGrid(lambda message, _: app(message, context), 1, introduces=True)

    def ask(self, kind: str, content: dict[str, Any]) -> Message:
        message = Message(RecordDict(content), dst_node_id=FIRST_NODE, message_type=kind)
        [reply] = self.grid.send_and_receive([message])
        return reply

    def train(
        self, arrays: dict[str, Any], instruction: RoundInstruction | None, **config: Any
    ) -> Message:
        if instruction is not None:
            config[INSTRUCTION_KEY] = encode_text(instruction)
        content = {"model": record_of(arrays), "config": ConfigRecord(config)}
        return self.ask("train", content)


def arrays_in(reply: Message) -> dict[str, Any]:
    assert not reply.has_error(), reply.error.reason
    [arrays] = reply.content.array_records.values()
    return {name: array.numpy() for name, array in arrays.items()}


def metrics_in(reply: Message) -> dict[str, Any]:
    assert not reply.has_error(), reply.error.reason
    [metrics] = reply.content.metric_records.values()
    assert isinstance(metrics, MetricRecord)
    return dict(metrics)
