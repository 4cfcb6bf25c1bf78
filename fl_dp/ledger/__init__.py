"""Ledgers: what was released, on disk before it happens. No Flower, no torch."""

from .anchors import LedgerAnchor
from .entering import enter_records, enter_sweep, enter_unprotected
from .entries import LedgerCorrupted, LedgerUnavailable
from .node import NodeLedger
from .population import NATURAL, Population
from .spent import AccountLedger, SpentLedger
from .state import Reservation
from .training import PrivacyLedger
from .witness import Witness, witness_at

__all__ = [
    "NATURAL",
    "AccountLedger",
    "LedgerAnchor",
    "LedgerCorrupted",
    "LedgerUnavailable",
    "NodeLedger",
    "Population",
    "PrivacyLedger",
    "Reservation",
    "SpentLedger",
    "Witness",
    "enter_records",
    "enter_sweep",
    "enter_unprotected",
    "witness_at",
]
