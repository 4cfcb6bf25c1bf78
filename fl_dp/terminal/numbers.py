"""Numbers on the terminal: a table of them, a span."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from fl_dp.promise import brief_epsilon, is_promise

from .sheets import sheet

NO_PRIVACY = "no privacy"
"""Text for a person where nothing is promised."""


def epsilon_text(epsilon: float) -> str:
    """Return an epsilon for a person, or a text that it protects nothing."""
    return brief_epsilon(epsilon) if is_promise(epsilon) else NO_PRIVACY


def numbers_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of numbers, each beside its name."""
    return sheet(title, ("what", "value"), rows, numbers=("value",))


def span(values: Sequence[float], digits: str) -> str:
    """Return `LOW to HIGH`, or the one number if all are equal, in a format such as `.3g`."""
    low, high = min(values), max(values)
    if low == high:
        return f"{low:{digits}}"
    return f"{low:{digits}} to {high:{digits}}"
