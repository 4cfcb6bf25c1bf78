"""Gauges of one ledger: verified and read, never written."""

from __future__ import annotations

from dataclasses import dataclass

from fl_dp.ledger import LedgerCorrupted, NodeLedger, SpentLedger


@dataclass(frozen=True, kw_only=True)
class LedgerGauge:
    """One account of one ledger.

    Attributes:
        ledger: Its file or database, without a password.
        kind: `training` for a server's ledger, `node` for one that a node keeps; empty if the
            ledger can't be read.
        account: Number of the account within a node's ledger, from 1; no site is named.
        unit: `client` or `record`.
        spent: Epsilon; None if no bound is known.
        budget: Epsilon that may be spent.
        delta: The delta that goes with both.
        rounds: Rounds or charges so far.
        problem: Says why there are no numbers.
        altered: Whether that is because the ledger was altered.
    """

    ledger: str
    kind: str = ""
    account: int = 1
    unit: str = ""
    spent: float | None = None
    budget: float | None = None
    delta: float | None = None
    rounds: int = 0
    problem: str = ""
    altered: bool = False

    @property
    def left(self) -> float | None:
        """What may still be spent; epsilon adds up at most."""
        if self.spent is None or self.budget is None:
            return None
        return max(self.budget - self.spent, 0.0)


def gauges_of(location: str) -> list[LedgerGauge]:
    """Return the gauges of one ledger; its problem where it can't be read."""
    try:
        if NodeLedger.is_one(location):
            with NodeLedger.read(location) as node:
                return _of_node(node)
        with SpentLedger.read(location) as ledger:
            return [_of_training(ledger)]
    except LedgerCorrupted as error:
        return [LedgerGauge(ledger=_name(location), problem=str(error), altered=True)]
    except (OSError, ValueError, RuntimeError) as error:
        return [LedgerGauge(ledger=_name(location), problem=str(error))]


def _of_training(ledger: SpentLedger) -> LedgerGauge:
    budget = ledger.plan.budget
    return LedgerGauge(
        ledger=ledger.location,
        kind="training",
        unit=ledger.plan.unit,
        spent=ledger.epsilon().best,
        budget=budget.epsilon,
        delta=budget.delta,
        rounds=ledger.rounds_spent,
    )


def _of_node(ledger: NodeLedger) -> list[LedgerGauge]:
    found = []
    for account, spending in enumerate(ledger.spendings, 1):
        bounds = spending.epsilon()
        found.append(
            LedgerGauge(
                ledger=ledger.location,
                kind="node",
                account=account,
                unit=spending.unit,
                spent=bounds.best if bounds.by_name else None,
                budget=None if spending.budget is None else spending.budget.epsilon,
                delta=None if spending.budget is None else spending.budget.delta,
                rounds=spending.charges,
            )
        )
    return found or [
        LedgerGauge(ledger=ledger.location, kind="node", problem="nothing was spent yet")
    ]


def _name(location: str) -> str:
    """Return a location without what may be a password."""
    return f"{location.partition('://')[0]}://…" if "://" in location else location
