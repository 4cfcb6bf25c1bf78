"""Ledgers: what was released, on disk before it happens. No Flower, no torch."""

from .anchors import LedgerAnchor
from .entries import LedgerCorrupted, LedgerUnavailable
from .node import NodeLedger
from .spent import SpentLedger
from .state import Reservation
from .training import PrivacyLedger
from .witness import Witness, witness_at

__all__ = [
    "LedgerAnchor",
    "LedgerCorrupted",
    "LedgerUnavailable",
    "NodeLedger",
    "PrivacyLedger",
    "Reservation",
    "SpentLedger",
    "Witness",
    "witness_at",
]
