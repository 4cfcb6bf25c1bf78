"""Integers with the discrete Laplace law, vectorised and accurate in every tail.

`P[X = x]` is proportional to `exp(-|x| / s)` on the integers (Ghosh, Roughgarden and Sundararajan
2009; a sampler in exact arithmetic: Canonne, Kamath and Steinke 2020, algorithm 2). A magnitude is
a block number and a place inside the block. Blocks are a power of two wide and at least a halving
of the density, so fair coins propose the block number and random bits the place, both exactly and
without an end, and one acceptance step makes the proposal's law the target's. All that is left is
the float64 error of one exponential: the probability of `x` is right to a relative
`(4 + |x| / s) * 2^-52`. Inverting a 53-bit uniform can't say this: at s = 2^30 it misses some
integers and hits others twice.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .grid import IntegerLaw
from .randomness import SecureRandom


class DiscreteLaplace(IntegerLaw):
    """The law on the integers that falls by `exp(-1 / scale)` a step; `scale` in grid units."""

    def __init__(self, scale: float) -> None:
        """Choose the blocks.

        Args:
            scale: The parameter `s` of the law, between 0.05 and 2^34. The standard deviation is
                `sqrt(2) s` for large `s` and smaller for small.

        Raises:
            ValueError: If `scale` is outside that range.
        """
        super().__init__(scale)
        # The density halves every s ln 2 steps: a block is the next power of two.
        self._width_bits = max(0, math.ceil(math.log2(scale * math.log(2.0))))
        # How much faster than by halves the density falls from block to block; not negative.
        self._excess = max(0.0, (1 << self._width_bits) / scale - math.log(2.0))

    def _tries(self, missing: int) -> int:
        """Return how many proposals to make: about half of them are accepted."""
        return 2 * missing + 8

    def _propose(self, count: int, rng: SecureRandom) -> NDArray[np.int64]:
        """Propose `count` values and return those that are accepted."""
        block = rng.halvings(count)
        words = rng.words(count)
        inside = (words & np.uint64((1 << self._width_bits) - 1)).astype(np.int64)
        # The place took at most the lower 34 bits: the sign's is fresh.
        sign = 1 - 2 * (words >> np.uint64(63)).astype(np.int64)
        magnitude = (block << self._width_bits) + inside
        odds = np.exp(-(inside / self.scale + block * self._excess))
        accepted = rng.fine_uniforms(count) < odds
        accepted &= (magnitude != 0) | (sign > 0)  # zero has no sign: one of its two ways is out
        magnitude *= sign
        return magnitude[accepted]
