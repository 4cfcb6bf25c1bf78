"""Accounting: plans, budgets, what releases spend, and the ledger. No Flower, no torch."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .anchors import LedgerAnchor, read_statement
    from .bounds import EpsilonBounds, epsilon, pld_epsilon, tight_epsilon
    from .budget import PrivacyBudget, PrivacyBudgetExhausted, default_delta
    from .budget_split import naive_split
    from .calibration import (
        affordable_rounds,
        calibrate_noise,
        calibrate_noise_multiplier,
        calibrate_sampling_rate,
        schedule_history,
    )
    from .charges import calibrate_client_scheme, event_of
    from .events import (
        ExponentialEvent,
        FixedSizeGaussianEvent,
        GaussianEvent,
        History,
        LaplaceEvent,
        PoissonGaussianEvent,
        PrivacyEvent,
        TruncatedPoissonGaussianEvent,
        ZcdpEvent,
        event_from_dict,
        event_to_dict,
        freeze,
    )
    from .example_plan import ExamplePlan
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
        gaussian_epsilon,
        gaussian_noise_multiplier,
        udp_sigma,
    )
    from .ledger import ParticipationCapReached, PlanMismatch, PrivacyLedger, Reservation
    from .node_ledger import Account, NodeLedger, Spending
    from .plan import PlanOptions, PrivacyPlan
    from .records import LedgerCorrupted, LedgerRecord, LedgerUnavailable
    from .relations import NeighboringRelation
    from .sampling import (
        FixedSizeSampling,
        PoissonSampling,
        Sampling,
        TruncatedPoissonSampling,
        UtilityPoissonSampling,
        VisibleSampling,
    )
    from .schedules import NoiseSchedule, PlateauController, PlateauSchedule
    from .statement import (
        describe_event,
        privacy_statement,
        promise_in_words,
        statement_markdown,
    )
    from .statement_check import records_behind_statement, statement_differences, statement_page
    from .statement_of_examples import example_statement, example_statement_markdown
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "Account",
    "DeclaredFilter",
    "EpsilonBounds",
    "ExamplePlan",
    "ExponentialEvent",
    "FixedSizeGaussianEvent",
    "FixedSizeSampling",
    "GaussianEvent",
    "GaussianFilter",
    "History",
    "LaplaceEvent",
    "LedgerAnchor",
    "LedgerCorrupted",
    "LedgerRecord",
    "LedgerUnavailable",
    "NeighboringRelation",
    "NodeLedger",
    "NoiseSchedule",
    "ParticipationCapReached",
    "PlanMismatch",
    "PlanOptions",
    "PlateauController",
    "PlateauSchedule",
    "PoissonGaussianEvent",
    "PoissonSampling",
    "PrivacyBudget",
    "PrivacyBudgetExhausted",
    "PrivacyEvent",
    "PrivacyFilter",
    "PrivacyLedger",
    "PrivacyPlan",
    "RenyiFilter",
    "RenyiOdometer",
    "Reservation",
    "Sampling",
    "Spending",
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
    "calibrate_sampling_rate",
    "classic_noise_multiplier",
    "default_delta",
    "describe_event",
    "epsilon",
    "event_from_dict",
    "event_of",
    "event_to_dict",
    "example_statement",
    "example_statement_markdown",
    "freeze",
    "gaussian_epsilon",
    "gaussian_noise_multiplier",
    "naive_split",
    "pld_epsilon",
    "privacy_statement",
    "promise_in_words",
    "read_statement",
    "records_behind_statement",
    "schedule_history",
    "statement_differences",
    "statement_markdown",
    "statement_page",
    "tight_epsilon",
    "udp_sigma",
]
