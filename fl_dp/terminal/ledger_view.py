"""A ledger for an auditor: a table, JSON or CSV, always from the verified entries.

An export contains no more times than the ledger, which has one per opening.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fl_dp.accounting.events import event_from_dict
from fl_dp.codec import decode
from fl_dp.documents import MALFORMED
from fl_dp.guarantee import Guarantee
from fl_dp.ledger import LedgerCorrupted, SpentLedger
from fl_dp.ledger.entered import EnteredSweep
from fl_dp.ledger.entries import LedgerEntry
from fl_dp.plan import RecordPlan, plan_from_dict
from fl_dp.statement.of_clients import second_figure_of
from fl_dp.statement.sentences import ACCOUNTANTS
from fl_dp.statement.words import (
    describe_event,
    second_figure_in_words,
)

from .bounds_table import bounds_json
from .sheets import sheet, write_sheet

_COLUMNS = (
    "sequence",
    "kind",
    "training",
    "run",
    "round",
    "attempt",
    "what",
    "event",
    "noise_multiplier",
    "sampling_rate",
    "participants",
    "reserved",
    "time",
    "hash",
)


def ledger_json(ledger: SpentLedger) -> dict[str, Any]:
    """Return what was spent and every entry as plain JSON values."""
    return {
        "location": ledger.location,
        "verified": True,
        **bounds_json(ledger.epsilon(), ledger.plan.budget.delta),
        "promised": ledger.promise().by_name,
        "second_figure": asdict(second_figure_of(ledger)),
        "guarantee": Guarantee.of(ledger.plan, spent=ledger.epsilon().best).to_dict(),
        "budget": ledger.plan.budget.epsilon,
        "rule": ledger.rule,
        "insecure": ledger.insecure,
        "rounds_spent": ledger.rounds_spent,
        "rounds_committed": ledger.rounds_committed,
        "participations": ledger.participations,
        "plan": ledger.plan.to_dict(),
        "entries": [
            {"sequence": entry.sequence, "hash": entry.hash, **entry.fields}
            for entry in ledger.entries
        ],
    }


def write_csv(ledger: SpentLedger, target: Path) -> None:
    """Write one line per entry; fields without a column of their own are JSON in `more`.

    Raises:
        ValueError: If the target's name does not end in `.csv`: it might be the ledger itself.
        OSError: If it can't be written.
        LedgerCorrupted: If an entry lacks a field that is shown.
    """
    if target.suffix.lower() != ".csv":
        raise ValueError(f"the entries are a CSV: write a name that ends in .csv, got '{target}'")
    write_sheet(target, [*_COLUMNS, "more"], map(_csv_row, ledger.entries), public=True)


def _csv_row(entry: LedgerEntry) -> list[Any]:
    fields = {"sequence": entry.sequence, "hash": entry.hash, **entry.fields}
    if "participants" in fields:
        with _shown(entry):
            fields["participants"] = " ".join(fields["participants"])
    more = {name: value for name, value in fields.items() if name not in _COLUMNS}
    row = [_inert(fields.get(name)) for name in _COLUMNS]
    if not more:
        return [*row, ""]
    return [*row, json.dumps(more, sort_keys=True)]


def ledger_table(ledger: SpentLedger) -> Table:
    """Return the entries as a table for the terminal.

    Raises:
        LedgerCorrupted: If an entry lacks a field that is shown.
    """
    rows = []
    for entry in ledger.entries:
        with _shown(entry):
            text = _of_training(ledger, entry, _describe(entry.fields))
        rows.append((str(entry.sequence), entry.kind, text, entry.hash[:12]))
    return sheet(ledger.location, ("entry", "kind", "what", "hash"), rows)


def folded_table(ledger: SpentLedger) -> Table:
    """Return the entries with equal ones that follow each other in one row.

    Raises:
        LedgerCorrupted: If an entry lacks a field that is shown.
    """
    released = set()
    for entry in ledger.entries:
        with _shown(entry):
            if entry.kind == "commit":
                released.add(entry.fields["reserved"])
    rows: list[_Row] = []
    for entry in ledger.entries:
        if rows and entry.kind in _PARTS:
            rows[-1].last = entry.sequence
            continue
        with _shown(entry):
            row = _row_of(entry, released)
            row.description = _of_training(ledger, entry, row.description)
        if not rows or not rows[-1].takes_in(row):
            rows.append(row)
    shown = [(_span(row.first, row.last), row.text) for row in rows]
    return sheet(ledger.location, ("entries", "what"), shown)


# Entries that belong to the release before them; --entries shows them one by one.
_PARTS = frozenset({"ask", "fold", "commit"})


@dataclass(kw_only=True)
class _Row:
    """Equal entries that follow each other.

    Attributes:
        description: The entries in words, the same for all of them.
        first: Sequence number of the first entry.
        last: Sequence number of the last one.
        rounds: First and last round that they charge; None if they charge no round.
        times: Number of entries.
    """

    description: str
    first: int
    last: int
    rounds: tuple[int, int] | None = None
    times: int = 1

    @property
    def text(self) -> str:
        """The row as text for a person."""
        if self.rounds is not None:
            first, last = self.rounds
            plural = "s" if first < last else ""
            return f"round{plural} {_span(first, last)}: {self.description}"
        if self.times == 1:
            return self.description
        return f"{self.times} times {self.description}"

    def takes_in(self, other: _Row) -> bool:
        """Add an entry that is equal and, if it charges a round, charges the next one."""
        if self.description != other.description:
            return False
        if (self.rounds is None) != (other.rounds is None):
            return False
        if self.rounds is not None and other.rounds is not None:
            if other.rounds[0] != self.rounds[1] + 1:
                return False
            self.rounds = (self.rounds[0], other.rounds[1])
        self.last = other.last
        self.times += 1
        return True


def _row_of(entry: LedgerEntry, released: set[int]) -> _Row:
    fields, at = entry.fields, entry.sequence
    if entry.kind != "reserve":
        return _Row(description=f"{entry.kind}: {_describe(fields)}", first=at, last=at)
    outcome = "released" if at in released else "no known release"
    if "round" not in fields:
        return _Row(description=f"{_describe(fields)}; {outcome}", first=at, last=at)
    attempt = f", attempt {fields['attempt']}" if fields["attempt"] > 1 else ""
    description = f"{describe_event(event_from_dict(fields))}{attempt}; {outcome}"
    rounds = (fields["round"], fields["round"])
    return _Row(description=description, first=at, last=at, rounds=rounds)


def _of_training(ledger: SpentLedger, entry: LedgerEntry, text: str) -> str:
    """Return a text with its training's name, where the account has several."""
    if ledger.account.size == 1:
        return text
    return f"{entry.fields['training']}: {text}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def ledger_summary(ledger: SpentLedger) -> list[str]:
    """Return what a person asks first, one line each: verified, spent of what, rounds."""
    spent = ledger.epsilon()
    lines = [
        f"Chain verified: {len(ledger.entries)} entries, the last is {ledger.anchor.hash[:12]}"
    ]
    if ledger.insecure:
        lines.append("INSECURE noise: nothing is promised")
    accountant = ACCOUNTANTS.get(spent.best_name, spent.best_name)
    guarantee = Guarantee.of(ledger.plan, spent=spent.best)
    lines.append(
        f"Spent: {guarantee}, of a budget of {ledger.plan.budget.epsilon:g}, by {accountant} "
        f"({spent.best_name})"
    )
    promised = ledger.promise().best
    if promised > spent.best:
        lines.append(
            f"Quote {Guarantee.of(ledger.plan, promised)}, the plan's, if a release influenced the "
            "decision to stop here"
        )
    lines.append(second_figure_in_words(second_figure_of(ledger)))
    if ledger.plan.rounds:
        line = f"Rounds: {ledger.rounds_spent} of {ledger.plan.rounds} planned were charged"
        lost = ledger.rounds_spent - ledger.rounds_committed
        if lost:
            line += f", {lost} of them without a known release"
        lines.append(line)
    return lines


