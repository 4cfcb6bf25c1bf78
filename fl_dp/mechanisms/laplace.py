"""The Laplace mechanism on a fixed integer grid, for scalars and short vectors, and its law.

At the same epsilon, and delta = 1e-5 for the Gaussian, a dense vector of d coordinates gets less
Laplace than Gaussian noise only up to d = 6 (epsilon 1) or d = 11 (epsilon 8): an L1 bound has to
cover the whole vector. Its use is a pure guarantee (delta = 0), and numbers that come alone.

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

from .clipping import Norm
from .events import LaplaceEvent
from .grid import GridMechanism, IntegerLaw
from .randomness import SecureRandom


class DiscreteLaplace(IntegerLaw):
    """The law on the integers that falls by `exp(-1 / scale)` a step; `scale` in grid units.

    `P[X = x]` is proportional to `exp(-|x| / s)` (Ghosh, Roughgarden and Sundararajan 2009; a
    sampler in exact arithmetic: Canonne, Kamath and Steinke 2020, algorithm 2). It is vectorised
    and accurate in every tail. A magnitude is a block number and a place inside the block. Blocks
    are a power of two wide and at least a halving of the density, so fair coins propose the block
    number and random bits the place, both exactly and without an end, and one acceptance step makes
    the proposal's law the target's. All that is left is the float64 error of one exponential: the
    probability of `x` is right to a relative `(4 + |x| / s) * 2^-52`. Inverting a 53-bit uniform
    can't say this: at s = 2^30 it misses some integers and hits others twice.
    """

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


@dataclass(frozen=True, kw_only=True)
class LaplaceMechanism(GridMechanism):
    """Release a sum of L1-clipped vectors with Laplace noise.

    Privacy: the released sum is `1 / noise_multiplier`-differentially private (delta = 0) for one
    unit (the sender of one vector), add/remove or zero-out neighbours, against anyone who sees the
    release. One unit moves the sum by at most `clipping_norm` in L1 and the discrete Laplace law's
    log-probabilities by at most that over the noise scale (Dwork et al. 2006; on the integers:
    Ghosh, Roughgarden and Sundararajan 2009).

    Attributes:
        noise_multiplier: Laplace scale of the noise on the *sum*, divided by `clipping_norm`.
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
            raise ValueError(
                "an L2-clipped vector has an L1 norm up to sqrt(d) times its clipping norm, which "
                f"Laplace noise does not cover: got clipping={str(self.clipping)!r}, write "
                "clipping='l1', or take GaussianMechanism"
            )

    @property
    def epsilon(self) -> float:
        """The pure epsilon of one release, `1 / noise_multiplier`."""
        return 1.0 / self.noise_multiplier

    def event(self) -> LaplaceEvent:
        """Return what one release over all units is charged as."""
        return LaplaceEvent(noise_multiplier=self.noise_multiplier)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum, `sqrt(2)` scales."""
        return math.sqrt(2.0) * self.noise_scale

    @cached_property
    def law(self) -> DiscreteLaplace:
        """The law of the noise on each coordinate of the sum, in grid steps."""
        return DiscreteLaplace(self.noise_scale / self.grid)
