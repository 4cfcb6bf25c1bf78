"""Canonical bytes to hash, sign or derive keys from, and JSON that crosses the wire.

No two inputs give the same frame. JSON is read strictly: an adversary may have written it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from fl_dp.documents import parsed_object

_VERSION = b"fl-dp secagg 1"


def frame(label: str, *parts: bytes | int) -> bytes:
    """The bytes of some parts under a label, each after its length.

    Args:
        label: The purpose. Another label gives other bytes.
        *parts: Bytes, or integers in [0, 2^64), which become 8 bytes, big-endian.

    Raises:
        OverflowError: An integer is out of range.
    """
    raw = [_VERSION, label.encode()]
    for part in parts:
        raw.append(part.to_bytes(8, "big") if isinstance(part, int) else part)
    return b"".join(len(part).to_bytes(4, "big") + part for part in raw)


def digest(label: str, *parts: bytes | int) -> bytes:
    """SHA-256 of a frame: 32 bytes."""
    return hashlib.sha256(frame(label, *parts)).digest()


def prf(key: bytes, label: str, *parts: bytes | int) -> bytes:
    """HMAC-SHA256 of a frame, 32 bytes, indistinguishable from random without the key."""
    return hmac.digest(key, frame(label, *parts), "sha256")


_LONGEST_NAME = 200
_HEX = re.compile(r"(?:[0-9a-f]{2})*")


def canonical(document: Any) -> str:
    """The one JSON text of a document: keys sorted, no spaces, ASCII."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def object_of(text: str, keys: Sequence[str], subject: str, *, longest: int) -> dict[str, Any]:
    """Read a JSON object with exactly these keys; `subject` is its plural noun, for the error.

    A peer's text of more than `longest` characters is not parsed.

    Raises:
        ValueError: The text is anything else.
    """
    return fields_of(parsed_object(text, subject, longest=longest), keys, subject)


def fields_of(document: Any, keys: Sequence[str], subject: str) -> dict[str, Any]:
    """Return a document that is an object of exactly these keys.

    Raises:
        ValueError: It is anything else.
    """
    if not isinstance(document, dict) or document.keys() != set(keys):
        raise ValueError(f"{subject} have the keys {', '.join(sorted(keys))}, and no others")
    return document


def hex_bytes(value: Any, length: int | None, name: str) -> bytes:
    """Read `length` bytes in lower-case hex; None: any number. `name` is for the error.

    Raises:
        ValueError: The value is anything else.
    """
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError(f"{name} must be bytes in lower-case hex")
    if length is not None and len(value) != 2 * length:
        raise ValueError(f"{name} must be {length} bytes, got {len(value) // 2}")
    return bytes.fromhex(value)


def require_integers(low: int, high: int, **values: Any) -> None:
    """Refuse values other than integers in [low, high].

    Raises:
        ValueError: Its text names the field.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name} must be an integer in [{low}, {high}], got {value!r:.50}")


def require_name(**values: Any) -> None:
    """Refuse values other than a printable text of 1 to 200 characters.

    Raises:
        ValueError: Its text names the field.
    """
    for name, value in values.items():
        fits = isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable()
        if not fits:
            raise ValueError(f"{name} must be 1 to {_LONGEST_NAME} printable characters")


def require_ascending(high: int, **values: Sequence[Any]) -> None:
    """Refuse sequences other than ascending integers in [0, high], each once.

    Raises:
        ValueError: Its text names the field.
    """
    for name, numbers in values.items():
        for number in numbers:
            require_integers(0, high, **{name: number})
        if any(one >= following for one, following in pairwise(numbers)):
            raise ValueError(f"{name} must be in ascending order, each once")


def float_of(value: Any, name: str) -> float:
    """Read what `float.hex` wrote.

    Raises:
        ValueError: It is anything else, or not finite.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text of float.hex()")
    try:
        number = float.fromhex(value)
    except OverflowError as error:
        raise ValueError(f"{name} must be finite") from error
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite")
    return number
