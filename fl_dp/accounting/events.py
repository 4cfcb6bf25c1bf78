"""What happened, as plain data: an event describes one release and interprets nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting


@dataclass(frozen=True, kw_only=True, order=True)
class PoissonGaussianEvent:
    """One release of a Gaussian-noised sum over a Poisson sample of the units.

    Attributes:
        noise_multiplier: Noise standard deviation on the sum over its L2 sensitivity.
        sampling_rate: Upper bound on the probability with which each unit is in the sample,
            independently of all others and unseen by the adversary. 1 means everybody.
    """

    noise_multiplier: float
    sampling_rate: float

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If the multiplier is not positive and finite, or the rate not in (0, 1].
        """
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise ValueError(
                f"noise_multiplier must be positive and finite, got {self.noise_multiplier}"
            )
        if not 0.0 < self.sampling_rate <= 1.0:
            raise ValueError(f"sampling_rate must lie in (0, 1], got {self.sampling_rate}")

    def to_dp_accounting(self) -> dp_accounting.DpEvent:
        """Return the event of dp-accounting that an accountant there can compose."""
        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.sampling_rate == 1.0:
            return gaussian
        return dp_accounting.PoissonSampledDpEvent(self.sampling_rate, gaussian)
