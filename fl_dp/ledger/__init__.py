"""Ledgers: what was released, on disk before it happens. No Flower, no torch."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .anchors import LedgerAnchor
    from .entries import LedgerCorrupted, LedgerEntry, LedgerUnavailable
    from .node import Account, NodeLedger, Spending
    from .spent import SpentLedger
    from .state import Reservation
    from .training import ParticipationCapReached, PlanMismatch, PrivacyLedger
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "Account",
    "LedgerAnchor",
    "LedgerCorrupted",
    "LedgerEntry",
    "LedgerUnavailable",
    "NodeLedger",
    "ParticipationCapReached",
    "PlanMismatch",
    "PrivacyLedger",
    "Reservation",
    "Spending",
    "SpentLedger",
]
