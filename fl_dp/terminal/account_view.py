"""A ledger's account: its trainings, what they add up to, and what is left."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.ledger import AccountLedger
from fl_dp.ledger.entered import Entered
from fl_dp.plan.ceiling import Neighbours
from fl_dp.promise import delta_rounded_up, epsilon_at_delta, floor, rounded_up

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
    rows: list[tuple[str, str, str, str]] = []
    for name, entered in account.entered.items():
        states = entered.states
        promise = "nothing: no promise"
        if entered.budget is not None:
            promise = epsilon_at_delta(entered.budget.epsilon, entered.budget.delta)
        if any(state.insecure for state in states.values()):
            promise = "nothing: its noise was insecure"
        done = sum(state.rounds.total() for state in states.values())
        planned = sum(state.plan.rounds for state in states.values())
        rounds = f"{done} of {planned}" if states else ""
        if list(states) not in ([], [name]):
            name = f"{name}: {len(states)} trainings"
        of_one = "" if entered.neighbours is None else _words(entered.neighbours)
        rows.append((name, promise, of_one, rounds))
    for neighbours, total in account.totals().items():
        number = "no number"
        if account.unprotected:
            number = "none: something has no promise"
        elif math.isfinite(total):
            number = f"epsilon {rounded_up(total)} at delta {delta_rounded_up(account.terms.delta)}"
        rows.append(("in all", number, _words(neighbours), ""))
    headings = ("training", "budget", "of one", "rounds")
    return sheet(f"account {account.terms.name}", headings, rows)


def account_sentences(ledger: AccountLedger) -> list[str]:
    """Return what is left of the account, one line each."""
    terms, left = ledger.account.terms, _left(ledger)
    if terms.budget is None:
        return [
            "The account has no cap; delta left for further trainings: "
            f"{floor(ledger.account.left_of_delta, 3)} of {delta_rounded_up(terms.delta)}"
        ]
    cap = epsilon_at_delta(terms.budget.epsilon, terms.budget.delta)
    remaining = "nothing"
    if left is not None:
        remaining = f"epsilon {floor(left[0], 6)} at delta {floor(left[1], 6)}"
    return [f"Left: {remaining}, of the account's cap {cap} ({_words(ledger.account.neighbours)})"]


def _left(ledger: AccountLedger) -> tuple[float, float] | None:
    try:
        left = ledger.left()
    except PrivacyBudgetExhausted:
        return None
    return None if left is None else (left.epsilon, left.delta)


def _words(neighbours: Neighbours) -> str:
    return f"{neighbours.unit}, {neighbours.relation}"
