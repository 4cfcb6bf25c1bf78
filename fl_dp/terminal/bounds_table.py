"""Epsilon by each accountant, for a program and for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fl_dp.promise import rounded_up
from fl_dp.statement.sentences import ACCOUNTANTS

if TYPE_CHECKING:
    from fl_dp.accounting import EpsilonBounds


def bounds_json(bounds: EpsilonBounds, delta: float) -> dict[str, Any]:
    """Return epsilon by each accountant as plain JSON values, and the name of the one to quote."""
    return {"delta": delta, "epsilon": bounds.by_name, "quoted": bounds.best_name}


def bound_rows(bounds: EpsilonBounds) -> list[tuple[str, str]]:
    """Return epsilon by each accountant, for a table of numbers."""
    rows = []
    for name, bound in bounds.by_name.items():
        quote = ": the number to quote" if name == bounds.best_name else ""
        rows.append((f"epsilon by {ACCOUNTANTS[name]}{quote}", rounded_up(bound)))
    return rows
