"""Numbers on the terminal: a table of them, a span."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from .sheets import sheet


def numbers_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of numbers, each beside its name."""
    return sheet(title, ("what", "value"), rows, numbers=("value",))


def span(values: Sequence[float], digits: str) -> str:
    """Return `LOW to HIGH`, or the one number if all are equal, in a format such as `.3g`."""
    low, high = min(values), max(values)
    if low == high:
        return f"{low:{digits}}"
    return f"{low:{digits}} to {high:{digits}}"
