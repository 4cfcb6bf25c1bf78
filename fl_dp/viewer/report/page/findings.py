"""Attacks and audits that lie beside a run, as a report shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_dp.viewer.found_runs import FoundRun
from fl_dp.viewer.found_runs.untrusted import texts

from .words import WORDS, shown_value

_MOST_ROWS = 60


@dataclass(frozen=True, kw_only=True)
class ReportedResult:
    """One document of results.

    Attributes:
        title: In words.
        run: Name of the run that it is of.
        sentences: That it says itself.
        rows: Its numbers, each beside its name.
    """

    title: str
    run: str
    sentences: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]


def findings_of(run: FoundRun) -> list[ReportedResult]:
    """Return the results that lie in a run's folder."""
    found = []
    for file, document in run.documents.items():
        rows = list(_rows(document))
        found.append(
            ReportedResult(
                title=WORDS.get(f"finding.{file}", file),
                run=run.card.name,
                sentences=tuple(texts(document.get("sentences"))),
                rows=tuple(rows[:_MOST_ROWS]),
            )
        )
    return found


def _rows(value: Any, where: str = "") -> list[tuple[str, str]]:
    """Return the leaves of a document with their places; long lists by their length alone."""
    if isinstance(value, Mapping):
        rows = []
        for key, each in value.items():
            if key not in ("sentences", "path"):
                rows += _rows(each, f"{where}.{key}" if where else key)
        return rows
    if isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
        rows = []
        for index, each in enumerate(value[:_MOST_ROWS]):
            rows += _rows(each, f"{where}[{index}]")
        return rows
    return [] if value is None else [(where, shown_value(value))]
