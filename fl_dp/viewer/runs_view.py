"""Runs of a folder as a terminal table, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, TypeAlias

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from fl_dp.guarantee import grouped
from fl_dp.viewer.found_runs import RunCard, RunState

_STYLES = {
    RunState.FINISHED: "green",
    RunState.RUNNING: "cyan",
    RunState.SILENT: "yellow",
    RunState.FAILED: "red",
    RunState.STOPPED: "yellow",
    RunState.BROKEN: "red",
}

_Order: TypeAlias = Callable[[RunCard], tuple[bool, Any]]

ORDERS: dict[str, _Order] = {
    "when": lambda card: (card.changed is None, -(card.changed or 0.0)),
    "name": lambda card: (False, card.name),
    "state": lambda card: (False, list(RunState).index(card.state)),
    "round": lambda card: (card.round is None, -(card.round or 0)),
    "accuracy": lambda card: (card.score.value is None, -(card.score.value or 0.0)),
    "epsilon": lambda card: (False, card.weakness),
}
"""Orders of a table by name: newest, furthest and best first, least epsilon first; unknown last."""


def cards_in_order(cards: Sequence[RunCard], order: str) -> list[RunCard]:
    """Runs in one of `ORDERS`, a sweep's together at its first one."""
    ordered = sorted(cards, key=ORDERS[order])
    members: dict[str, list[RunCard]] = {}
    for card in ordered:
        members.setdefault(card.sweep or card.name, []).append(card)
    return list(chain.from_iterable(members.values()))


def runs_tables(cards: Sequence[RunCard]) -> dict[str, Table]:
    """Tables of runs, in the given order, by what their epsilons mean nothing without.

    Nothing in it is read as markup, and `found_runs` leaves no control character in a name.
    """
    groups = grouped(cards, lambda card: card.terms)
    return {terms: _table(group) for terms, group in groups.items()}


def _table(cards: Sequence[RunCard]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for column in ("state", "round", "score", "epsilon", "when"):
        justify: JustifyMethod = "left" if column == "state" else "right"
        table.add_column(column, no_wrap=True, justify=justify)
    sweep: str | None = None
    for card in cards:
        if card.sweep is not None and card.sweep != sweep:
            cells = sum(other.sweep == card.sweep for other in cards)
            table.add_row(Text(card.sweep, style="bold"), Text(f"sweep, {cells} runs"))
        sweep = card.sweep
        table.add_row(
            Text(_title(card)),
            Text(_state(card), style=_STYLES[card.state]),
            Text(_rounds(card)),
            Text(_score(card)),
            Text("-" if card.promise is None else card.promise.numbers),
            Text(_when(card.changed) or "-"),
        )
    return table


def runs_json(cards: Sequence[RunCard], problems: Sequence[str]) -> dict[str, Any]:
    """Runs as one document; unknown values are null."""
    return {"runs": [_as_json(card) for card in cards], "problems": list(problems)}


def _as_json(card: RunCard) -> dict[str, Any]:
    values = {name: getattr(card, name) for name in _COLUMNS}
    promises = {"promise": card.promise, "of_records": card.of_records}
    return (
        values
        | {name: None if one is None else one.to_dict() for name, one in promises.items()}
        | {
            "promises": card.promise is None or card.promise.promises,
            "loss": card.test_loss,
            "measured_on": card.score.measured_on,
            "accuracy": None,
            card.score.name: card.score.value,
            "when": _when(card.changed, "seconds"),
            "problems": list(card.problems),
        }
    )


_COLUMNS = ("name", "sweep", "variant", "place", "kind", "state", "round", "rounds")


def _title(card: RunCard) -> str:
    if card.sweep is None:
        return card.name
    title, variant = f"  {card.name.rpartition('/')[2]}", card.variant or ""
    if card.place is not None:
        variant += f" at {card.place}"
    variant = variant.strip()
    return f"{title} ({variant})" if variant else title


def _score(card: RunCard) -> str:
    return "-" if card.score.value is None else f"{card.score.title} {card.score.with_auc}"


def _state(card: RunCard) -> str:
    return str(card.state) if card.kind == "training" else f"{card.state} ({card.kind})"


def _rounds(card: RunCard) -> str:
    if card.round is None and card.rounds is None:
        return "-"
    return f"{card.round or 0}/{card.rounds or '?'}"


def _when(seconds: float | None, precision: str = "minutes") -> str | None:
    """A local time; None for one that no calendar has."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds).isoformat(" ", timespec=precision)
    except (OverflowError, ValueError, OSError):
        return None
