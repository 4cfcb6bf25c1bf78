"""A message's records by somebody who wants their reader to break."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hostile import VALUES, text_of

_HELD = (bool, int, float, str)
_MOST = 2**63  # what a message's integers hold

PLAIN: tuple[Any, ...] = tuple(
    value
    for value in VALUES
    if isinstance(value, _HELD) and not (isinstance(value, int) and not -_MOST <= value < _MOST)
)
NUMBERS: tuple[Any, ...] = tuple(value for value in PLAIN if type(value) in (int, float))
NAMES = ("", "x", "\0", "arrays", "config", "metrics", "fl-dp-round", "__class__", "w" * 5000)


def hostile_records(content: RecordDict, rng: Random) -> RecordDict:
    """Records with one to three things wrong; `content` stays as it is."""
    records: dict[str, Any] = dict(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not records:
            break
        key = rng.choice(list(records))
        match rng.randrange(12):
            case 0:
                del records[key]
            case 1:
                records[rng.choice(NAMES)] = records.pop(key)
            case 2:
                records[rng.choice(NAMES)] = records[key]
            case 3:
                records[key] = rng.choice((ArrayRecord, ConfigRecord, MetricRecord))()
            case _:
                records[key] = _record(records[key], rng)
    return RecordDict(records)


def hostile_array(array: Array, rng: Random) -> Array:
    """An array of another form, or one whose bytes and header do not hold."""
    values = np.zeros(3)
    match rng.randrange(6):
        case 0:  # what is no number, or too large for the arithmetic
            filled = rng.choice((np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324))
            return Array(np.full_like(array.numpy(), filled, dtype=np.float64))
        case 1:
            kind = rng.choice(("f2", "f4", "f8", "i8", "u1", "?", "c16", "U3", "S2", "M8[s]"))
            return Array(np.zeros(array.shape).astype(kind))
        case 2:
            return Array(np.zeros(rng.choice(((), (0,), (1,), (3, 1), (4,), (1, 1, 1, 3)))))
        case 3:  # an .npy file that claims more than it has, or what would have to be unpickled
            return Array("float64", (3,), "numpy.ndarray", _npy(rng))
        case 4:
            raw = bytearray(array.data)
            for _ in range(rng.randrange(1, 4)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            cut = len(raw) if rng.random() < 0.5 else rng.randrange(len(raw))
            return Array(array.dtype, array.shape, array.stype, bytes(raw[:cut]))
        case _:
            raw_bytes = Array(values).data
            dtype = rng.choice(("float64", "bfloat16", "object", "", "x" * 5000))
            shape = rng.choice(((3,), (), (0,), (-1,), (10**15,), (2**62, 2**62)))
            stype = rng.choice(("numpy.ndarray", "torch.Tensor", "", "fl-dp/bfloat16", "fl-dp/x"))
            return Array(dtype, shape, stype, raw_bytes)


def _npy(rng: Random) -> bytes:
    stream = io.BytesIO()
    if rng.random() < 0.3:
        np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
        return stream.getvalue()
    shape = rng.choice(("(1000000000000000,)", "(-1,)", "(3", "(3,)*9", "()", "(2**9,)", "[3]"))
    kind = rng.choice(("<f8", "|O", "<f16", "|V7", "<M8[s]", "<U999999999", "x"))
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + rng.randbytes(24)


def _record(record: Any, rng: Random) -> Any:
    """A record with one entry changed, if it can hold the change."""
    entries = dict(record)
    key = rng.choice([*entries, "x"])
    match rng.randrange(6):
        case 0:
            entries.pop(key, None)
        case 1 if key in entries:
            entries[rng.choice(NAMES)] = entries.pop(key)
        case 2 if key in entries:
            entries[rng.choice(NAMES)] = entries[key]
        case _:
            entries[key] = _value(record, entries.get(key), rng)
    with suppress(TypeError, ValueError, OverflowError):
        return type(record)(entries)
    return record


def _value(record: Any, value: Any, rng: Random) -> Any:
    if isinstance(record, ArrayRecord):
        return hostile_array(value if isinstance(value, Array) else Array(np.zeros(3)), rng)
    if isinstance(record, MetricRecord):
        one = rng.choice(NUMBERS)
        return rng.choice((one, [one], [one] * 50, [float(one)] * 3, []))
    if isinstance(value, str) and value.startswith("{") and rng.random() < 0.8:
        return text_of(json.loads(value), rng)
    one = rng.choice(PLAIN)
    return rng.choice((one, one, [one], [one] * 50, b"\0\xff", [b"\0"]))
