"""Attacks and audits beside a run in a report: results, rates of membership."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_dp.viewer.found_runs import FoundAttack, FoundRun
from fl_dp.viewer.found_runs.run_groups import shown_value
from fl_dp.viewer.found_runs.untrusted import texts

from .page_words import WORDS, Table

_MOST_ROWS = 60


@dataclass(frozen=True, kw_only=True)
class ReportedResult:
    """One document of results.

    Attributes:
        run: Name of its run.
        rows: Its numbers, each beside its name.
    """

    title: str
    run: str
    sentences: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]


def findings_of(run: FoundRun) -> list[ReportedResult]:
    """The results in a run's folder."""
    results = []
    for file, document in run.documents.items():
        rows = _rows(document)
        results.append(
            ReportedResult(
                title=WORDS.get(f"finding.{file}", file),
                run=run.card.name,
                sentences=tuple(texts(document.get("sentences"))),
                rows=tuple(rows[:_MOST_ROWS]),
            )
        )
    return results


def _rows(value: Any, path: str = "") -> list[tuple[str, str]]:
    """A document's leaves with their paths; of long lists the first items alone."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        rows = []
        for key, member in value.items():
            if key not in ("sentences", "path"):
                rows += _rows(member, f"{path}.{key}" if path else key)
        return rows
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        rows = []
        for index, item in enumerate(value[:_MOST_ROWS]):
            rows += _rows(item, f"{path}[{index}]")
        return rows
    return [(path, shown_value(value))]


_COLUMNS = ("attack", "auc", "fpr", "tpr", "allowed", "exceeds")


def membership_table(attack: FoundAttack) -> Table:
    """The rates of an attack's folder."""
    first = attack.rows[0] if attack.rows else {}
    names = ("unit", "models", "model", "task", "members", "others")
    values = {name: first.get(name) or WORDS["unknown"] for name in names}
    return Table(
        caption=WORDS["membership.caption"].format(**values),
        headings=tuple(WORDS[f"membership.{column}"] for column in _COLUMNS),
        rows=tuple(map(_row, attack.rows)),
    )


def _row(row: Mapping[str, str]) -> tuple[str, ...]:
    tpr, low, high = (_percent(row.get(key)) for key in ("tpr", "tpr_low", "tpr_high"))
    exceeds = "yes" if row.get("exceeds") == "True" else "no"
    return (
        row.get("attack") or WORDS["unknown"],
        _number(row.get("auc")),
        _percent(row.get("asked_fpr")),
        f"{tpr} ({low} – {high})",
        _percent(row.get("allowed")),
        WORDS[f"membership.{exceeds}"],
    )


def _percent(text: str | None) -> str:
    value = _read(text)
    return "–" if value is None else f"{100.0 * value:.3g} %"


def _number(text: str | None) -> str:
    value = _read(text)
    return "–" if value is None else f"{value:.3f}"


def _read(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None
