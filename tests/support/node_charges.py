"""Charges of a node's own ledger, and what it says of a test's messages."""

from __future__ import annotations

from pathlib import Path

from fl_dp import PrivacyBudget
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account, Use
from fl_dp.ledger.witness import Witness
from fl_dp.mechanisms.mechanism_events import GaussianEvent


def charge(
    ledger: Path,
    *,
    epsilon: float = 4.0,
    noise: float = 5.0,
    count: int = 1,
    use: Use | None = None,
    witness: Witness | None = None,
) -> None:
    """Charge a ward's records for a run."""
    with NodeLedger.open(ledger, witness=witness) as opened:
        opened.charge(
            Account(unit="record", source="ward"),
            GaussianEvent(noise_multiplier=noise),
            count=count,
            budget=PrivacyBudget(epsilon=epsilon, delta=1e-5),
            what="a run",
            use=use,
        )


def charges_of(ledger: Path) -> int:
    """How often a node's ledger was charged; 0 without a ledger."""
    if not ledger.is_file():
        return 0
    with NodeLedger.read(ledger) as opened:
        return sum(spending.charges for spending in opened.spendings)
