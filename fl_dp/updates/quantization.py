"""A vector in a few bits per number: stochastic rounding to the levels of its chunk.

A chunk's `2**bits` levels are equally spaced from its least number to its largest. A number
becomes the level below or above it, at random: right on average, and off by less than their
distance. Numbers on the levels do not change: a vector of two values is one bit per number, and
nothing is lost.

Reference: Alistarh et al. 2017, "QSGD", section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST = 1e300  # numbers up to here have a finite distance

_CHUNK = 2048  # numbers that share their levels: a multiple of 8, so that chunks end on bytes
_BLOCK = 32 * _CHUNK  # numbers that are packed at a time: the work arrays stay in the cache
_NARROWEST = 1e-290  # a chunk of numbers that differ by less is sent as a constant


@dataclass(frozen=True)
class Quantized:
    """A vector of `size` numbers in `bits` bits each.

    Attributes:
        scales: Each chunk's least number and its distance to the largest, shape `(chunks, 2)`.
        codes: Numbers of the levels, packed, shape `(ceil(size * bits / 8),)`.
    """

    scales: NDArray[np.float64]
    codes: NDArray[np.uint8]


def scales_shape(size: int) -> tuple[int, int]:
    """Shape of the scales of `size` numbers."""
    return math.ceil(size / _CHUNK), 2


def codes_shape(size: int, bits: int) -> tuple[int]:
    """Shape of the packed codes of `size` numbers."""
    return (math.ceil(size * bits / 8),)


def quantize(values: NDArray[np.float64], bits: int, rng: np.random.Generator) -> Quantized:
    """Round each number to one of its chunk's levels, right on average."""
    top = (1 << bits) - 1
    scales = np.empty(scales_shape(values.size))
    codes = np.empty(codes_shape(values.size, bits), dtype=np.uint8)
    for block, chunks, packed in _blocks(values.size, bits):
        part = values[block]
        starts = np.arange(0, part.size, _CHUNK)
        low = np.minimum.reduceat(part, starts)
        width = np.maximum.reduceat(part, starts) - low
        # A chunk of one value has one level: all its codes are 0.
        levels = np.divide(top, width, out=np.zeros_like(width), where=width > _NARROWEST)
        positions = (part - _repeated(low, part.size)) * _repeated(levels, part.size)
        # E[floor(x + U)] = x for U uniform in [0, 1): right on average. The minimum is for x = top.
        drawn = np.minimum(np.floor(positions + rng.random(part.size)), top)
        codes[packed] = _packed(drawn.astype(np.uint16), bits)
        scales[chunks] = np.stack([low, width], axis=1)
    return Quantized(scales, codes)


def dequantize(quantized: Quantized, size: int, bits: int) -> NDArray[np.float64]:
    """The `size` numbers; scales and codes of the right shapes may hold any values.

    Raises:
        ValueError: The scales are none of numbers up to `LARGEST`.
    """
    low, width = quantized.scales.T
    if not ((np.abs(low) <= LARGEST) & (width >= 0.0) & (width <= 2.0 * LARGEST)).all():
        raise ValueError("the scales are none of finite numbers")
    step = width / ((1 << bits) - 1)
    values = np.empty(size)
    for block, chunks, packed in _blocks(size, bits):
        part = values[block]
        part[...] = _unpacked(quantized.codes[packed], part.size, bits)
        part *= _repeated(step[chunks], part.size)
        part += _repeated(low[chunks], part.size)
    return values


def _blocks(size: int, bits: int) -> Iterator[tuple[slice, slice, slice]]:
    """Slices of each block's numbers, scales and packed codes."""
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        yield (
            slice(start, stop),
            slice(start // _CHUNK, math.ceil(stop / _CHUNK)),
            slice(start * bits // 8, math.ceil(stop * bits / 8)),
        )


def _repeated(chunk_values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """One value per number, given one per chunk."""
    return np.repeat(chunk_values, _CHUNK)[:size]


def _packed(codes: NDArray[np.uint16], bits: int) -> NDArray[np.uint8]:
    """Write the low bits of the codes after each other, highest first."""
    wide = np.unpackbits(codes.astype(">u2").view(np.uint8)).reshape(-1, 16)
    return np.packbits(wide[:, 16 - bits :])


def _unpacked(packed: NDArray[np.uint8], size: int, bits: int) -> NDArray[np.uint16]:
    """The `size` codes that `_packed` wrote."""
    wide = np.zeros((size, 16), dtype=np.uint8)
    wide[:, 16 - bits :] = np.unpackbits(packed, count=size * bits).reshape(size, bits)
    return np.packbits(wide).view(">u2").astype(np.uint16)
