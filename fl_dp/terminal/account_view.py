"""A ledger's account: its trainings, what they add up to, and what is left."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.ledger import SpentLedger
from fl_dp.plan.ceiling import Neighbours
from fl_dp.promise import delta_rounded_up, epsilon_at_delta, floor, rounded_up

from .sheets import sheet


def account_json(ledger: SpentLedger) -> dict[str, Any]:
    """Return the account as plain JSON values; None stands for "no number"."""
    account, terms = ledger.account, ledger.account.terms
    trainings = [
        {
            "name": name,
            "kind": state.plan.kind,
            "budget": state.plan.budget.epsilon,
            "delta": state.plan.budget.delta,
            "unit": state.plan.unit,
            "neighboring_relation": str(state.plan.neighboring_relation),
            "rounds_spent": state.rounds.total(),
            "insecure": state.insecure,
        }
        for name, state in account.trainings.items()
    ]
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
        "trainings": trainings,
        "totals": totals,
    }


def account_table(ledger: SpentLedger) -> Table:
    """Return a table of the trainings of an account, and of their totals."""
    account = ledger.account
    rows: list[tuple[str, str, str, str]] = []
    for name, state in account.trainings.items():
        plan = state.plan
        promise = epsilon_at_delta(plan.budget.epsilon, plan.budget.delta)
        if state.insecure:
            promise = "nothing: its noise was insecure"
        rounds = f"{state.rounds.total()} of {plan.rounds}"
        rows.append((name, promise, _words(Neighbours.of(plan)), rounds))
    for neighbours, total in account.totals().items():
        number = "no number"
        if math.isfinite(total):
            number = f"epsilon {rounded_up(total)} at delta {delta_rounded_up(account.terms.delta)}"
        rows.append(("in all", number, _words(neighbours), ""))
    headings = ("training", "budget", "of one", "rounds")
    return sheet(f"account {account.terms.name}", headings, rows)


def account_sentences(ledger: SpentLedger) -> list[str]:
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


def _left(ledger: SpentLedger) -> tuple[float, float] | None:
    try:
        left = ledger.left()
    except PrivacyBudgetExhausted:
        return None
    return None if left is None else (left.epsilon, left.delta)


def _words(neighbours: Neighbours) -> str:
    return f"{neighbours.unit}, {neighbours.relation}"