@contextmanager
def _shown(entry: LedgerEntry) -> Iterator[None]:
    """Report an entry as corrupt if it lacks a field that is shown.

    What was spent does not depend on that field, so replaying the ledger did not find it.
    """
    try:
        yield
    except (*MALFORMED, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise LedgerCorrupted(f"entry {entry.sequence} can't be shown: {reason}") from error


def _inert(value: Any) -> Any:
    """Keep a spreadsheet from reading a name as a formula."""
    if isinstance(value, str) and value and value[0] in "=+-@":
        return f"'{value}"
    return value


def _describe(fields: dict[str, Any]) -> str:
    match fields["kind"]:
        case "plan":
            plan = plan_from_dict(fields["plan"])
            what = "statistics alone"
            if plan.rounds:
                what = (
                    f"{plan.rounds} rounds of a {plan.kind} plan, noise multiplier from "
                    f"{plan.noise_multiplier:.5g}"
                )
            return f"{what}, {Guarantee.of(plan).planned}"
        case "sweep":
            sweep = EnteredSweep.read(fields)
            return f"{len(sweep.states)} plans together, at most {sweep.guarantee}"
        case "records":
            plan_of_records = decode(RecordPlan, fields["plan"], "plan")
            return f"DP-SGD inside clients, {Guarantee.of(plan_of_records).planned}"
        case "unprotected":
            return f"{fields['what']}: no promise"
        case "run":
            return f"opened by run {fields['run']}, randomness {fields['randomness']}"
        case "reserve":
            event = describe_event(event_from_dict(fields))
            if "round" not in fields:
                return f"{fields['what']}: {event}"
            return f"round {fields['round']}, attempt {fields['attempt']}: {event}"
        case "assign":
            groups = sorted(set(fields["groups"].values()))
            return f"units to groups: {len(fields['groups'])} to {len(groups)}, for good"
        case "chosen":
            return f"{fields['chosen']}: {fields['how']}"
        case "ask":
            return f"index {fields['index']}: asked {' '.join(fields['units'])}"
        case "fold":
            return f"index {fields['index']}: adds what {' '.join(fields['units'])} answered"
        case _:
            return f"of entry {fields['reserved']}"
