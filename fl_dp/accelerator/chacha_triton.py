"""The stream of `chacha` in one Triton kernel, for CUDA.

A program makes `_BLOCKS` blocks in registers. Words are unsigned, so additions wrap around and the
right shift is logical. `chacha` compares a block with the RFC's before any is used.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# Triton compiles these functions itself: annotations would be types of its language.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCKS = 128


@triton.jit
def _rotated(word, bits: tl.constexpr):
    return (word << bits) | (word >> (32 - bits))


@triton.jit
def _quarter_round(a, b, c, d):
    a += b
    d = _rotated(d ^ a, 16)
    c += d
    b = _rotated(b ^ c, 12)
    a += b
    d = _rotated(d ^ a, 8)
    c += d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _word(start, index: tl.constexpr, zero):
    return zero + tl.load(start + index).to(tl.uint32, bitcast=True)


@triton.jit
def _store(word, begun, address, exists):
    tl.store(address, (word + begun).to(tl.int32, bitcast=True), mask=exists)


@triton.jit
def _chacha20(start, out, blocks, size: tl.constexpr):
    number = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    zero = (number * 0).to(tl.uint32)
    s0, s1 = _word(start, 0, zero), _word(start, 1, zero)
    s2, s3 = _word(start, 2, zero), _word(start, 3, zero)
    s4, s5 = _word(start, 4, zero), _word(start, 5, zero)
    s6, s7 = _word(start, 6, zero), _word(start, 7, zero)
    s8, s9 = _word(start, 8, zero), _word(start, 9, zero)
    s10, s11 = _word(start, 10, zero), _word(start, 11, zero)
    s12 = _word(start, 12, zero) + number.to(tl.uint32)
    s13, s14, s15 = _word(start, 13, zero), _word(start, 14, zero), _word(start, 15, zero)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, s12, s13, s14, s15
    for _ in tl.static_range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    block, exists = out + number * 16, number < blocks
    _store(x0, s0, block, exists)
    _store(x1, s1, block + 1, exists)
    _store(x2, s2, block + 2, exists)
    _store(x3, s3, block + 3, exists)
    _store(x4, s4, block + 4, exists)
    _store(x5, s5, block + 5, exists)
    _store(x6, s6, block + 6, exists)
    _store(x7, s7, block + 7, exists)
    _store(x8, s8, block + 8, exists)
    _store(x9, s9, block + 9, exists)
    _store(x10, s10, block + 10, exists)
    _store(x11, s11, block + 11, exists)
    _store(x12, s12, block + 12, exists)
    _store(x13, s13, block + 13, exists)
    _store(x14, s14, block + 14, exists)
    _store(x15, s15, block + 15, exists)


def by_one_kernel(start: Tensor, blocks: int) -> Tensor:
    """The stream's blocks, int32 `(blocks, 16)`; `start` is int32 `(16,)` on the device."""
    out = torch.empty(blocks, 16, dtype=torch.int32, device=start.device)
    if blocks:
        with torch.cuda.device_of(start):  # Triton launches on the current device
            _chacha20[(triton.cdiv(blocks, _BLOCKS),)](start, out, blocks, size=_BLOCKS)
    return out
