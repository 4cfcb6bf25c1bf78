"""Reading the records of a message, and writing those of a reply."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
from flwr.app import Message, MessageType, MetricRecord

from fl_dp.protocol.instruction import RoundInstruction

logger = logging.getLogger("flwr.fl_dp.client")

_TOO_LARGE = 2**63  # for an integer on Flower's wire

Config: TypeAlias = dict[str, Any]
"""Content of a message's ConfigRecord, by key."""

_Record = TypeVar("_Record")


def only_record(records: Mapping[str, _Record], kind: str) -> tuple[str, _Record]:
    """Return the one record of a kind and its key.

    Raises:
        ValueError: If there is none or more than one.
    """
    if len(records) != 1:
        raise ValueError(f"expected exactly one {kind} in the message, got {len(records)}")
    return next(iter(records.items()))


def config_of(message: Message) -> Config:
    """Return the config of a message, empty if it has none.

    Raises:
        ValueError: If it has more than one.
    """
    records = message.content.config_records
    return dict(only_record(records, "ConfigRecord")[1]) if records else {}


def instruction_of(message: Message) -> RoundInstruction | None:
    """Return the instruction of a train message; None if it has none or is of another kind.

    Raises:
        ValueError: If it has more than one.
    """
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        return None
    configs = message.content.config_records.values()
    found = [instruction for instruction in map(RoundInstruction.of, configs) if instruction]
    if len(found) > 1:
        raise ValueError("the message has more than one instruction")
    return found[0] if found else None


def metrics_in(returned: object) -> Mapping[str, Any]:
    """Return the metrics that a client's function returned; none if they are no dictionary."""
    return returned if isinstance(returned, Mapping) else {}


def metric_record(required: Mapping[str, Any], metrics: Mapping[str, Any]) -> MetricRecord:
    """Merge metrics into what a MetricRecord can hold.

    A metric of another kind, or with the name of a required one, is left out: nobody asked for it,
    and it must not cost the client its contribution. The node's log names it once.

    Raises:
        TypeError: If a required number is none, naming its key.
    """
    record = MetricRecord()
    for key, value in metrics.items():
        number = _number(value)
        if number is None or not isinstance(key, str) or key in required:
            _say_once(f"metric {key!r:.50} is left out: {_reason(key, value, required)}")
        else:
            record[key] = number
    for key, value in required.items():
        number = _number(value)
        if number is None:
            raise TypeError(f"'{key}' is a {type(value).__name__}: return a number")
        record[key] = number
    return record


def _reason(key: object, value: object, required: Mapping[str, Any]) -> str:
    if key in required:
        return "fl-dp itself sends a number of that name"
    if not isinstance(key, str):
        return "its name is no text"
    return f"a {type(value).__name__} is no int, no float and no list of them"


@lru_cache
def _say_once(line: str) -> None:
    logger.warning("%s (said once)", line)


def _number(value: Any) -> int | float | list[int] | list[float] | None:
    """Return a value as a MetricRecord holds it; None if it can't."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return _scalar(value)
    numbers = [number for item in value if (number := _scalar(item)) is not None]
    if len(numbers) < len(value):
        return None
    mixed = any(isinstance(number, float) for number in numbers)
    return [float(number) for number in numbers] if mixed else numbers


def _scalar(value: Any) -> int | float | None:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if abs(value) < _TOO_LARGE else None
    return value if isinstance(value, float) else None
