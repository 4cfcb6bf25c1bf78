"""Reads a message's records, and writes a reply's."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
from flwr.app import Message, MessageType, MetricRecord

from fl_dp.documents import real_number
from fl_dp.protocol.instruction import RoundInstruction

logger = logging.getLogger("flwr.fl_dp.client")

_TOO_LARGE = 2**63  # for an integer on Flower's wire

Config: TypeAlias = dict[str, Any]
"""Content of a message's ConfigRecord, by key."""

_Record = TypeVar("_Record")


def only_record(records: Mapping[str, _Record], kind: str) -> tuple[str, _Record]:
    """Return the only record and its key.

    Raises:
        ValueError: There is none, or more than one.
    """
    if len(records) != 1:
        raise ValueError(f"expected exactly one {kind} in the message, got {len(records)}")
    return next(iter(records.items()))


def config_of(message: Message) -> Config:
    """A message's config, empty if it has none.

    Raises:
        ValueError: It has more than one.
    """
    records = message.content.config_records
    if not records:
        return {}
    return dict(only_record(records, "ConfigRecord")[1])


def instruction_of(message: Message) -> RoundInstruction | None:
    """A train message's instruction; None for other messages and without one.

    Raises:
        ValueError: It has more than one.
    """
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        return None
    configs = message.content.config_records.values()
    candidates = map(RoundInstruction.from_config, configs)
    instructions = [instruction for instruction in candidates if instruction is not None]
    if len(instructions) > 1:
        raise ValueError("the message has more than one instruction")
    return instructions[0] if instructions else None


def metrics_in(returned: object) -> Mapping[str, Any]:
    """The metrics that a client's function returned, empty if they are no dictionary."""
    return returned if isinstance(returned, Mapping) else {}


def number_in(metrics: Mapping[str, Any], name: str) -> float:
    """A metric that was asked for; NaN if there is none, or it is no number.

    The node's log, and nothing that leaves it, says once if it is a list, say, or misspelt.
    """
    value = metrics.get(name)
    number = real_number(value)
    if name not in metrics:
        if metrics:
            _say_once(f"metric '{name}' is missing among the client's {len(metrics)}: return it")
    elif math.isnan(number) and not isinstance(value, float | np.ndarray | np.generic):
        _say_once(
            f"metric '{name}' is a {type(value).__name__} and counts as missing: return one number"
        )
    return number


def metric_record(required: Mapping[str, Any], metrics: Mapping[str, Any]) -> MetricRecord:
    """Merge metrics into a MetricRecord.

    A metric of another type, or with the name of a required one, is left out: nobody asked for it,
    and it must not cost the client its contribution. The node's log names it once.

    Raises:
        TypeError: A required value is no number; the text has its key.
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
    """A value as a MetricRecord holds it; None if it can't."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return _scalar(value)
    scalars = [_scalar(item) for item in value]
    numbers = [scalar for scalar in scalars if scalar is not None]
    if len(numbers) < len(scalars):
        return None
    if any(isinstance(number, float) for number in numbers):
        return [float(number) for number in numbers]
    return numbers


def _scalar(value: Any) -> int | float | None:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < _TOO_LARGE):
        return value
    return None
