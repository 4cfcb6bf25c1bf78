"""Masks in Z_2^b: a seed's stream, added to words that wrap, of which the low b bits travel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.unsignedinteger[Any]]
"""Little-endian unsigned words of 8, 16 or 32 bits."""


def word_dtype(bits: int) -> np.dtype[Any]:
    """Return the dtype in which sums modulo 2^bits are computed, bits 1 to 32."""
    raise NotImplementedError


def add_mask(total: Words, seed: bytes, *, sign: int) -> None:
    """Add a seed's mask in place, or subtract it.

    Args:
        total: Words, shape `(size,)`; they wrap.
        seed: 32 bytes.
        sign: 1 or -1.
    """
    raise NotImplementedError


def packed_bytes(bits: int, size: int) -> int:
    """Return how long `pack` makes so many words."""
    raise NotImplementedError


def pack(values: Words, bits: int) -> bytes:
    """Return the low bits of each word, without gaps."""
    raise NotImplementedError


def unpack(blob: bytes, bits: int, size: int) -> Words:
    """Return the words that `pack` wrote.

    Raises:
        ValueError: If the length is another than `packed_bytes`.
    """
    raise NotImplementedError
