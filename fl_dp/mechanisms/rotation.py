"""A public rotation that spreads a vector over all its coordinates, so that few bits hold each.

    >>> spread = rotated(vector)  # no entry is much above the norm over the root of the size
    >>> vector = rotated_back(spread)

Signs, then a Walsh-Hadamard transform, as in Suresh et al. 2017, "Distributed Mean Estimation with
Limited Communication". It acts on the first 2^m coordinates, then on the last 2^m: no size is
padded. An entry exceeds t norms over 2^(m/2) with probability at most 2 exp(-t^2 / 2).

Privacy: it is linear and keeps L2 norms, whatever the signs. So they are public: they follow from
the size alone, and no message names them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

ROTATED = 2.0**-45
"""L2 error of `rotated`, for each unit of the norm: 40 stages of two transforms at most."""

_IN_CACHE = 1 << 13
_LARGEST = 2.0**500  # of an entry: sums of them do not overflow


def rotated(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A rotated copy, shape `(size,)`; numbers beyond 2^500 are cut to it."""
    copy = np.clip(values, -_LARGEST, _LARGEST)
    for part, signs in _stretches(copy):
        part *= signs
        _transform(part)
    return copy


def rotated_back(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A copy of what `rotated` was given, but for rounding."""
    copy = values.copy()
    for part, signs in reversed(list(_stretches(copy))):
        _transform(part)  # its own inverse
        part *= signs
    return copy


def largest_stretch(size: int) -> int:
    """The least number of coordinates that each is spread over, a power of two."""
    return 1 << max(size.bit_length() - 1, 0)


def _stretches(
    values: NDArray[np.float64],
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield views of the first and the last coordinates, with their signs."""
    size, stretch = values.size, largest_stretch(values.size)
    for name, start in (("first", 0), ("last", size - stretch)):
        if size and (start or name == "first"):
            text = f"fl-dp rotation 1 {name} {size}".encode()
            bits = np.frombuffer(hashlib.shake_256(text).digest(-(-stretch // 8)), np.uint8)
            signs = 1.0 - 2.0 * np.unpackbits(bits, count=stretch).astype(np.float64)
            yield values[start : start + stretch], signs


def _transform(values: NDArray[np.float64]) -> None:
    """Multiply by the orthonormal Walsh-Hadamard matrix, in place; the size is a power of two."""
    _add_and_subtract(values, np.empty_like(values))
    values *= float(values.size) ** -0.5


def _add_and_subtract(values: NDArray[np.float64], spare: NDArray[np.float64]) -> None:
    half = values.size // 2
    if values.size > _IN_CACHE:  # depth first: the halves soon fit into the cache
        upper, lower = values[:half], values[half:]
        np.subtract(upper, lower, out=spare[:half])
        upper += lower
        lower[:] = spare[:half]
        _add_and_subtract(upper, spare[:half])
        _add_and_subtract(lower, spare[:half])
        return
    source, target = values, spare
    # Each stage is the same: neighbours are added and subtracted (Pease 1968).
    for _ in range(values.size.bit_length() - 1):
        np.add(source[::2], source[1::2], out=target[:half])
        np.subtract(source[::2], source[1::2], out=target[half:])
        source, target = target, source
    if source is not values:
        values[:] = source
