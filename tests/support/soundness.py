"""The promise after a fault: nothing released uncharged, nothing twice, and the ledger verifies."""

from __future__ import annotations

from typing import NamedTuple

from stages import Place

from fl_dp.ledger import PrivacyLedger


class Spent(NamedTuple):
    """Counts of a training's ledger."""

    charged: int
    committed: int
    shown: int


def require_sound(place: Place) -> Spent:
    """Check a training's folder, whatever happened to it, and return what was spent.

    Reading the ledger verifies its chain.
    """
    shown = [line["model"] for line in place.shown()]
    assert len(set(shown)) == len(shown)  # no model left twice
    with PrivacyLedger.read(place.ledger) as ledger:
        assert len(shown) <= ledger.rounds_committed <= ledger.rounds_spent
        assert ledger.rounds_spent <= ledger.plan.rounds
        assert ledger.epsilon().best <= ledger.plan.budget.epsilon
        return Spent(ledger.rounds_spent, ledger.rounds_committed, len(shown))
