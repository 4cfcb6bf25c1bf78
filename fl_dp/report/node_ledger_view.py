"""A node's ledger as its owner reads it: what the node's data have spent, over all runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from fl_dp.accounting import event_to_dict
from fl_dp.ledger import NodeLedger, Spending
from fl_dp.statement import describe_event


def node_ledger_json(ledger: NodeLedger) -> dict[str, Any]:
    """Return what every account has spent, as plain JSON values."""
    return {
        "location": ledger.location,
        "verified": True,
        "last_hash": ledger.anchor.hash,
        "accounts": [_account_json(each) for each in ledger.spendings],
    }


def node_ledger_table(ledgers: Sequence[NodeLedger], title: str) -> Table:
    """Return the accounts of one or more ledgers as a table for the terminal."""
    headings = ("data", "unit", "releases", "epsilon", "of at most", "delta")
    table = Table(*headings, title=escape(title))
    for spending in (each for ledger in ledgers for each in ledger.spendings):
        assert spending.budget is not None  # whoever spent had one
        bounds = spending.epsilon()
        spent = f"{math.ceil(bounds.best * 1e4) / 1e4:.4f}" if bounds.by_name else "no bound known"
        releases = (f"{n} x {describe_event(event)}" for event, n in spending.history)
        table.add_row(
            escape(", ".join(sorted(spending.sources))),
            spending.unit,
            escape("\n".join(releases)),
            spent,
            f"{spending.budget.epsilon:.4g}",
            f"{spending.budget.delta:.3g}",
        )
    return table


def _account_json(spending: Spending) -> dict[str, Any]:
    assert spending.budget is not None  # whoever spent had one
    bounds = spending.epsilon()
    return {
        "unit": spending.unit,
        "sources": sorted(spending.sources),
        "fingerprints": sorted(spending.fingerprints),
        "charges": spending.charges,
        "releases": [{**event_to_dict(event), "count": n} for event, n in spending.history],
        "epsilon": bounds.by_name,
        "quoted": bounds.best_name,
        "budget": spending.budget.epsilon,
        "delta": spending.budget.delta,
    }
