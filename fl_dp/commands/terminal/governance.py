"""Summary of ledgers for governance: budget, spent, left, when; no name of anybody's site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fl_dp.ledger import NodeLedger, SpentLedger
from fl_dp.statement.words import rounded_up

_SMALL = 10


def training_summary(ledger: SpentLedger) -> dict[str, Any]:
    """Return the summary of a training's ledger as plain JSON values.

    Nodes, runs, participants and locations are left out; a count of clients below ten is told as
    such.
    """
    plan, spent, promised = ledger.plan, ledger.epsilon(), ledger.promise()
    opened = sorted(str(entry.fields["time"]) for entry in ledger.entries if "time" in entry.fields)
    return {
        "kind": "training",
        "unit": plan.unit,
        "clients": count_of(plan.num_clients),
        "budget": plan.budget.epsilon,
        "delta": plan.budget.delta,
        "spent": spent.best,
        "promised": promised.best,
        "left": max(plan.budget.epsilon - spent.best, 0.0),
        "rounds_planned": plan.rounds,
        "rounds_spent": ledger.rounds_spent,
        "first_opened": opened[0] if opened else None,
        "last_opened": opened[-1] if opened else None,
        "insecure": ledger.insecure,
        "verified": True,
    }


def nodes_summary(ledgers: Sequence[NodeLedger]) -> dict[str, Any]:
    """Return the summary of nodes' ledgers: of all accounts, the one that has least left."""
    accounts = []
    for spending in (each for ledger in ledgers for each in ledger.spendings):
        if spending.first_limit is not None:
            spent, budget = spending.epsilon().best, spending.budget
            left = math.inf if budget is None else budget.epsilon - spent
            accounts.append((left, spent, budget, spending.first_limit.delta))
    least = min(accounts, key=lambda account: account[0], default=None)
    found: dict[str, Any] = {
        "kind": "nodes",
        "ledgers": count_of(len(ledgers)),
        "verified": True,
        "budget": None,
        "delta": None,
        "spent": None,
        "left": None,
    }
    if least is not None:
        left, spent, budget, delta = least
        found |= {"delta": delta, "spent": spent}
        if budget is not None:
            found |= {"budget": budget.epsilon, "left": max(left, 0.0)}
    return found


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """Return a summary as lines for a person."""
    lines = ["Chain verified"]
    if summary.get("insecure"):
        lines.append("INSECURE noise: nothing is promised")
    if summary["kind"] == "nodes":
        lines.append(f"Ledgers of nodes: {summary['ledgers']}; the account with least left:")
    else:
        lines.append(f"Clients: {summary['clients']}; one {summary['unit']} is the unit")
    if summary["spent"] is None:
        return [*lines, "Nothing was spent"]
    if summary["budget"] is None:
        spent = f"Spent: {rounded_up(summary['spent'])} at delta {summary['delta']:.3g}"
        return [*lines, "Budget: each run's own, and no cap on all of them", spent]
    lines.append(f"Budget: epsilon {summary['budget']:g} at delta {summary['delta']:.3g}")
    lines.append(f"Spent: {rounded_up(summary['spent'])}")
    # Rounded down, as what was spent is rounded up.
    lines.append(f"Left: {max(int(summary['left'] * 1e4) / 1e4, 0.0):.4f}")
    if summary["kind"] == "training":
        lines.append(f"Promised: {rounded_up(summary['promised'])}")
        if summary["rounds_planned"]:  # none of its own: the best of many trainings
            lines.append(f"Rounds: {summary['rounds_spent']} of {summary['rounds_planned']} spent")
        lines.append(f"Opened: {summary['first_opened']}, last {summary['last_opened']}")
    return lines


def count_of(number: int) -> int | str:
    """Return a number of sites or clients, and `fewer than 10` for a small one."""
    return number if number >= _SMALL else f"fewer than {_SMALL}"
