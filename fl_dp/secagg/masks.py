"""Masks in Z_2^b: a seed's stream, added to words that wrap, of which the low b bits travel.

Words have w = 8, 16 or 32 bits, at least b. A uniform word's low b bits are uniform, and sums
modulo 2^b need no others: no bias, no rejection.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fl_dp.machine import processors

from .texts import prf

MOST_BITS = 32
SEED_BYTES = 16  # as strong as the curve that pairs agree on
_BLOCK = 16  # of AES
_WORTH_THREADS = 256  # chunks, about 5 ms
_ZEROS = bytes(1 << 16)  # a chunk that stays in the cache

Words = NDArray[np.unsignedinteger[Any]]
"""Little-endian unsigned words of 8, 16 or 32 bits."""


def word_dtype(bits: int) -> np.dtype[Any]:
    """The dtype in which sums modulo 2^bits are computed, bits 1 to 32."""
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"bits must lie in [1, {MOST_BITS}], got {bits}")
    if bits <= 8:
        return np.dtype("<u1")
    if bits <= 16:
        return np.dtype("<u2")
    return np.dtype("<u4")


def add_mask(total: Words, seed: bytes, *, sign: int, skip: int = 0) -> None:
    """Add a seed's mask in place, or subtract it.

    Args:
        total: Words, shape `(size,)`, contiguous; they wrap.
        seed: 16 bytes.
        sign: 1 or -1.
        skip: Words of the mask to skip, a whole number of AES blocks.
    """
    # Every seed has a key of its own, so the counter may start at 0 each time.
    counter = (skip * total.itemsize // _BLOCK).to_bytes(_BLOCK, "big")
    stream = Cipher(algorithms.AES(prf(seed, "mask")), modes.CTR(counter)).encryptor()
    # One buffer for all chunks: `update` would take new pages of memory, at five times the cost.
    buffer = bytearray(len(_ZEROS) + _BLOCK - 1)
    step = len(_ZEROS) // total.itemsize
    mask = np.frombuffer(buffer, total.dtype, step)
    combine = np.add if sign > 0 else np.subtract
    for start in range(0, total.size, step):
        part = total[start : start + step]
        stream.update_into(_ZEROS[: part.nbytes], buffer)
        combine(part, mask[: part.size], out=part)


def add_masks(total: Words, masks: Sequence[tuple[bytes, int]]) -> None:
    """Add masks, pairs of seed and sign, in place.

    Several threads share a long total by stretches of words.
    """
    step = len(_ZEROS) // total.itemsize
    chunks = -(-total.size // step)
    workers = min(processors(), chunks)
    if chunks * len(masks) < _WORTH_THREADS or workers == 1:
        workers = 1
    stretch = -(-chunks // max(workers, 1)) * step

    def work(start: int) -> None:
        part = total[start : start + stretch]
        for seed, sign in masks:
            add_mask(part, seed, sign=sign, skip=start)

    starts = range(0, total.size, max(stretch, 1))
    if len(starts) <= 1:
        for start in starts:
            work(start)
        return
    # Neither AES nor the sums hold Python's lock.
    with ThreadPoolExecutor(len(starts)) as pool:
        list(pool.map(work, starts))


def packed_bytes(bits: int, size: int) -> int:
    """Length in bytes of `size` packed words."""
    return sum(-(-size * width // 8) for width in _planes(bits))


def pack(values: Words, bits: int) -> bytes:
    """Return the low bits of each word, without gaps.

    A word is cut into planes whose widths are powers of two, low bits first: 20 bits are 16 and 4.
    A plane of 8, 16 or 32 bits is a little-endian array. A narrower one has its first value in a
    byte's low bits, and is padded with zeros.
    """
    planes, shift = [], 0
    for width in _planes(bits):
        plane = values >> values.dtype.type(shift) if shift else values
        if width < 8:
            lanes = np.zeros((-(-values.size * width // 8), 8 // width), np.uint8)
            low = values.dtype.type((1 << width) - 1)
            lanes.reshape(-1)[: values.size] = plane & low
            plane = np.zeros(len(lanes), np.uint8)
            for lane in range(8 // width):
                plane |= lanes[:, lane] << np.uint8(lane * width)
        planes.append(plane.astype(_plane_dtype(width), copy=False).tobytes())
        shift += width
    return b"".join(planes)


def unpack(blob: bytes, bits: int, size: int) -> Words:
    """The words that `pack` wrote, shape `(size,)`.

    Raises:
        ValueError: The length is not `packed_bytes(bits, size)`.
    """
    if len(blob) != packed_bytes(bits, size):
        raise ValueError(
            f"{size} words of {bits} bits are {packed_bytes(bits, size)} bytes, got {len(blob)}"
        )
    values = np.zeros(size, word_dtype(bits))
    start, shift = 0, 0
    for width in _planes(bits):
        length = -(-size * width // 8)
        plane = np.frombuffer(blob, np.uint8, length, start)
        if width < 8:
            low = np.uint8((1 << width) - 1)
            lanes = [(plane >> np.uint8(offset)) & low for offset in range(0, 8, width)]
            plane = np.stack(lanes, axis=1).reshape(-1)[:size]
        else:
            plane = plane.view(_plane_dtype(width))
        values |= plane.astype(values.dtype) << values.dtype.type(shift)
        start, shift = start + length, shift + width
    return values


def _planes(bits: int) -> list[int]:
    return [width for width in (32, 16, 8, 4, 2, 1) if bits & width]


def _plane_dtype(width: int) -> np.dtype[Any]:
    return np.dtype(f"<u{max(width // 8, 1)}")
