"""Encoding of everything that is hashed, signed or keyed: no two inputs give the same bytes."""

from __future__ import annotations

import hashlib
import hmac

_VERSION = b"fl-dp secagg 1"


def frame(label: str, *parts: bytes | int) -> bytes:
    """Return the bytes of some parts under a label: each with its length, so that none runs over.

    Args:
        label: What they are for: the same parts under another label are other bytes.
        *parts: Bytes, or integers in [0, 2^64), which become 8 bytes, big-endian.

    Raises:
        OverflowError: If an integer is out of range.
    """
    raw = (each.to_bytes(8, "big") if isinstance(each, int) else each for each in parts)
    return b"".join(
        len(each).to_bytes(4, "big") + each for each in (_VERSION, label.encode(), *raw)
    )


def digest(label: str, *parts: bytes | int) -> bytes:
    """Return SHA-256 of a frame: 32 bytes."""
    return hashlib.sha256(frame(label, *parts)).digest()


def prf(key: bytes, label: str, *parts: bytes | int) -> bytes:
    """Return HMAC-SHA256 of a frame: 32 bytes that nobody without the key can tell from random."""
    return hmac.digest(key, frame(label, *parts), "sha256")
