"""Integers with the discrete Gaussian law, vectorised and accurate in every tail.

`P[X = x]` is proportional to `exp(-x^2 / (2 s^2))` on the integers (Canonne, Kamath and Steinke
2020, "The Discrete Gaussian for Differential Privacy"). The integers are cut into buckets of equal
power-of-two width. A bucket is drawn from an alias table of exact 64-bit integer weights, the place
inside it uniformly, and the pair is accepted with the ratio of the target to what was proposed. The
weights' rounding is thus undone by the acceptance, and all that is left is the float64 error of one
exponential: every integer's probability is right to a relative 2^-49, so the log-likelihood ratio
of any d coordinates is off by at most d * 2^-48. A sampler that inverts a 53-bit uniform can't say
this: at s = 2^30 it misses some integers and hits others twice.

Around a real centre (`sample_around`) the same proposals do, a little wider: the acceptance, which
is computed anyway, has the centre in it.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .grid import IntegerLaw
from .randomness import SecureRandom

TAIL = 12.5
"""Standard deviations that a draw reaches at most: the rest has mass below 2^-116."""

_LEAST_AROUND = 0.5
NO_FRACTIONS = 2.0**52
"""Where float64 has no fractions any more: no centre of a draw may reach it."""

_CHUNK = 1 << 15  # draws at a time: the work arrays stay in the cache
_SLOT_BITS = 10
_THRESHOLD_BITS = 64 - _SLOT_BITS


class DiscreteGaussian(IntegerLaw):
    """The law N_Z(0, scale^2): integers, `scale` in units of the grid, not a noise multiplier."""

    def __init__(self, scale: float) -> None:
        """Build the table.

        Args:
            scale: The parameter `s` of the law, between 0.05 and 2^34. The standard deviation is
                `s` to 1e-6 for `s >= 1` and smaller below.

        Raises:
            ValueError: If `scale` is outside that range.
        """
        super().__init__(scale)
        self._centred = _Buckets(scale, off=0.0)

    @cached_property
    def _off_centre(self) -> _Buckets:
        """The table whose proposals cover the law around every centre in [-1/2, 1/2]."""
        return _Buckets(self.scale, off=0.5)

    def sample_around(self, centres: NDArray[np.float64], rng: SecureRandom) -> NDArray[np.int64]:
        """Return a draw of N_Z(centre, scale^2) for each centre.

        `P[X = x]` is proportional to `exp(-(x - centre)^2 / (2 s^2))` on the integers. The mean is
        the centre to 1e-16 for `s >= 1.5`, so real values are put on the grid without a rounding
        error of their own. Every integer's probability is right to a relative 2^-49.

        Args:
            centres: Real numbers in units of the grid, float64 of shape `(d,)`.
            rng: Where the draws come from.

        Returns:
            Integers, shape `(d,)`.

        Raises:
            ValueError: If `scale` is below 0.5, where hardly any proposal would be accepted, or a
                centre is not finite or so large that float64 has no fractions there.
        """
        if self.scale < _LEAST_AROUND:
            raise ValueError(
                f"scale must be at least {_LEAST_AROUND} around centres that are no integers, got "
                f"{self.scale}"
            )
        # "not <" instead of ">=": a NaN has to fail, too.
        if centres.size and not np.abs(centres).max() < NO_FRACTIONS:
            raise ValueError(
                f"centres must be finite and below {NO_FRACTIONS:.3g} grid steps: clip them"
            )
        out = np.empty(centres.size, dtype=np.int64)
        rejected = [np.empty(0, dtype=np.intp)]
        for start in range(0, centres.size, _CHUNK):
            part = centres[start : start + _CHUNK]
            nearest = np.rint(part)
            # The difference is exact: both are multiples of the last place of the centre.
            value, accepted = self._off_centre.propose(part - nearest, rng)
            np.add(nearest, value, out=out[start : start + _CHUNK], casting="unsafe")
            rejected.append(start + np.flatnonzero(~accepted))
        again = np.concatenate(rejected)
        if again.size:  # each for its own centre: a few per cent, then a few per cent of those
            out[again] = self.sample_around(centres[again], rng)
        return out

    def _propose(self, count: int, rng: SecureRandom) -> NDArray[np.int64]:
        """Propose `count` values and return those that are accepted."""
        value, accepted = self._centred.propose(np.zeros(count), rng)
        return value[accepted]


@lru_cache(maxsize=16)
def discrete_gaussian(scale: float) -> DiscreteGaussian:
    """Return the law of a scale, whose tables take milliseconds: the last ones are kept.

    Args:
        scale: As for `DiscreteGaussian`. A law has no state: the caller passes the randomness.
    """
    return DiscreteGaussian(scale)


class _Buckets:
    """Proposals for N_Z(f, scale^2) with any |f| <= `off`, and their acceptance.

    An integer is proposed by its bucket's largest value of the envelope `exp(-p^2 / (2 s^2))`,
    `p = max(0, |x| - off)`: no centre's density exceeds it. With `off` 1/2 that accepts
    `1 / (1 + 1 / (s sqrt(2 pi)))`: 88 % at s = 3, 99 % at 33.
    """

    def __init__(self, scale: float, *, off: float) -> None:
        self.scale = scale
        # 16 to 32 buckets a deviation: at most 805 in all, which fit into the table's 1024 slots.
        self._width_bits = max(0, math.floor(math.log2(scale)) - 4)
        width = 1 << self._width_bits
        reach = math.ceil(TAIL * scale / width) + 1
        low = np.arange(-reach, reach + 1, dtype=np.int64) * width
        high = low + (width - 1)
        self._low = low
        peak = np.where(low >= 0, low, high)  # where the envelope is largest
        foot = np.where(low >= 0, high, low)
        # A multiple of 1/2, so exact.
        self._envelope = np.maximum(np.abs(peak) - off, 0.0)
        zero = np.zeros(low.size)
        weights, ideal = _integer_weights(_densities(self._envelope, scale))
        # Undoes the rounding of the weights.
        self._cap = ideal / np.array(weights, dtype=np.float64)
        self._keep, self._alias = _alias_table(weights)
        # Below the least ratio in its bucket, whatever the centre, a proposal is accepted without
        # computing its own; the margin covers the rounding of that least ratio.
        farthest = np.abs(foot) + off
        surely = self._cap * np.exp(self._log_ratio(farthest, zero, self._envelope)) * (1 - 1e-9)
        self._surely = (surely * 2.0**32).astype(np.uint64)

    def _log_ratio(
        self, x: NDArray[Any], centre: NDArray[np.float64], envelope: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Log of the density at `x` around `centre` over the envelope `exp(-p^2 / (2 s^2))`.

        As a product, so that nothing cancels; `x` plus or minus `p` is exact.
        """
        apart = (x - envelope) - centre
        return -(apart * ((x + envelope) - centre)) / (2.0 * self.scale**2)

    def propose(
        self, centre: NDArray[np.float64], rng: SecureRandom
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return a proposal for each centre, and whether it is accepted."""
        count = centre.size
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
        log_ratio = self._log_ratio(value[unsure], centre[unsure], self._envelope[where])
        # The same coin with 53 more bits: it was at least `surely`, and that has to count.
        fine = (coin[unsure].astype(np.float64) + rng.uniforms(unsure.size)) * 2.0**-32
        accepted[unsure] = fine < self._cap[where] * np.exp(log_ratio)
        return value, accepted


def _densities(places: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Return `exp(-p^2 / (2 scale^2))` for multiples of 1/2, to a relative 2^-51 in every tail.

    In float64 an exponent of 40 alone would be wrong by 2^-48. In integers it is not.
    """
    above, below = float(scale).as_integer_ratio()
    found = []
    for twice in (2.0 * places).tolist():
        exponent = (int(twice) ** 2 * below**2 << 64) // (8 * above**2)  # in steps of 2^-64
        rounded = exponent / 2**64
        left = (exponent - int(rounded * 2.0**64)) / 2**64
        found.append(math.exp(-rounded) * (1.0 - left))
    return np.array(found)


def _integer_weights(density: NDArray[np.float64]) -> tuple[list[int], NDArray[np.float64]]:
    """Return integer weights that sum to 2^64 and the real ones, each at most its integer."""
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
