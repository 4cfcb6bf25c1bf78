"""The Gaussian mechanism on a fixed integer grid.

Noise that is added to floating-point numbers shows through their spacing: a single coordinate can
give away which of two values it hides (Mironov 2012; Haney et al. 2022, "Precision-based attacks
and interval refining"). So everything that is summed is an integer multiple of one grid step,
chosen from the configuration and never from data, and the noise is an integer too.

    >>> mechanism = GaussianMechanism(noise_multiplier=1.1, clipping_norm=1.0)
    >>> total = sum(mechanism.encode(update) for update in updates)
    >>> released_sum = mechanism.release(total, SecureRandom())
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .clipping import clip_by_norm
from .discrete_gaussian import DiscreteGaussian
from .randomness import SecureRandom

_NOISE_BITS = 30  # the noise spans 2^30 to 2^31 grid steps: the grid is far below the noise
_EXACT_INTEGERS = 2.0**53


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism:
    """Release a sum of clipped vectors with Gaussian noise.

    Privacy: the released sum is as private as a Gaussian mechanism of this noise multiplier, for
    one unit (whoever sends one vector), add/remove or zero-out neighbours, against anyone who sees
    the release. Encoding rounds towards zero, so it never lengthens a clipped vector, and the
    discrete Gaussian has the continuous one's RDP curve (Canonne, Kamath and Steinke 2020, thm 4).

    Attributes:
        noise_multiplier: Standard deviation of the noise on the *sum*, divided by `clipping_norm`.
        clipping_norm: L2 bound on each vector, the sensitivity of the sum.
    """

    noise_multiplier: float
    clipping_norm: float

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is not positive and finite.
        """
        for name in ("noise_multiplier", "clipping_norm"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, got {value}")

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum."""
        return self.noise_multiplier * self.clipping_norm

    @property
    def grid(self) -> float:
        """The grid step, a power of two between 2^-31 and 2^-30 noise standard deviations."""
        return 2.0 ** (math.floor(math.log2(self.noise_std)) - _NOISE_BITS)

    @property
    def max_units(self) -> int:
        """How many vectors can be summed before float64 stops holding every integer."""
        return int(_EXACT_INTEGERS * self.grid / self.clipping_norm)

    @cached_property
    def _law(self) -> DiscreteGaussian:
        return DiscreteGaussian(self.noise_std / self.grid)

    def encode(self, update: ArrayLike) -> NDArray[np.float64]:
        """Clip one unit's vector and put it on the grid.

        Args:
            update: Any real array; see `clip_by_norm` for zero, NaN, infinity, 0-d and integers.

        Returns:
            Integer-valued float64 of the same shape, in grid steps. Sums of up to `max_units` of
            them are exact, whatever their order.
        """
        steps = clip_by_norm(update, self.clipping_norm)
        steps *= 1.0 / self.grid
        return np.trunc(steps, out=steps)

    def release(self, total: NDArray[np.float64], rng: SecureRandom) -> NDArray[np.float64]:
        """Add the noise to a sum of encoded vectors, once.

        Args:
            total: Sum of `encode`d vectors, in grid steps.
            rng: Where the noise comes from.

        Returns:
            The private sum in the units of the updates, float64, every entry a multiple of `grid`.
        """
        noise = self._law.sample(total.size, rng).reshape(total.shape)
        return (total + noise) * self.grid
