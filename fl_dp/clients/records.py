"""Reading the records of a message, and writing those of a reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
from flwr.app import Message, MessageType, MetricRecord

from fl_dp.protocol.instruction import RoundInstruction

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


def metric_record(required: Mapping[str, Any], metrics: Mapping[str, Any]) -> MetricRecord:
    """Merge metrics into what a MetricRecord can hold.

    Raises:
        TypeError: If a metric is not a number or a list of numbers, naming its key.
        ValueError: If a metric has the name of one that is required.
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
