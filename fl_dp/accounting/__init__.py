"""Accounting: the price of releases, the noise for a budget, when to stop. No Flower, no torch."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

from .budget import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyBudgetExhausted,
    default_delta,
)
from .events import History, PoissonGaussianEvent, PrivacyEvent, freeze
from .grouped_sampling import CyclicSampling, OwnRatesSampling
from .noise_schedule import NoiseSchedule
from .sampling import (
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    TruncatedPoissonSampling,
    VisibleSampling,
)
from .shared_noise import SharedNoise

if TYPE_CHECKING:
    from .banded import model_error, optimal_coefficients, squared_norm
    from .bounds import EpsilonBounds, epsilon, tight_epsilon
    from .calibration import calibrate_noise_multiplier
    from .trade_off import epsilon_delta_trade_off, gaussian_trade_off
else:
    # With SciPy and dp-accounting, which nodes and most commands can do without.
    __getattr__ = lazy_exports(
        __name__,
        {
            "model_error": "banded",
            "optimal_coefficients": "banded",
            "squared_norm": "banded",
            "EpsilonBounds": "bounds",
            "epsilon": "bounds",
            "tight_epsilon": "bounds",
            "calibrate_noise_multiplier": "calibration",
            "epsilon_delta_trade_off": "trade_off",
            "gaussian_trade_off": "trade_off",
        },
    )

__all__ = [
    "CyclicSampling",
    "EpsilonBounds",
    "FixedSizeSampling",
    "History",
    "NeighboringRelation",
    "NoiseSchedule",
    "OwnRatesSampling",
    "PoissonGaussianEvent",
    "PoissonSampling",
    "PrivacyBudget",
    "PrivacyBudgetExhausted",
    "PrivacyEvent",
    "Sampling",
    "SharedNoise",
    "TruncatedPoissonSampling",
    "VisibleSampling",
    "calibrate_noise_multiplier",
    "default_delta",
    "epsilon",
    "epsilon_delta_trade_off",
    "freeze",
    "gaussian_trade_off",
    "model_error",
    "optimal_coefficients",
    "squared_norm",
    "tight_epsilon",
]
