"""A ledger's account: its trainings, what they add up to, and what is left."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.ledger import AccountLedger
from fl_dp.ledger.entered import Entered
from fl_dp.promise import NO_PRIVACY

from .sheets import sheet


def account_json(ledger: AccountLedger) -> dict[str, Any]:
    """Return the account as plain JSON values; None stands for "no number"."""
    account, terms = ledger.account, ledger.account.terms
    totals = [
        {
            "unit": neighbours.unit,
            "neighboring_relation": str(neighbours.relation),
            "epsilon": total if math.isfinite(total) else None,
        }
        for neighbours, total in account.totals().items()
    ]
    left = _left(ledger)
    return {
        "name": terms.name,
        "delta": terms.delta,
        "cap": terms.cap,
        "left": None if left is None else {"epsilon": left[0], "delta": left[1]},
        "trainings": [_entry_json(name, entered) for name, entered in account.entered.items()],
        "totals": totals,
    }


def _entry_json(name: str, entered: Entered) -> dict[str, Any]:
    budget, neighbours = entered.budget, entered.neighbours
    states = entered.states
    return {
        "name": name,
        "kind": entered.kind,
        "budget": None if budget is None else budget.epsilon,
        "delta": entered.delta,
        "unit": None if neighbours is None else neighbours.unit,
        "neighboring_relation": None if neighbours is None else str(neighbours.relation),
        "trainings": list(states),
        "rounds_spent": sum(state.rounds.total() for state in states.values()),
        "insecure": any(state.insecure for state in states.values()),
    }


def account_table(ledger: AccountLedger) -> Table:
    """Return a table of the entries of an account, and of their totals."""
    account = ledger.account
    rows: list[tuple[str, str, str]] = []
    for name, entered in account.entered.items():
        states = entered.states
        promise = NO_PRIVACY if entered.guarantee is None else str(entered.guarantee)
        done = sum(state.rounds.total() for state in states.values())
        planned = sum(state.plan.rounds for state in states.values())
        rounds = f"{done} of {planned}" if states else ""
        if list(states) not in ([], [name]):
            name = f"{name}: {len(states)} trainings"
        rows.append((name, promise, rounds))
    rows += [("in all", total, "") for total in account.totals_in_words()]
    headings = ("training", "promise, at most", "rounds")
    return sheet(f"account {account.terms.name}", headings, rows)


def _left(ledger: AccountLedger) -> tuple[float, float] | None:
    try:
        left = ledger.left()
    except PrivacyBudgetExhausted:
        return None
    return None if left is None else (left.epsilon, left.delta)
