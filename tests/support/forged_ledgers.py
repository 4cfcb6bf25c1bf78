"""Ledgers with changed entries and a chain hashed again."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from flat_plans import calibrated_plan, noised_plan

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import (
    FixedSizeSampling,
    NeighboringRelation,
    NoiseSchedule,
    VisibleSampling,
)
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.entries import LedgerEntry, next_entry
from fl_dp.ledger.node import Account
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.mechanism_events import GaussianEvent, LaplaceEvent

BUDGET = PrivacyBudget(epsilon=2.0, delta=1e-3)
SIZES: dict[str, Any] = {"num_clients": 200, "clipping_norm": 1.0}
MEANS = LaplaceEvent(noise_multiplier=20.0)
PLANS: dict[str, Plan] = {
    "declared": calibrated_plan(
        BUDGET, rounds=4, sampling_rate=0.25, other_releases={MEANS: 1}, **SIZES
    ),
    "scheduled": calibrated_plan(
        BUDGET, rounds=4, sampling_rate=0.25, schedule=NoiseSchedule(name="cosine"), **SIZES
    ),
    "fixed size": noised_plan(  # its calibration takes four seconds
        2.8905,
        delta=BUDGET.delta,
        max_epsilon=BUDGET.epsilon,
        rounds=4,
        sampling=FixedSizeSampling(cohort=50),
        **SIZES,
    ),
    "capped": calibrated_plan(
        BUDGET,
        rounds=4,
        sampling=VisibleSampling(cohort=2),
        participation_cap=2,
        **SIZES,
    ),
    "at the clients": calibrated_plan(
        BUDGET, rounds=4, sampling_rate=1.0, client_scheme="laplace", **SIZES
    ),
}
Change = Callable[[list[dict[str, Any]]], None]


def written(path: Path, plan: Plan, *, insecure: bool = False) -> None:
    """Write what a training by its plan writes, with an attempt that failed."""
    rng = SecureRandom(insecure_seed=1) if insecure else None
    for _ in range(2):
        with PrivacyLedger.open(path, plan, rng=rng) as ledger:
            named = plan.sampling.cap is not None
            for number in (1, 2):
                units = [f"{ledger.rounds_spent}a", f"{ledger.rounds_spent}b"] if named else None
                try:
                    held = ledger.reserve(round=number, participants=units)
                except RuntimeError:  # the second opening has less left
                    continue
                if number == 2:
                    ledger.commit(held)
    for event, _ in plan.other_releases:
        with PrivacyLedger.open(path, plan, rng=rng) as ledger:
            ledger.commit(ledger.reserve_release("means", event))


def hashed_again(path: Path, change: Change) -> None:
    """Change entries, and hash the chain as anybody who can write the file is able to."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT payload FROM entries ORDER BY sequence").fetchall()
        entries = [json.loads(payload) for (payload,) in rows]
        change(entries)
        connection.execute("DELETE FROM entries")
        last: LedgerEntry | None = None
        for fields in entries:
            last = next_entry(last, fields)
            connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?)", (last.sequence, last.payload, last.hash)
            )
        connection.commit()


def one_field_changes(path: Path) -> Iterator[tuple[str, Change]]:
    """Each field of each entry, named `kind.field`, with a change of its value that keeps its form.

    Numbers are doubled, texts grow, truths turn; what is None stays.
    """
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT payload FROM entries ORDER BY sequence").fetchall()
    for number, (payload,) in enumerate(rows):
        fields = json.loads(payload)
        for keys, value in _leaves(fields):
            if value is None:
                continue
            name = ".".join(key for key in (fields["kind"], *keys) if isinstance(key, str))
            yield name, partial(_set, number=number, keys=keys, value=_another(value))


def _leaves(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _leaves(inner, (*keys, key))
    else:
        yield keys, value


def _another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return f"{value}x" if isinstance(value, str) else 2 * value + (value == 0)


def _set(entries: list[dict[str, Any]], *, number: int, keys: Any, value: Any) -> None:
    inner: Any = entries[number]
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value


def each(kind: str, key: str, value: Any, *, of: str | None = None) -> Change:
    def change(entries: list[dict[str, Any]]) -> None:
        changed = 0
        for fields in entries:
            if fields["kind"] == kind and (of is None or of in fields):
                assert fields.get(key) != value
                fields[key] = value
                changed += 1
        assert changed

    return change


def undeclared(entries: list[dict[str, Any]]) -> None:
    for fields in entries:
        if fields.get("what") == "means":
            fields["noise_multiplier"] = 1e6


def louder(entries: list[dict[str, Any]]) -> None:
    for fields in entries:
        if "round" in fields:
            fields["noise_multiplier"] = 1e6


def without_an_opening(entries: list[dict[str, Any]]) -> None:
    entries[:] = [fields for fields in entries if fields["kind"] != "run"]


def another_run(entries: list[dict[str, Any]]) -> None:
    next(fields for fields in entries if "round" in fields)["run"] = "nobody"


FORGED: list[tuple[str, str, Change, str]] = [
    *((plan, "noise", louder, "noise") for plan in PLANS),
    *((plan, "round 99", each("reserve", "round", 99, of="round"), "round 99") for plan in PLANS),
    ("declared", "rate", each("reserve", "sampling_rate", 0.01, of="round"), "sampling_rate"),
    ("declared", "attempt", each("reserve", "attempt", 7, of="round"), "attempt"),
    ("declared", "event", each("reserve", "event", "laplace", of="round"), "event"),
    ("declared", "undeclared", undeclared, "not among the plan's other_releases"),
    ("declared", "participants", each("reserve", "participants", ["a"], of="round"), "secret"),
    ("fixed size", "clients", each("reserve", "num_units", 10**6), "num_units"),
    ("fixed size", "cohort", each("reserve", "cohort", 1), "cohort"),
    ("capped", "participants", each("reserve", "participants", ["a", "b"]), "have taken part 2"),
    ("declared", "source of noise", each("run", "randomness", "dice"), "a source of noise 'dice'"),
    ("declared", "opened for fewer", each("run", "denominator", 10.0), "denominator"),
    ("declared", "opened for less", each("run", "sensitivity", 0.1), "sensitivity"),
    ("declared", "opened for others", each("run", "unit", "record"), "unit"),
    ("declared", "opened otherwise", each("run", "sampling", "fixed-size"), "sampling"),
    ("declared", "never opened", without_an_opening, "no opening"),
    ("declared", "of another run", another_run, "no opening"),
]


def charge_unread(path: Path) -> None:
    """Charge a node for as much as there is room for, and then for more."""
    event, budget = GaussianEvent(noise_multiplier=8.0), PrivacyBudget(epsilon=2.0, delta=1e-5)
    old, new = (Account(unit="record", source=name) for name in ("old", "new"))
    with NodeLedger.open(path) as ledger:
        most = ledger.spending(old).most(
            event, budget=budget, neighboring_relation=NeighboringRelation.ZERO_OUT
        )
        for account, count, released in ((old, most, True), (new, 1, False), (new, 3, False)):
            charge = ledger.charge_unread(
                account, event, count=count, budget=budget, what="round 1"
            )
            assert ledger.name_data(charge, "print") is released


def taken_off(entries: list[dict[str, Any]]) -> None:
    """Say that a charge was taken off the data for which there was room."""
    next(fields for fields in entries if fields["kind"] == "data")["released"] = False
