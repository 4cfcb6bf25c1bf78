"""The data sets that have a name, as a table or JSON: where each comes from, and is it here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fl_dp.tasks.datasets.fetch import Availability

from .sheets import sheet


def data_json(sets: Sequence[Availability]) -> dict[str, Any]:
    """Return the data sets as plain JSON values."""
    return {"tasks": [_entry(one) for one in sets]}


def data_table(sets: Sequence[Availability]) -> Table:
    """Return the data sets as a table, a row each."""
    return sheet(None, ("task", "here", "from", "MB", "folder"), map(_row, sets))


def _row(one: Availability) -> tuple[str, ...]:
    source = one.source
    return (
        one.name,
        "yes" if one.here else "no",
        "scikit-learn" if source is None else f"{source.client}: {source.package}",
        "" if source is None else f"{source.megabytes:g}",
        "" if one.folder is None else str(one.folder),
    )


def _entry(one: Availability) -> dict[str, Any]:
    source = one.source
    entry = {
        "task": one.name,
        "here": one.here,
        "folder": None if one.folder is None else str(one.folder),
    }
    if source is None:
        return entry | {"client": None}
    told = ("client", "package", "version", "megabytes", "sha256", "license")
    return entry | {name: getattr(source, name) for name in told}
