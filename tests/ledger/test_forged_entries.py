"""A ledger whose chain was hashed again: each entry is compared with what the plan would charge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forged_ledgers import (
    BUDGET,
    FORGED,
    PLANS,
    Change,
    charge_unread,
    hashed_again,
    one_field_changes,
    taken_off,
    written,
)

from fl_dp import Plan, PrivacyLedger
from fl_dp.ledger import LedgerCorrupted, NodeLedger, SpentLedger
from fl_dp.ledger.node import Account, Marks, RunLimit, Use
from fl_dp.ledger.training import library_versions
from fl_dp.ledger.witness import FileWitness
from fl_dp.mechanisms.mechanism_events import GaussianEvent


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


@pytest.mark.parametrize("name", sorted(PLANS))
def test_what_goes_by_the_plan_is_read_on_a_machine_that_rounds_otherwise(
    tmp_path: Path, name: str
) -> None:
    def rounded(entries: list[dict[str, Any]]) -> None:
        for fields in entries:
            if "round" in fields:
                fields["noise_multiplier"] *= 1.0 + 4e-16
            if "denominator" in fields:
                fields["denominator"] *= 1.0 - 4e-16

    path = tmp_path / "ledger.db"
    written(path, PLANS[name], insecure=True)
    hashed_again(path, rounded)
    with SpentLedger.read(path) as ledger:
        assert ledger.insecure
        assert ledger.rounds_spent >= 2


# What docs/privacy.md says that only a witness shows, by kind of entry and field.
FREE_IN_A_TRAINING = {
    *(f"run.{field}" for field in ("time", "rule", "finest_grid")),
    *(f"run.versions.{name}" for name in library_versions()),
    "reserve.what",  # the name of a declared release
    "reserve.participants",
    "plan.account.name",
    "plan.account.delta",  # a larger one
    "plan.account.odometer.order",
    "plan.account.odometer.delta",
}
FREE_IN_A_PLAN = {
    "budget.epsilon",
    "budget.delta",
    "rounds",
    "num_clients",  # of visible cohorts alone
    "other_releases.count",
    "schedule.floor",
    "schedule.levels",
    "units_per_node",
    "contribution_check",
    "coins_at_nodes",
    "scalar_noise_std",
    "sampling.participation_cap",
}


def unnoticed(path: Path, look: Callable[[Path], None]) -> set[str]:
    """Fields of which a changed value, hashed again, is read as if nothing were."""
    original, fields = path.read_bytes(), set()
    for name, change in one_field_changes(path):
        hashed_again(path, change)
        try:
            look(path)
            fields.add(name)
        except LedgerCorrupted:
            pass
        path.write_bytes(original)
    return fields


def look_at_training(path: Path) -> None:
    SpentLedger.read(path).close()


def test_of_a_training_s_ledger_the_page_names_each_field_that_a_new_chain_hides(
    tmp_path: Path,
) -> None:
    hidden: set[str] = set()
    for name, plan in PLANS.items():
        path = tmp_path / f"{name}.db"
        written(path, plan)
        hidden |= unnoticed(path, look_at_training)
    free = FREE_IN_A_TRAINING | {"commit.reserved"}  # another one that waits
    assert hidden <= free | {f"plan.plan.{field}" for field in FREE_IN_A_PLAN}
    assert hidden >= FREE_IN_A_TRAINING  # the page claims no more than there is


def used(path: Path) -> None:
    """Write one entry of each kind that a node's ledger has."""
    with NodeLedger.open(path, witness=FileWitness(path.with_name("second") / "heads")) as ledger:
        ward, event = Account(unit="record", source="ward"), GaussianEvent(noise_multiplier=9.0)
        terms: dict[str, Any] = {"budget": BUDGET, "what": "round 1"}
        limit = RunLimit(run="run 7", budget=BUDGET)
        use = Use(run=7, purpose="train", app="hospital/heart", message="m1")
        number = ledger.charge_unread(ward, event, limit=limit, use=use, **terms)
        ledger.name_data(number, "print")
        ledger.note_reliance("ward", clipping_norm=1.0, use=Use(run=8, purpose="train"))
        ledger.note_marks("store", Marks(count=3, last="ab"))


def test_of_a_node_s_ledger_only_form_and_kind_are_bound_and_a_witness_shows_the_rest(
    tmp_path: Path,
) -> None:
    path = tmp_path / "node.db"
    (tmp_path / "second").mkdir()
    used(path)

    def look(path: Path) -> None:
        with NodeLedger.read(path) as ledger:
            ledger.require_owed()

    def look_witnessed(path: Path) -> None:
        NodeLedger.read(path, witness=FileWitness(tmp_path / "second" / "heads")).close()

    charged = {"noise_multiplier", "count", "budget.epsilon", "source", "limit.run", "use.run"}
    hidden = unnoticed(path, look)
    assert {f"charge.{field}" for field in charged} <= hidden
    assert not {name for name in hidden if name.endswith((".kind", ".unit", ".event", ".day"))}
    assert unnoticed(path, look_witnessed) == set()


def test_a_node_s_charge_is_taken_off_the_data_only_where_there_was_no_room(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    charge_unread(path)
    with NodeLedger.read(path) as ledger:
        ledger.require_owed()
    hashed_again(path, taken_off)
    with (
        NodeLedger.read(path) as ledger,
        pytest.raises(LedgerCorrupted, match="there was room for it"),
    ):
        ledger.require_owed()


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


@pytest.mark.parametrize(("name", "more"), [("declared", 1), ("scheduled", 50)])
def test_more_attempts_than_the_budget_pays_for_are_refused(
    tmp_path: Path, name: str, more: int
) -> None:
    path = tmp_path / "ledger.db"
    written(path, PLANS[name])
    plan = PLANS[name]

    def many(entries: list[dict[str, Any]], beyond: int) -> None:
        rounds = [entry for entry in entries if "round" in entry]
        attempts = sum(entry["round"] == rounds[-1]["round"] for entry in rounds)
        gate, added = plan.filter(), beyond
        for entry in rounds:
            gate.spend(event := plan.event_at(entry["noise_multiplier"]))
        while not gate.would_exceed(event):
            gate.spend(event)
            added += 1
        entries += [rounds[-1] | {"attempt": attempts + number} for number in range(1, added + 1)]

    hashed_again(path, partial(many, beyond=0))
    SpentLedger.read(path).close()
    hashed_again(path, partial(many, beyond=more))
    with pytest.raises(LedgerCorrupted, match="spend more than epsilon 2"):
        SpentLedger.read(path)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_budget_that_was_lowered_afterwards_is_refused(tmp_path: Path, plan: Plan) -> None:
    """Also that of a training that stopped early, whose entries are all planned ones."""
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path, plan) as ledger:
        units = ["a", "b"] if plan.sampling.cap is not None else None
        ledger.commit(ledger.reserve(round=1, participants=units))

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


def test_a_text_of_a_node_s_charge_can_be_printed(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    with NodeLedger.open(path) as ledger:
        ward = Account(unit="record", source="ward")
        ledger.charge(ward, GaussianEvent(noise_multiplier=9.0), budget=BUDGET, what="round 1")

    def hidden(entries: list[dict[str, Any]]) -> None:
        entries[-1]["what"] = "\x1b[2K"

    NodeLedger.read(path).close()
    hashed_again(path, hidden)
    with pytest.raises(LedgerCorrupted, match="has to be printable"):
        NodeLedger.read(path)
