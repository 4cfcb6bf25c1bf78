"""Integers with the discrete Gaussian law, vectorised and accurate in every tail.

`P[X = x]` is proportional to `exp(-x^2 / (2 s^2))` on the integers (Canonne, Kamath and Steinke
2020, "The Discrete Gaussian for Differential Privacy"). Drawn by `buckets`, every integer's
probability is right to a relative 2^-49, so the log-likelihood ratio of d coordinates is off by at
most d * 2^-48. Inverting a 53-bit uniform can't reach that: at s = 2^30 it misses some integers
and hits others twice.

Around a real centre (`sample_around`), proposals are a little wider and acceptance contains it.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buckets import Buckets, Odds, width_bits
from .grid import IntegerLaw
from .randomness import PART, SecureRandom

TAIL = 12.5
"""Largest draw in standard deviations: the rest has mass below 2^-116."""

_LEAST_AROUND = 0.5
NO_FRACTIONS = 2.0**52
"""From here on float64 has no fractions: every centre of a draw must be smaller."""


class DiscreteGaussian(IntegerLaw):
    """The law N_Z(0, scale^2): integers, `scale` in grid units, not a noise multiplier.

    Attributes:
        centred: The proposals that are accepted around 0.
    """

    def __init__(self, scale: float) -> None:
        """Build the table.

        The standard deviation is `scale` to 1e-6 for `scale >= 1`, smaller below.

        Raises:
            ValueError: If `scale` is outside [0.05, 2^34].
        """
        super().__init__(scale)
        self.centred = Proposals(scale, off=0.0)

    @cached_property
    def _off_centre(self) -> Proposals:
        """The table that covers the law around every centre in [-1/2, 1/2]."""
        return Proposals(self.scale, off=0.5)

    def sample_around(self, centres: NDArray[np.float64], rng: SecureRandom) -> NDArray[np.int64]:
        """Return a draw of N_Z(centre, scale^2) for each centre.

        `P[X = x]` is proportional to `exp(-(x - centre)^2 / (2 s^2))` on the integers. The mean is
        the centre to 1e-16 for `s >= 1.5`, so real values get onto the grid without a rounding
        error. Every integer's probability is right to a relative 2^-49.

        Centres are real numbers in grid units.

        Returns:
            Integers, one per centre, shape `(d,)`.

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
        for start in range(0, out.size, PART):
            self._around(centres[start : start + PART], out[start : start + PART], rng)
        return out

    def _around(
        self, centres: NDArray[np.float64], out: NDArray[np.int64], rng: SecureRandom
    ) -> None:
        """Draw one value for each centre into `out`."""
        table = self._off_centre
        nearest = np.rint(centres)
        # The difference is exact: both are multiples of the last place of the centre.
        rejected = table.buckets.propose(out, rng, table.around(centres - nearest))
        np.add(nearest, out, out=out, casting="unsafe")
        if rejected.size:  # each for its own centre: a few per cent, then a few per cent of those
            drawn = np.empty(rejected.size, dtype=np.int64)
            self._around(centres[rejected], drawn, rng)
            out[rejected] = drawn

    def _propose(self, out: NDArray[np.int64], rng: SecureRandom) -> NDArray[np.intp]:
        """Fill `out` with proposals and return the rejected ones' indices."""
        return self.centred.buckets.propose(out, rng, self.centred.centred)


@lru_cache(maxsize=16)
def discrete_gaussian(scale: float) -> DiscreteGaussian:
    """A scale's law; the last ones are cached, as a table takes milliseconds."""
    return DiscreteGaussian(scale)


class Proposals:
    """Proposals for N_Z(f, scale^2) with any |f| <= `off`, and their acceptance.

    An integer is proposed by its bucket's largest value of the envelope `exp(-p^2 / (2 s^2))`,
    `p = max(0, |x| - off)`, which no centre's density exceeds. With `off` 1/2 that accepts
    `1 / (1 + 1 / (s sqrt(2 pi)))`: 88 % at s = 3, 99 % at 33.

    Attributes:
        envelope: The `p` of each bucket's largest value.
        buckets: The table.
    """

    def __init__(self, scale: float, *, off: float) -> None:
        """Build the table."""
        self.scale = scale
        bits = width_bits(scale)
        width = 1 << bits
        reach = math.ceil(TAIL * scale / width) + 1
        low = np.arange(-reach, reach + 1, dtype=np.int64) << bits
        high = low + (width - 1)
        peak = np.where(low >= 0, low, high)  # where the envelope is largest
        foot = np.where(low >= 0, high, low)
        # A multiple of 1/2, so exact.
        self.envelope = np.maximum(np.abs(peak) - off, 0.0)
        # The density at the end of a bucket that is farther from any centre.
        least = np.exp(self.log_ratio(np.abs(foot) + off, 0.0, self.envelope))
        self.buckets = Buckets(
            _densities(self.envelope, scale), least, first=-reach, width_bits=bits
        )

    def log_ratio(
        self, x: NDArray[Any], centre: NDArray[np.float64] | float, envelope: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Log of the density at `x` around `centre` over the envelope.

        As a product, so nothing cancels; `x` plus or minus `p` is exact.
        """
        apart = (x - envelope) - centre
        return -(apart * ((x + envelope) - centre)) / (2.0 * self.scale**2)

    def centred(
        self, value: NDArray[np.int64], bucket: NDArray[np.intp], draws: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """The odds of values around 0. See `buckets.Odds`."""
        return np.exp(self.log_ratio(value, 0.0, self.envelope[bucket]))

    def around(self, centre: NDArray[np.float64]) -> Odds:
        """The odds of values around a centre for each draw."""

        def odds(
            value: NDArray[np.int64], bucket: NDArray[np.intp], draws: NDArray[np.intp]
        ) -> NDArray[np.float64]:
            return np.exp(self.log_ratio(value, centre[draws], self.envelope[bucket]))

        return odds


def _densities(points: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """`exp(-p^2 / (2 scale^2))` for multiples of 1/2, to a relative 2^-51 in every tail.

    In float64, unlike in integers, an exponent of 40 alone would be wrong by 2^-48.
    """
    above, below = float(scale).as_integer_ratio()
    densities = []
    for doubled in (2.0 * points).tolist():
        exponent = (int(doubled) ** 2 * below**2 << 64) // (8 * above**2)  # in steps of 2^-64
        rounded = exponent / 2**64
        remainder = (exponent - int(rounded * 2.0**64)) / 2**64
        densities.append(math.exp(-rounded) * (1.0 - remainder))
    return np.array(densities)
