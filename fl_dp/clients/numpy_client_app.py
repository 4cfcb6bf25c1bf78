"""A Flower `ClientApp` over the Message API that serves any `NumPyClient`.

    >>> app = numpy_client_app(lambda context: MyNumPyClient(context))

Array names are kept, so that a server can match them by name. What goes wrong in a client reaches
the server as a code and a class name: an exception's text can carry data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode

logger = logging.getLogger("flwr.fl_dp.client")

ClientFn = Callable[[Context], NumPyClient]
_Record = TypeVar("_Record")


def numpy_client_app(client_fn: ClientFn, mods: list[Mod] | None = None) -> ClientApp:
    """Return a `ClientApp` whose train and evaluate messages are answered by a `NumPyClient`.

    Args:
        client_fn: Makes the client for one message from the node's `Context`.
        mods: Flower mods, outermost first; they run around the client and inside the guard that
            keeps exception texts on the node.

    Returns:
        An app for `[tool.flwr.app.components]` or a simulation. Replies carry one ArrayRecord
        under the name that the message used (train only) and one MetricRecord, `metrics`, with
        `num-examples` (and `loss` for evaluate) as Flower's strategies expect.
    """
    app = ClientApp()

    def train(message: Message, context: Context) -> Message:
        key, arrays = _only(message.content.array_records, "ArrayRecord")
        parameters, num_examples, metrics = client_fn(context).fit(
            arrays.to_numpy_ndarrays(), _config(message)
        )
        if len(parameters) != len(arrays):
            raise ValueError(f"fit returned {len(parameters)} arrays, the model has {len(arrays)}")
        trained = ArrayRecord(
            {
                name: Array(np.asarray(values))
                for name, values in zip(arrays, parameters, strict=True)
            }
        )
        records = _metric_record({"num-examples": num_examples}, metrics)
        return Message(RecordDict({key: trained, "metrics": records}), reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        _, arrays = _only(message.content.array_records, "ArrayRecord")
        loss, num_examples, metrics = client_fn(context).evaluate(
            arrays.to_numpy_ndarrays(), _config(message)
        )
        records = _metric_record({"num-examples": num_examples, "loss": loss}, metrics)
        return Message(RecordDict({"metrics": records}), reply_to=message)

    app.train()(_guarded(train, mods))
    app.evaluate()(_guarded(evaluate, mods))
    return app


def _guarded(handler: ClientAppCallable, mods: list[Mod] | None) -> ClientAppCallable:
    """Run the mods and the handler; turn an exception into an error reply without its text."""
    for mod in reversed(mods or []):
        handler = _wrapped(mod, handler)

    def answer(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception as failure:
            logger.exception("the client failed; the server is told only the kind of error")
            reason = type(failure).__name__
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    return answer


def _wrapped(mod: Mod, handler: ClientAppCallable) -> ClientAppCallable:
    return lambda message, context: mod(message, context, handler)


def _only(records: Mapping[str, _Record], kind: str) -> tuple[str, _Record]:
    if len(records) != 1:
        raise ValueError(f"expected exactly one {kind} in the message, got {len(records)}")
    return next(iter(records.items()))


def _config(message: Message) -> dict[str, Any]:
    records = message.content.config_records
    return dict(_only(records, "ConfigRecord")[1]) if records else dict(ConfigRecord())


def _metric_record(required: Mapping[str, Any], metrics: Mapping[str, Any]) -> MetricRecord:
    """Merge metrics into what a MetricRecord can hold.

    Raises:
        TypeError: If a metric is not a number or a list of numbers, naming its key.
        ValueError: If a metric has the name of one that Flower itself needs.
    """
    record = MetricRecord()
    for key, value in metrics.items():
        if key in required:
            raise ValueError(f"metric '{key}' is reserved: rename it")
        record[key] = _number(key, value)
    for key, value in required.items():
        record[key] = _number(key, value)
    return record


def _number(key: str, value: Any) -> int | float | list[int] | list[float]:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        numbers = [_scalar(key, item) for item in value]
        mixed = any(isinstance(number, float) for number in numbers)
        return [float(number) for number in numbers] if mixed else numbers
    return _scalar(key, value)


def _scalar(key: str, value: Any) -> int | float:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, int | float):
        raise TypeError(
            f"metric '{key}' is a {type(value).__name__}: return an int, a float or a list of them"
        )
    return value
