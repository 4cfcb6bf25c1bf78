"""A ledger whose chain was hashed again: each entry is compared with what the plan would charge."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flat_plans import calibrated_plan
from typer.testing import CliRunner

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import (
    FixedSizeSampling,
    NeighboringRelation,
    NoiseSchedule,
    VisibleSampling,
)
from fl_dp.commands.app import app
from fl_dp.ledger import LedgerCorrupted, NodeLedger, SpentLedger
from fl_dp.ledger.entries import LedgerEntry, next_entry
from fl_dp.ledger.node import Account
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.events import GaussianEvent, LaplaceEvent

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
    "fixed size": calibrated_plan(BUDGET, rounds=4, sampling=FixedSizeSampling(cohort=50), **SIZES),
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
    """Write what a training writes that goes by its plan, with an attempt that failed."""
    rng = SecureRandom(insecure_seed=1) if insecure else None
    for _ in range(2):
        with PrivacyLedger.open(path, plan, rng=rng) as ledger:
            named = plan.participation_cap is not None
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
    """Change entries, and hash the chain as whoever can write the file is able to."""
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


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [pytest.param(name, change, said, id=f"{name}: {what}") for name, what, change, said in FORGED],
)
def test_what_the_plan_would_not_have_charged_is_refused(
    tmp_path: Path, name: str, change: Change, said: str
) -> None:
    path, plan = tmp_path / "ledger.db", PLANS[name]
    written(path, plan)
    with SpentLedger.read(path) as ledger:
        assert ledger.rounds_spent >= 2  # what went by the plan is read
    hashed_again(path, change)
    with pytest.raises(LedgerCorrupted, match=said):
        SpentLedger.read(path)
    with pytest.raises(LedgerCorrupted, match=said):
        PrivacyLedger.open(path, plan)
    told = CliRunner().invoke(app, ["ledger", str(path)])
    assert told.exit_code == 1 and "can't be read" in " ".join(told.stderr.split())


@pytest.mark.parametrize("name", sorted(PLANS))
@pytest.mark.parametrize("insecure", [False, True])
def test_what_goes_by_the_plan_is_read_on_a_machine_that_rounds_otherwise(
    tmp_path: Path, name: str, insecure: bool
) -> None:
    def rounded(entries: list[dict[str, Any]]) -> None:
        for fields in entries:
            if "round" in fields:
                fields["noise_multiplier"] *= 1.0 + 4e-16
            if "denominator" in fields:
                fields["denominator"] *= 1.0 - 4e-16

    path = tmp_path / "ledger.db"
    written(path, PLANS[name], insecure=insecure)
    hashed_again(path, rounded)
    with SpentLedger.read(path) as ledger:
        assert ledger.insecure is insecure
        assert ledger.rounds_spent >= 2


def test_a_node_s_charge_is_taken_off_the_data_only_where_there_was_no_room(
    tmp_path: Path,
) -> None:
    path, event = tmp_path / "ledger.db", GaussianEvent(noise_multiplier=8.0)
    budget = PrivacyBudget(epsilon=2.0, delta=1e-5)
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
    told = CliRunner().invoke(app, ["ledger", str(path)])
    assert told.exit_code == 0, told.stderr

    def taken_off(entries: list[dict[str, Any]]) -> None:
        next(fields for fields in entries if fields["kind"] == "data")["released"] = False

    hashed_again(path, taken_off)
    for command in (["ledger"], ["node", "ledger"]):
        told = CliRunner().invoke(app, [*command, str(path)])
        assert told.exit_code == 1
        assert "there was room for it" in " ".join(told.stderr.split())


def test_a_reservation_like_the_plan_s_gaussian_is_told_from_it(tmp_path: Path) -> None:
    """Rounds whose noise is right, and whose sample is not: a plain Gaussian costs more."""
    path = tmp_path / "ledger.db"
    written(path, PLANS["declared"])
    z = PLANS["declared"].noise_multiplier

    def plain(entries: list[dict[str, Any]]) -> None:
        for fields in entries:
            if "round" in fields:
                del fields["sampling_rate"]
                fields["event"] = GaussianEvent(noise_multiplier=z).kind

    hashed_again(path, plain)
    with pytest.raises(LedgerCorrupted, match="event"):
        SpentLedger.read(path)


@pytest.mark.parametrize("name", ["declared", "scheduled"])
def test_more_attempts_than_the_budget_pays_for_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ledger.db"
    written(path, PLANS[name])

    def many(entries: list[dict[str, Any]]) -> None:
        rounds = [entry for entry in entries if "round" in entry]
        attempts = sum(entry["round"] == rounds[-1]["round"] for entry in rounds)
        entries += [rounds[-1] | {"attempt": attempts + more} for more in range(1, 100)]

    SpentLedger.read(path).close()
    hashed_again(path, many)
    with pytest.raises(LedgerCorrupted, match="spend more than epsilon 2"):
        SpentLedger.read(path)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("rounds", [1, 4])
def test_a_budget_that_was_lowered_afterwards_is_refused(
    tmp_path: Path, plan: Plan, rounds: int
) -> None:
    """Also that of a training that stopped early, whose entries are all planned ones."""
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path, plan) as ledger:
        named = plan.participation_cap is not None
        for number in range(1, rounds + 1):
            units = [f"{number}a", f"{number}b"] if named else None
            ledger.commit(ledger.reserve(round=number, participants=units))

    def lower(entries: list[dict[str, Any]]) -> None:
        entries[0]["plan"]["budget"]["epsilon"] = 0.01

    hashed_again(path, lower)
    with pytest.raises(LedgerCorrupted, match=r"spend more than epsilon 0\.01"):
        SpentLedger.read(path)


@pytest.mark.parametrize("added", [{"count": 0}, {"index": 7}, {"group": 1}, {"what": "means"}])
def test_a_round_says_nothing_that_its_plan_does_not(tmp_path: Path, added: dict[str, Any]) -> None:
    path = tmp_path / "ledger.db"
    written(path, PLANS["scheduled"])

    def more(entries: list[dict[str, Any]]) -> None:
        next(entry for entry in entries if "round" in entry).update(added)

    hashed_again(path, more)
    with pytest.raises(LedgerCorrupted, match="is nothing that a reservation says"):
        SpentLedger.read(path)


@pytest.mark.parametrize(("kind", "key"), [("run", "time"), ("run", "rule"), ("reserve", "what")])
def test_a_text_of_an_entry_can_be_printed(tmp_path: Path, kind: str, key: str) -> None:
    path = tmp_path / "ledger.db"
    written(path, PLANS["declared"])

    def hidden(entries: list[dict[str, Any]]) -> None:
        found = [entry for entry in entries if entry["kind"] == kind and key in entry]
        found[0][key] = "\x1b[2K"

    hashed_again(path, hidden)
    with pytest.raises(LedgerCorrupted, match="has to be printable"):
        SpentLedger.read(path)


@pytest.mark.parametrize("key", ["what", "day"])
def test_a_text_of_a_node_s_charge_can_be_printed(tmp_path: Path, key: str) -> None:
    path = tmp_path / "node.db"
    with NodeLedger.open(path) as ledger:
        ward = Account(unit="record", source="ward")
        ledger.charge(ward, GaussianEvent(noise_multiplier=9.0), budget=BUDGET, what="round 1")

    def hidden(entries: list[dict[str, Any]]) -> None:
        entries[-1][key] = "\x1b[2K"

    NodeLedger.read(path).close()
    hashed_again(path, hidden)
    with pytest.raises(LedgerCorrupted, match="has to be printable"):
        NodeLedger.read(path)
