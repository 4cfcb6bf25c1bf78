"""Integers with the discrete Gaussian law, vectorised and accurate in every tail.

`P[X = x]` is proportional to `exp(-x^2 / (2 s^2))` on the integers (Canonne, Kamath and Steinke
2020, "The Discrete Gaussian for Differential Privacy"). The integers are cut into buckets of equal
power-of-two width. A bucket is drawn from an alias table of exact 64-bit integer weights, the place
inside it uniformly, and the pair is accepted with the ratio of the target to what was proposed. The
weights' rounding is thus undone by the acceptance, and all that is left is the float64 error of one
exponential: every integer's probability is right to a relative 2^-49, so the log-likelihood ratio
of any d coordinates is off by at most d * 2^-48. A sampler that inverts a 53-bit uniform can't say
this: at s = 2^30 it misses some integers and hits others twice.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .grid import IntegerLaw
from .randomness import SecureRandom

_TAIL = 12.5  # buckets reach this many standard deviations: the rest has mass below 2^-116
_SLOT_BITS = 10
_THRESHOLD_BITS = 64 - _SLOT_BITS


class DiscreteGaussian(IntegerLaw):
    """The law N_Z(0, scale^2): integers, `scale` in units of the grid, not a noise multiplier."""

    def __init__(self, scale: float) -> None:
        """Build the tables.

        Args:
            scale: The parameter `s` of the law, between 0.05 and 2^34. The standard deviation is
                `s` to 1e-6 for `s >= 1` and smaller below.

        Raises:
            ValueError: If `scale` is outside that range.
        """
        super().__init__(scale)
        # 16 to 32 buckets a deviation: at most 803 in all, which fit into the table's 1024 slots.
        self._width_bits = max(0, math.floor(math.log2(scale)) - 4)
        width = 1 << self._width_bits
        reach = math.ceil(_TAIL * scale / width) + 1
        low = np.arange(-reach, reach + 1, dtype=np.int64) * width
        high = low + (width - 1)
        self._low = low
        self._peak = np.where(low >= 0, low, high)  # where the bucket's density is largest
        foot = np.where(low >= 0, high, low)
        weights, ideal = _integer_weights(self._log_ratio(self._peak, np.zeros_like(low)))
        # Undoes the rounding of the weights.
        self._cap = ideal / np.array(weights, dtype=np.float64)
        self._keep, self._alias = _alias_table(weights)
        # Below the least ratio in its bucket a proposal is accepted without computing its own;
        # the margin covers the rounding of that least ratio.
        surely = self._cap * np.exp(self._log_ratio(foot, self._peak)) * (1 - 1e-9)
        self._surely = (surely * 2.0**32).astype(np.uint64)

    def _log_ratio(self, x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.float64]:
        """Log of the density at `x` over that at `y`; as a product, so that nothing cancels."""
        apart = (x - y).astype(np.float64)
        return -(apart * (x + y).astype(np.float64)) / (2.0 * self.scale**2)

    def _propose(self, count: int, rng: SecureRandom) -> NDArray[np.int64]:
        """Propose `count` values and return those that are accepted."""
        words = rng.words(2 * count)
        first, second = words[:count], words[count:]
        slot = (first >> np.uint64(_THRESHOLD_BITS)).astype(np.intp)
        kept = (first & np.uint64((1 << _THRESHOLD_BITS) - 1)) < self._keep[slot]
        bucket = np.where(kept, slot, self._alias[slot])
        inside = (second & np.uint64((1 << self._width_bits) - 1)).astype(np.int64)
        value = self._low[bucket] + inside
        coin = second >> np.uint64(32)  # fresh bits: the place took at most the lower 30
        accepted = coin < self._surely[bucket]
        unsure = np.flatnonzero(~accepted)
        where = bucket[unsure]
        ratio = self._cap[where] * np.exp(self._log_ratio(value[unsure], self._peak[where]))
        # The same coin with 53 more bits: it was at least `surely`, and that has to count.
        fine = (coin[unsure].astype(np.float64) + rng.uniforms(unsure.size)) * 2.0**-32
        accepted[unsure] = fine < ratio
        return value[accepted]


def _integer_weights(log_density: NDArray[np.float64]) -> tuple[list[int], NDArray[np.float64]]:
    """Return integer weights that sum to 2^64 and the real ones, each at most its integer."""
    density = np.exp(log_density)
    ideal = density * (2.0**64 * (1 - 2.0**-20) / float(density.sum()))
    # Rounded up, so that no acceptance ratio exceeds 1; the 2^-20 leaves room for it.
    weights = [int(weight) + 1 for weight in ideal]
    weights[len(weights) // 2] += (1 << 64) - sum(weights)
    return weights, ideal


def _alias_table(weights: list[int]) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """Split integer weights over equal slots exactly (Walker 1977; Vose 1991).

    Returns:
        For each slot, the threshold below which the slot's own index is kept, and its alias.
    """
    slots, capacity = 1 << _SLOT_BITS, 1 << _THRESHOLD_BITS
    left = weights + [0] * (slots - len(weights))
    keep = np.zeros(slots, dtype=np.uint64)
    alias = np.zeros(slots, dtype=np.intp)
    small = [i for i in range(slots) if left[i] < capacity]
    large = [i for i in range(slots) if left[i] >= capacity]
    while small:
        slot, donor = small.pop(), large[-1]
        keep[slot], alias[slot] = left[slot], donor
        left[donor] -= capacity - left[slot]
        if left[donor] < capacity:
            small.append(large.pop())
    for slot in large:
        keep[slot], alias[slot] = capacity, slot
    return keep, alias
