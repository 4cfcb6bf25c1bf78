"""ChaCha20 (RFC 8439) in integer operators of torch: a cryptographic stream on any device.

    >>> start = torch.empty(16, dtype=torch.int32)
    >>> write_start(start, rng.key())
    >>> words = key_stream(start.to(device), 1000)

Additions of int32 wrap around, as the cipher needs; their right shift is arithmetic, so the bits
that come in are masked off. Where Triton is importable on CUDA, one kernel makes the same words.
Before its first word on a device, each process compares a block with the RFC's.

Privacy: a key is used once, so its nonce is zero and its counter starts at 0. Whoever reads words
can subtract noise: nothing of them may be kept. Work arrays, which the key can be computed from,
are overwritten.

Reference: Nir and Langley 2018, "ChaCha20 and Poly1305 for IETF Protocols", RFC 8439.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

logger = logging.getLogger("flwr.fl_dp")

START = 16
"""Words of 32 bits that a stream starts from: constants, key, counter and nonce."""

_CONSTANTS = b"expand 32-byte k"
_MOST_BLOCKS = 1 << 31  # of one key; the RFC allows twice as many
_BLOCKS_AT_ONCE = {"cpu": 1 << 13, "cuda": 1 << 22}  # work arrays of 640 KiB, or of 320 MiB

_Way: TypeAlias = Callable[[Tensor, int], Tensor]
"""Takes the start on its device and a number of blocks; returns int32 `(blocks, 16)`."""


def write_start(
    start: Tensor, key: bytes | bytearray, *, counter: int = 0, nonce: bytes = bytes(12)
) -> None:
    """Write a stream's start into int32 `(16,)` of the host.

    `counter` and `nonce` are for the RFC's own vectors.

    Raises:
        ValueError: The key has not 32 bytes, or the nonce not 12.
    """
    if len(key) != 32 or len(nonce) != 12:
        raise ValueError(
            f"a key has 32 bytes and a nonce 12, got {len(key)} and {len(nonce)}: take "
            "SecureRandom.key(), and no nonce"
        )
    memory = start.numpy().view(np.uint8)
    begin = 0
    for part in (_CONSTANTS, key, counter.to_bytes(4, "little"), nonce):
        memory[begin : begin + len(part)] = np.frombuffer(part, dtype=np.uint8)
        begin += len(part)


def key_stream(start: Tensor, words: int) -> Tensor:
    """Return the stream's first words of 64 bits, int64 `(words,)`, on the device of the start.

    Raises:
        ValueError: One key does not give as many.
        RuntimeError: This device does not compute the RFC's block.
    """
    blocks = -(-words // 8)
    if blocks > _MOST_BLOCKS:
        raise ValueError(f"one key gives {8 * _MOST_BLOCKS} words, got {words}: use more keys")
    way = _checked_way(start.device, os.getpid())
    return way(start, blocks).view(torch.int64).flatten()[:words]


@cache
def _checked_way(device: torch.device, process: int) -> _Way:
    """The quickest way that gives the block of RFC 8439, 2.3.2, in this process."""
    for way in _ways(device):
        try:
            if _gives_the_block(way, device):
                return way
            logger.error("%s gives wrong words of ChaCha20 on %s", way.__name__, device)
        except Exception:  # Triton needs a compiler of the host, for example
            logger.warning("%s can't run on %s", way.__name__, device, exc_info=True)
    raise RuntimeError(
        f"ChaCha20 on {device} does not give the block of RFC 8439: no noise is drawn there; train "
        "on another device"
    )


def _ways(device: torch.device) -> Iterator[_Way]:
    if device.type == "cuda":
        try:
            from .chacha_triton import by_one_kernel
        except ImportError:
            pass
        else:
            yield by_one_kernel
    yield by_operators


def _gives_the_block(way: _Way, device: torch.device) -> bool:
    """Compare with RFC 8439, 2.3.2: key 0 to 31, counter 1, a nonce."""
    start = torch.empty(START, dtype=torch.int32)
    write_start(start, bytes(range(32)), counter=1, nonce=bytes.fromhex("000000090000004a00000000"))
    block = bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    return way(start.to(device), 1).cpu().numpy().tobytes() == block


def by_operators(start: Tensor, blocks: int) -> Tensor:
    """The stream's blocks by operators, about 550 for any number of blocks at once."""
    out = torch.empty(blocks, START, dtype=torch.int32, device=start.device)
    at_once = _BLOCKS_AT_ONCE.get(start.device.type, _BLOCKS_AT_ONCE["cpu"])
    for first in range(0, blocks, at_once):
        size = min(at_once, blocks - first)
        state = start[:, None].repeat(1, size)
        state[12] += torch.arange(first, first + size, dtype=torch.int32, device=start.device)
        work = torch.empty(5, 4, size, dtype=torch.int32, device=start.device)
        work[:4] = state.view(4, 4, size)
        mixed = _mixed(*work.unbind(0))
        for row, (words, begun) in enumerate(zip(mixed, state.view(4, 4, size), strict=True)):
            out[first : first + size, 4 * row : 4 * row + 4] = words.add_(begun).T
        work.zero_()
        state.zero_()
    return out


def _mixed(
    a: Tensor, b: Tensor, c: Tensor, d: Tensor, spare: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Twenty rounds in the given memory; each is four rows of words, `(4, blocks)`."""

    def rolled(rows: Tensor, by: int) -> Tensor:
        nonlocal spare
        moved, spare = torch.cat((rows[by:], rows[:by]), out=spare), rows
        return moved

    for _ in range(10):
        _quarter_rounds(a, b, c, d, spare)
        b, c, d = rolled(b, 1), rolled(c, 2), rolled(d, 3)  # diagonals become columns
        _quarter_rounds(a, b, c, d, spare)
        b, c, d = rolled(b, 3), rolled(c, 2), rolled(d, 1)
    return a, b, c, d


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor, spare: Tensor) -> None:
    """Four quarter rounds at once, one a column."""
    for added, by, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        added.add_(by)
        turned.bitwise_xor_(added)
        torch.bitwise_right_shift(turned, 32 - bits, out=spare)
        spare.bitwise_and_((1 << bits) - 1)
        turned.bitwise_left_shift_(bits).bitwise_or_(spare)
