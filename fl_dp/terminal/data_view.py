"""The named data sets, as a table or JSON: where each comes from, and whether it is here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fl_dp.tasks.datasets.fetch import Availability

from .sheets import sheet


def data_json(sets: Sequence[Availability]) -> dict[str, Any]:
    """Return the data sets as plain JSON values."""
    return {"tasks": [_entry(dataset) for dataset in sets]}


def data_table(sets: Sequence[Availability]) -> Table:
    """Return the data sets as a table, one row each."""
    return sheet(None, ("task", "here", "from", "MB", "folder"), map(_row, sets))


def _row(dataset: Availability) -> tuple[str, ...]:
    source, origin, megabytes = dataset.source, "scikit-learn", ""
    if source is not None:
        origin, megabytes = f"{source.client}: {source.package}", f"{source.megabytes:g}"
    folder = "" if dataset.folder is None else str(dataset.folder)
    return (dataset.name, "yes" if dataset.here else "no", origin, megabytes, folder)


def _entry(dataset: Availability) -> dict[str, Any]:
    source = dataset.source
    folder = None if dataset.folder is None else str(dataset.folder)
    entry = {
        "task": dataset.name,
        "here": dataset.here,
        "folder": folder,
    }
    if source is None:
        return entry | {"client": None}
    names = ("client", "package", "version", "megabytes", "sha256", "license")
    return entry | {name: getattr(source, name) for name in names}
