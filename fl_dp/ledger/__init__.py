"""Ledgers: what was released, on disk before it happens. No Flower, no torch."""

from typing import TYPE_CHECKING

from fl_dp.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .anchors import LedgerAnchor
    from .entries import LedgerCorrupted, LedgerEntry, LedgerUnavailable
    from .node import (
        Account,
        BudgetExpired,
        ConsentRevoked,
        NodeLedger,
        Spending,
        Use,
        UseOfData,
    )
    from .spent import SpentLedger
    from .state import Choice, ParticipationCapReached, Reservation, SeparationBroken
    from .store import shown_location
    from .training import PlanMismatch, PrivacyLedger
    from .witness import FileWitness, TableWitness, Witness, witness_at
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "Account",
    "BudgetExpired",
    "Choice",
    "ConsentRevoked",
    "FileWitness",
    "LedgerAnchor",
    "LedgerCorrupted",
    "LedgerEntry",
    "LedgerUnavailable",
    "NodeLedger",
    "ParticipationCapReached",
    "PlanMismatch",
    "PrivacyLedger",
    "Reservation",
    "SeparationBroken",
    "Spending",
    "SpentLedger",
    "TableWitness",
    "Use",
    "UseOfData",
    "Witness",
    "shown_location",
    "witness_at",
]
