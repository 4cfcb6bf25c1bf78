"""The Laplace mechanism on a fixed integer grid, for scalars and short vectors, and its law.

At the same epsilon, and delta = 1e-5 for the Gaussian, a dense vector of d coordinates gets less
Laplace than Gaussian noise only up to d = 6 (epsilon 1) or d = 11 (epsilon 8): an L1 bound covers
the whole vector. Its uses are a pure guarantee (delta = 0), and single numbers.

    >>> mechanism = LaplaceMechanism(noise_multiplier=2.0, clipping_norm=1.0)
    >>> mechanism.epsilon
    0.5
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fl_dp.option_errors import OptionError

from .buckets import Buckets, width_bits
from .clipping import Norm
from .grid import GridMechanism, IntegerLaw
from .mechanism_events import LaplaceEvent
from .randomness import SecureRandom

_REACH = 16.0  # scales that the table covers: one draw in 9 million is beyond


class DiscreteLaplace(IntegerLaw):
    """The law on the integers that falls by `exp(-1 / scale)` per step; `scale` in grid units.

    `P[X = x]` is proportional to `exp(-|x| / s)` (Ghosh, Roughgarden and Sundararajan 2009; a
    sampler in exact arithmetic: Canonne, Kamath and Steinke 2020, algorithm 2). Drawn by `buckets`,
    the probability of `x` is right to a relative `(8 + 2 |x| / s) * 2^-52`, in every tail. The
    first and last bucket have no end: beyond the table the law has no memory.
    """

    def __init__(self, scale: float) -> None:
        """Build the table.

        The standard deviation is `sqrt(2) scale` for large scales, smaller for small.

        Raises:
            ValueError: If `scale` is outside [0.05, 2^34].
        """
        super().__init__(scale)
        bits = width_bits(scale)
        width = 1 << bits
        reach = math.ceil(_REACH * scale / width) + 1
        low = np.arange(-reach - 1, reach + 1, dtype=np.int64) << bits
        # Where a bucket's density is largest.
        self._peak = np.where(low >= 0, low, -low - (width - 1))
        self._fall = np.full(low.size, 1.0 / scale)
        self._fall[[0, -1]] = 0.0  # an end is accepted as a whole, and drawn afterwards
        mass = width * np.exp(-self._peak / scale)
        mass[[0, -1]] = np.exp(-self._peak[[0, -1]] / scale) / -math.expm1(-1.0 / scale)
        least = np.exp(-(width - 1) * self._fall)
        self._buckets = Buckets(mass, least, first=-reach - 1, width_bits=bits)
        self._end = reach << bits

    def _propose(self, out: NDArray[np.int64], rng: SecureRandom) -> NDArray[np.intp]:
        """Fill `out` with proposals and return the rejected ones' indices."""
        rejected = self._buckets.propose(out, rng, self._odds)
        if out.size and (out.max() >= self._end or out.min() < -self._end):
            for far, inner in (
                (np.flatnonzero(out >= self._end), self._end),
                (np.flatnonzero(out < -self._end), -self._end - 1),
            ):
                # Without memory: beyond an end the law is as beyond 0.
                out[far] = inner + np.sign(inner) * self._magnitudes(far.size, rng)
        return rejected

    def _odds(
        self, value: NDArray[np.int64], bucket: NDArray[np.intp], draws: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        odds: NDArray[np.float64] = np.exp(
            (self._peak[bucket] - np.abs(value)) * self._fall[bucket]
        )
        return odds

    def _magnitudes(self, count: int, rng: SecureRandom) -> NDArray[np.int64]:
        """`count` draws of the law on 0, 1, 2, ... that falls by the same factor."""
        magnitudes = np.empty(0, dtype=np.int64)
        while magnitudes.size < count:
            draws = self.sample(4 * count, rng)
            magnitudes = np.concatenate([magnitudes, draws[draws >= 0]])
        return magnitudes[:count]


@dataclass(frozen=True, kw_only=True)
class LaplaceMechanism(GridMechanism):
    """Release a sum of L1-clipped vectors with Laplace noise.

    Privacy: the released sum is `1 / noise_multiplier`-differentially private (delta = 0) for one
    unit (the sender of one vector), add/remove or zero-out neighbours, against anyone who sees the
    release. One unit moves the sum by at most `clipping_norm` in L1, and the discrete Laplace
    law's log-probabilities by at most that over the noise scale (Dwork et al. 2006; on the
    integers: Ghosh, Roughgarden and Sundararajan 2009).

    Attributes:
        noise_multiplier: Laplace scale of noise on the *sum*, divided by `clipping_norm`.
        clipping_norm: L1 bound on each vector, the sensitivity of the sum.
        clipping: Has to be L1.
    """

    clipping: Norm = Norm.L1

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a number is not positive and finite, or clipping is not by L1.
        """
        super().__post_init__()
        if self.clipping != Norm.L1:
            raise OptionError(
                "an L2-clipped vector has an L1 norm up to sqrt(d) times its clipping norm, which "
                f"Laplace noise does not cover: got clipping={str(self.clipping)!r}, write "
                "clipping='l1', or take GaussianMechanism",
                option="clipping",
            )

    @property
    def epsilon(self) -> float:
        """One release's pure epsilon, `1 / noise_multiplier`."""
        return 1.0 / self.noise_multiplier

    def event(self) -> LaplaceEvent:
        """The event that one release over all units is charged as."""
        return LaplaceEvent(noise_multiplier=self.noise_multiplier)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum: `sqrt(2)` scales."""
        return math.sqrt(2.0) * self.noise_scale

    @cached_property
    def law(self) -> DiscreteLaplace:
        """The law of the noise on each coordinate of the sum, in grid steps."""
        return DiscreteLaplace(self.noise_scale / self.grid)
