"""Accounting: what releases spend, what noise a budget needs, when to stop. No Flower, no torch."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from fl_dp.mechanisms.events import ExponentialEvent, GaussianEvent, LaplaceEvent, ZcdpEvent
    from fl_dp.option_errors import IncompatibleOptions

    from .banded import (
        Objective,
        model_error,
        optimal_coefficients,
        sensitivity_squared,
        squared_norm,
    )
    from .bounds import EpsilonBounds, epsilon, pld_epsilon, tight_epsilon
    from .budget import NeighboringRelation, PrivacyBudget, PrivacyBudgetExhausted, default_delta
    from .calibration import (
        affordable_rounds,
        calibrate_client_scheme,
        calibrate_noise,
        calibrate_noise_multiplier,
        schedule_history,
    )
    from .events import (
        FixedSizeGaussianEvent,
        History,
        PoissonGaussianEvent,
        PrivacyEvent,
        RandomStoppingEvent,
        TruncatedPoissonGaussianEvent,
        event_from_dict,
        event_to_dict,
        freeze,
        release_from_dict,
    )
    from .filters import (
        DeclaredFilter,
        GaussianFilter,
        PrivacyFilter,
        RenyiFilter,
        RenyiOdometer,
        best_filter_order,
    )
    from .gaussian import (
        UdpNoise,
        classic_noise_multiplier,
        exposures_noise_multiplier,
        gaussian_epsilon,
        gaussian_noise_multiplier,
        naive_split,
        udp_sigma,
    )
    from .sampling import (
        BufferedSampling,
        CyclicSampling,
        FixedSizeSampling,
        PoissonSampling,
        Sampling,
        TruncatedPoissonSampling,
        UtilityPoissonSampling,
        VisibleSampling,
    )
    from .schedules import NoiseSchedule, PlateauController, PlateauSchedule
    from .shared_noise import (
        SharedNoise,
        sampler_slack,
        shared_noise_multiplier,
        shared_noise_slack,
        usual_colluding,
        within_slack,
    )
    from .trade_off import TradeOff, epsilon_delta_trade_off, gaussian_trade_off
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "BufferedSampling",
    "CyclicSampling",
    "DeclaredFilter",
    "EpsilonBounds",
    "ExponentialEvent",
    "FixedSizeGaussianEvent",
    "FixedSizeSampling",
    "GaussianEvent",
    "GaussianFilter",
    "History",
    "IncompatibleOptions",
    "LaplaceEvent",
    "NeighboringRelation",
    "NoiseSchedule",
    "Objective",
    "PlateauController",
    "PlateauSchedule",
    "PoissonGaussianEvent",
    "PoissonSampling",
    "PrivacyBudget",
    "PrivacyBudgetExhausted",
    "PrivacyEvent",
    "PrivacyFilter",
    "RandomStoppingEvent",
    "RenyiFilter",
    "RenyiOdometer",
    "Sampling",
    "SharedNoise",
    "TradeOff",
    "TruncatedPoissonGaussianEvent",
    "TruncatedPoissonSampling",
    "UdpNoise",
    "UtilityPoissonSampling",
    "VisibleSampling",
    "ZcdpEvent",
    "affordable_rounds",
    "best_filter_order",
    "calibrate_client_scheme",
    "calibrate_noise",
    "calibrate_noise_multiplier",
    "classic_noise_multiplier",
    "default_delta",
    "epsilon",
    "epsilon_delta_trade_off",
    "event_from_dict",
    "event_to_dict",
    "exposures_noise_multiplier",
    "freeze",
    "gaussian_epsilon",
    "gaussian_noise_multiplier",
    "gaussian_trade_off",
    "model_error",
    "naive_split",
    "optimal_coefficients",
    "pld_epsilon",
    "release_from_dict",
    "sampler_slack",
    "schedule_history",
    "sensitivity_squared",
    "shared_noise_multiplier",
    "shared_noise_slack",
    "squared_norm",
    "tight_epsilon",
    "udp_sigma",
    "usual_colluding",
    "within_slack",
]
