"""Budget gauges: ledgers that the operator names, verified and read, never written."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fl_dp.ledger import LedgerCorrupted, NodeLedger, SpentLedger

_KEPT = 30.0  # seconds that the answer of a database is good for


@dataclass(frozen=True, kw_only=True)
class Gauge:
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


@dataclass(kw_only=True)
class Gauges:
    """Gauges of all ledgers, computed anew only where a ledger has changed.

    Attributes:
        locations: Files or URLs of ledgers, or a node's.
    """

    locations: Sequence[str]
    _kept: dict[str, tuple[object, list[Gauge]]] = field(default_factory=dict)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> list[Gauge]:
        """Return the gauges, in the order in which the ledgers were named."""
        with self._one_at_a_time:
            return [gauge for location in self.locations for gauge in self._of(location)]

    def _of(self, location: str) -> list[Gauge]:
        seen = _seen(location)
        kept = self._kept.get(location)
        if kept is None or kept[0] != seen:
            kept = self._kept[location] = (seen, _gauges(location))
        return kept[1]


def _gauges(location: str) -> list[Gauge]:
    try:
        if NodeLedger.is_one(location):
            with NodeLedger.read(location) as node:
                return _of_node(node)
        with SpentLedger.read(location) as ledger:
            return [_of_training(ledger)]
    except LedgerCorrupted as error:
        return [Gauge(ledger=_name(location), problem=str(error), altered=True)]
    except (OSError, ValueError, RuntimeError) as error:
        return [Gauge(ledger=_name(location), problem=str(error))]


def _of_training(ledger: SpentLedger) -> Gauge:
    budget = ledger.plan.budget
    return Gauge(
        ledger=ledger.location,
        kind="training",
        unit=ledger.plan.unit,
        spent=ledger.epsilon().best,
        budget=budget.epsilon,
        delta=budget.delta,
        rounds=ledger.rounds_spent,
    )


def _of_node(ledger: NodeLedger) -> list[Gauge]:
    found = []
    for account, spending in enumerate(ledger.spendings, 1):
        bounds = spending.epsilon()
        found.append(
            Gauge(
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
    return found or [Gauge(ledger=ledger.location, kind="node", problem="nothing was spent yet")]


def _seen(location: str) -> object:
    """Return what changes whenever a ledger may have."""
    if "://" in location:
        return time.monotonic() // _KEPT
    found = []
    for file in (location, f"{location}-wal"):
        try:
            status = Path(file).stat()
        except OSError:
            found.append((0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_size))
    return tuple(found)


def _name(location: str) -> str:
    """Return a location without what may be a password."""
    return f"{location.partition('://')[0]}://…" if "://" in location else location
