"""The Gaussian mechanism on a fixed integer grid.

>>> mechanism = GaussianMechanism(noise_multiplier=1.1, clipping_norm=1.0)
>>> total = sum(mechanism.encode(update) for update in updates)
>>> noise = mechanism.noise(total.size, SecureRandom())
>>> released_sum = mechanism.release(total, noise)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .clipping import Norm
from .discrete_gaussian import DiscreteGaussian, discrete_gaussian
from .grid import GridMechanism
from .mechanism_events import GaussianEvent


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism(GridMechanism):
    """Release a sum of L2-clipped vectors with Gaussian noise.

    Privacy: the released sum is as private as a Gaussian mechanism of this noise multiplier, for
    one unit (the sender of one vector), add/remove or zero-out neighbours, against anyone who sees
    the release. Encoding rounds towards zero: it never lengthens a clipped vector. The discrete
    Gaussian has the continuous one's RDP curve (Canonne, Kamath and Steinke 2020, thm 4).

    Attributes:
        noise_multiplier: Standard deviation of the noise on the *sum*, divided by `clipping_norm`.
        clipping_norm: L2 bound on each vector, the sensitivity of the sum.
    """

    @property
    def clipping(self) -> Norm:
        """The norm that `clipping_norm` bounds: always L2."""
        return Norm.L2

    def event(self) -> GaussianEvent:
        """The event that one release over all units is charged as."""
        return GaussianEvent(noise_multiplier=self.noise_multiplier)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum."""
        return self.noise_scale

    @cached_property
    def law(self) -> DiscreteGaussian:
        """The law of the noise on each coordinate of the sum, in grid steps."""
        return discrete_gaussian(self.noise_scale / self.grid)
