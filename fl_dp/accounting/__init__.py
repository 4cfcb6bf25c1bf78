"""Accounting: plans, budgets, what releases spend, and the ledger. No Flower, no torch."""

from .bounds import EpsilonBounds, epsilon, pld_epsilon
from .budget import PrivacyBudget, PrivacyBudgetExhausted, default_delta
from .calibration import calibrate_noise_multiplier
from .events import PoissonGaussianEvent
from .ledger import PlanMismatch, PrivacyLedger, Reservation
from .plan import PrivacyPlan, affordable_rounds
from .records import LedgerCorrupted, LedgerRecord
from .relations import NeighboringRelation
from .statement import privacy_statement

__all__ = [
    "EpsilonBounds",
    "LedgerCorrupted",
    "LedgerRecord",
    "NeighboringRelation",
    "PlanMismatch",
    "PoissonGaussianEvent",
    "PrivacyBudget",
    "PrivacyBudgetExhausted",
    "PrivacyLedger",
    "PrivacyPlan",
    "Reservation",
    "affordable_rounds",
    "calibrate_noise_multiplier",
    "default_delta",
    "epsilon",
    "pld_epsilon",
    "privacy_statement",
]
