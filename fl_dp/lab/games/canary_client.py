"""The `ClientApp` of an audited training: the task's clients, and nodes that host canaries.

The same code draws, trains, clips and adds up both. A canary's update is a hundred clipping norms
long, so clipping is audited, too; it claims a billion records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.client import NumPyClient
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.typing import NDArrays, Scalar
from numpy.typing import NDArray

from fl_dp.app.settings import SETTINGS_KEY, Settings
from fl_dp.app.task_client import TaskClient, hosted_units, node_of, train_many
from fl_dp.clients import NodeUnits, TrainedRows, numpy_client_app
from fl_dp.protocol.message_keys import METRICS_KEY

from .canary_run import CANARY_METRIC, CanaryRun

_CLIPPING_NORMS = 100.0
_CLAIMED_RECORDS = 10**9


class AuditedClient(NumPyClient):
    """A client of the task or a canary, by the node's partition id."""

    def __init__(self, context: Context, unit: int = 0) -> None:
        """Represent one of a node's units."""
        self.context = context
        self.unit = unit

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train as `TaskClient` does, or move along a canary's direction."""
        settings, run = _settings(config), CanaryRun.of(self.context.run_config)
        first = run.first_on_node(settings, node_of(self.context))
        if first is None:
            return TaskClient(self.context, self.unit).fit(parameters, config)
        length = _CLIPPING_NORMS * settings.clipping.norm
        return canary_update(parameters, run, first + self.unit, length), _CLAIMED_RECORDS, {}


def canary_update(
    parameters: NDArrays, run: CanaryRun, canary: int, length: float
) -> list[NDArray[Any]]:
    """The model, moved along a canary's direction if its coin includes it."""
    floating = [np.issubdtype(array.dtype, np.floating) for array in parameters]
    size = sum(a.size for a, moves in zip(parameters, floating, strict=True) if moves)
    canaries = run.canaries(size)
    if canary >= run.count or not canaries.included[canary]:
        return list(parameters)
    update, offset, moved = length * canaries.direction(canary), 0, []
    for array, moves in zip(parameters, floating, strict=True):
        if moves:
            part = update[offset : offset + array.size].reshape(array.shape)
            array, offset = (array + part).astype(array.dtype), offset + array.size
        moved.append(array)
    return moved


def _settings(config: dict[str, Any]) -> Settings:
    return _settings_of(str(config[SETTINGS_KEY]))


@lru_cache(maxsize=1)
def _settings_of(text: str) -> Settings:
    """A run's settings, read once for all its units."""
    return Settings.from_json(text)


def _count(context: Context, config: dict[str, Any]) -> int:
    settings, run = _settings(config), CanaryRun.of(context.run_config)
    first = run.first_on_node(settings, node_of(context))
    if first is None:
        return hosted_units(context, config)
    return min(settings.simulation.units_at_node, run.count - first)


def _train_many(
    context: Context, units: Sequence[int], model: ArrayRecord, config: dict[str, Any]
) -> Iterator[TrainedRows]:
    """Train the task's clients together; canaries move one by one."""
    run = CanaryRun.of(context.run_config)
    if run.first_on_node(_settings(config), node_of(context)) is None:
        yield from train_many(context, units, model, config)


def _marked(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Report which canaries a reply's node hosts: one more than the first one's number."""
    reply = call_next(message, context)
    if message.metadata.message_type != "train" or reply.has_error():
        return reply
    config = next(iter(message.content.config_records.values()))
    first = CanaryRun.of(context.run_config).first_on_node(
        _settings(dict(config)), node_of(context)
    )
    if first is not None:
        metrics = dict(reply.content.metric_records.get(METRICS_KEY, {}))
        reply.content[METRICS_KEY] = MetricRecord(metrics | {CANARY_METRIC: first + 1})
    return reply


app = numpy_client_app(
    AuditedClient,
    mods=[_marked],
    units=NodeUnits(client_fn=AuditedClient, count=_count, train_many=_train_many),
)
