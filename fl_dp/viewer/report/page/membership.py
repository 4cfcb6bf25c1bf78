"""Attacks on membership, as a page shows them: a table of rates, and the picture."""

from __future__ import annotations

from collections.abc import Mapping

from fl_dp.viewer.found_runs import FoundAttack

from .words import WORDS, Table

_COLUMNS = ("attack", "auc", "fpr", "tpr", "allowed", "exceeds")


def membership_table(attack: FoundAttack) -> Table:
    """Return the rates of an attack's folder."""
    first = attack.rows[0] if attack.rows else {}
    names = ("unit", "models", "model", "task", "members", "others")
    caption = WORDS["membership.caption"].format(
        **{name: first.get(name) or WORDS["unknown"] for name in names}
    )
    return Table(
        caption=caption,
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
    """Return a rate; None for what is none."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None
