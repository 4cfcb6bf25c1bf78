"""The Laplace mechanism on a fixed integer grid, for scalars and short vectors.

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

from .clipping import Norm
from .discrete_laplace import DiscreteLaplace
from .grid import GridMechanism


@dataclass(frozen=True, kw_only=True)
class LaplaceMechanism(GridMechanism):
    """Release a sum of L1-clipped vectors with Laplace noise.

    Privacy: the released sum is `1 / noise_multiplier`-differentially private (delta = 0) for one
    unit (whoever sends one vector), add/remove or zero-out neighbours, against anyone who sees the
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

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum, `sqrt(2)` scales."""
        return math.sqrt(2.0) * self.noise_scale

    @cached_property
    def law(self) -> DiscreteLaplace:
        """The law of the noise on each coordinate of the sum, in grid steps."""
        return DiscreteLaplace(self.noise_scale / self.grid)
