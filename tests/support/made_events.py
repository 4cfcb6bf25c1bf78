"""Events by their numbers alone, for tests that write many."""

from __future__ import annotations

from fl_dp.accounting import PoissonGaussianEvent
from fl_dp.mechanisms.mechanism_events import GaussianEvent


def gaussian(noise_multiplier: float) -> GaussianEvent:
    return GaussianEvent(noise_multiplier=noise_multiplier)


def sampled(noise_multiplier: float, sampling_rate: float) -> PoissonGaussianEvent:
    return PoissonGaussianEvent(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate)
