"""Numbers on the terminal: a table of them, the bounds of the accountants, a span."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fl_dp.promise import brief_epsilon, is_promise, rounded_up
from fl_dp.statement.sentences import ACCOUNTANTS

from .sheets import sheet

if TYPE_CHECKING:
    from fl_dp.accounting import EpsilonBounds

NO_PRIVACY = "no privacy"
"""Text for a person where nothing is promised."""


def epsilon_text(epsilon: float) -> str:
    """Return an epsilon for a person, or a text that it protects nothing."""
    return brief_epsilon(epsilon) if is_promise(epsilon) else NO_PRIVACY


def numbers_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of numbers, each beside its name."""
    return sheet(title, ("what", "value"), rows, numbers=("value",))


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


def span(values: Sequence[float], digits: str) -> str:
    """Return `LOW to HIGH`, or the one number if all are equal, in a format such as `.3g`."""
    low, high = min(values), max(values)
    if low == high:
        return f"{low:{digits}}"
    return f"{low:{digits}} to {high:{digits}}"
