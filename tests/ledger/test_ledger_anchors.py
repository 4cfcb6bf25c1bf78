"""An end that was cut off, and a statement that was edited: neither is on anybody's word."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flat_plans import noised_plan

from fl_dp import Plan, PrivacyLedger
from fl_dp.ledger import LedgerAnchor, LedgerCorrupted
from fl_dp.ledger.entries import LedgerEntry, next_entry
from fl_dp.plan import RecordPlan
from fl_dp.statement import privacy_statement, read_statement, record_statement
from fl_dp.statement.check import entries_behind_statement, statement_differences

PLAN = noised_plan(
    1.0, delta=1e-3, rounds=5, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A ledger of three rounds, eight entries, with its statement beside it."""
    path = tmp_path / "ledger.db"
    spend(path, 1, 2, 3)
    with PrivacyLedger.read(path) as ledger:
        state(privacy_statement(ledger).to_dict(), path)
    return path


def spend(path: Path, *rounds: int, plan: Plan = PLAN) -> None:
    with PrivacyLedger.open(path, plan) as ledger:
        for number in rounds:
            ledger.commit(ledger.reserve(round=number))


def state(statement: dict[str, Any], path: Path) -> None:
    path.with_name("privacy.json").write_text(json.dumps(statement))


def stated(path: Path) -> dict[str, Any]:
    return read_statement(path.with_name("privacy.json"))


def cut(path: Path, entries: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM entries WHERE sequence > ?", (entries,))
        connection.commit()


def grow_back(path: Path, entries: int) -> None:
    """Cut the end off and write other entries of the same number in its place, as by a forger."""
    cut(path, entries)
    path.with_name("privacy.json").rename(path.with_name("away.json"))
    spend(path, 4, 5)
    path.with_name("away.json").rename(path.with_name("privacy.json"))


@pytest.mark.parametrize("left", [0, 1, 2, 4, 7])
def test_an_end_that_was_cut_off_is_seen_beside_the_statement(place: Path, left: int) -> None:
    cut(place, left)
    with pytest.raises(LedgerCorrupted, match=f"{left} entries and the privacy.json .* knows of 8"):
        PrivacyLedger.open(place, PLAN)


def test_a_deleted_ledger_is_not_begun_anew_beside_its_statement(place: Path) -> None:
    place.unlink()
    with pytest.raises(LedgerCorrupted, match=r"0 entries and the privacy\.json"):
        PrivacyLedger.open(place, PLAN)


def test_an_end_that_was_cut_off_and_grew_again_is_seen(place: Path) -> None:
    grow_back(place, 6)
    with PrivacyLedger.read(place) as ledger:
        assert len(ledger.entries) > 8
        with pytest.raises(LedgerCorrupted, match=r"entry 8 .* cut off and grew again"):
            entries_behind_statement(ledger, stated(place))
    with pytest.raises(LedgerCorrupted, match="entry 8"):
        PrivacyLedger.open(place, PLAN)


def test_nothing_is_written_to_a_ledger_that_was_cut(place: Path) -> None:
    cut(place, 6)
    before = place.read_bytes()
    with pytest.raises(LedgerCorrupted):
        PrivacyLedger.open(place, PLAN)
    assert place.read_bytes() == before


def test_a_ledger_that_went_on_beyond_its_statement_is_opened(place: Path) -> None:
    spend(place, 4)
    with PrivacyLedger.read(place) as ledger:
        assert entries_behind_statement(ledger, stated(place)) == 3  # opening, reservation, commit
        assert statement_differences(ledger, stated(place)) == []


def test_the_statement_of_another_ledger_in_the_folder_is_none_of_its_business(
    place: Path,
) -> None:
    spend(place.with_name("second.db"), 1)
    assert PrivacyLedger.read(place.with_name("second.db")).rounds_spent == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"ledger": "ledger.db", "ledger_hash": "0"}'])
def test_a_statement_that_can_not_be_read_stops_the_ledger_beside_it(
    place: Path, content: str
) -> None:
    """An empty one is what a full disk used to leave."""
    place.with_name("privacy.json").write_text(content)
    with pytest.raises(ValueError, match="statement"):
        PrivacyLedger.open(place, PLAN)


def test_an_anchor_that_was_kept_elsewhere_is_held_against_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    spend(path, 1, 2)
    with PrivacyLedger.read(path) as ledger:
        anchor = ledger.anchor
    PrivacyLedger.open(path, PLAN, anchor=anchor).close()
    cut(path, 4)
    with pytest.raises(LedgerCorrupted, match="4 entries and the anchor knows of 6"):
        PrivacyLedger.open(path, PLAN, anchor=anchor)


@pytest.mark.parametrize("fields", [{"entries": 0}, {"entries": True}, {"hash": None}])
def test_an_anchor_is_a_number_of_entries_and_a_hash(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no anchor"):
        LedgerAnchor(**{"entries": 1, "hash": "0" * 64, **fields})


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def edited(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda statement: statement | {key: change(statement[key])}


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (edited("epsilon", lambda each: each | {"pld": each["pld"] * 0.999}), "epsilon.pld"),
        (edited("epsilon", lambda each: each | {"zcdp": 0.1}), "epsilon.zcdp does not belong"),
        (
            edited("epsilon_so_far", lambda each: without(each, "rdp")),
            "epsilon_so_far.rdp is missing",
        ),
        (edited("delta", lambda delta: delta / 10), "delta is"),
        (edited("budget", lambda budget: budget | {"epsilon": 1.0}), "budget.epsilon is 1.0"),
        (edited("rounds", lambda _: 2), "rounds is 2 and should be 3"),
        (edited("rounds_committed", lambda _: 0), "rounds_committed is 0"),
        (edited("insecure", lambda _: True), "insecure is True"),
        (edited("unit", lambda _: "one city"), "unit is 'one city'"),
        (edited("not_covered", lambda texts: texts[1:]), "not_covered is"),
        (edited("noise_multipliers", lambda _: [9.0, 9.0, 9.0]), "noise_multipliers is"),
        (edited("releases", lambda _: []), "releases is"),
        (lambda statement: statement | {"certified_by": "us"}, "certified_by does not belong"),
    ],
)
def test_each_field_that_was_edited_is_named(
    place: Path, edit: Callable[[dict[str, Any]], dict[str, Any]], named: str
) -> None:
    with PrivacyLedger.read(place) as ledger:
        found = statement_differences(ledger, edit(stated(place)))
    assert len(found) == 1
    assert re.search(named, found[0])


def test_what_other_versions_round_differently_is_no_edit(place: Path) -> None:
    statement = stated(place)
    statement["epsilon"] = {
        name: value * (1 + 1e-9) for name, value in statement["epsilon"].items()
    }
    statement["versions"]["numpy"] = "99"
    with PrivacyLedger.read(place) as ledger:
        assert statement_differences(ledger, statement) == []


def test_the_statement_of_records_is_computed_from_its_own_parameters() -> None:
    plan = RecordPlan.from_noise_multiplier(
        1.0, delta=1e-5, sampling_rate=0.1, steps=5, participations=4, clipping_norm=1.0
    )
    statement = json.loads(
        json.dumps(record_statement(plan, participations=3, num_clients=20).to_dict())
    )
    assert statement_differences(None, statement) == []
    statement["epsilon"]["pld"] /= 2
    assert [each.partition(" ")[0] for each in statement_differences(None, statement)] == [
        "epsilon.pld"
    ]


@pytest.mark.parametrize("change", [{"ledger_entries": None}, {"ledger_hash": 3}, {"budget": None}])
def test_a_statement_that_says_nonsense_is_refused(place: Path, change: dict[str, Any]) -> None:
    with PrivacyLedger.read(place) as ledger:
        try:
            found = statement_differences(ledger, stated(place) | change)
        except (ValueError, LedgerCorrupted):
            found = ["refused"]
    assert found


def test_a_forger_who_rewrites_the_whole_chain_is_seen_against_the_anchor(place: Path) -> None:
    with closing(sqlite3.connect(place)) as connection:
        rows = connection.execute("SELECT payload FROM entries ORDER BY sequence").fetchall()
        connection.execute("DELETE FROM entries")
        last: LedgerEntry | None = None
        for (payload,) in rows:
            fields = json.loads(payload)
            if fields["kind"] == "run":  # of which no plan says anything
                fields["time"] = "2020-01-01T00:00+00:00"
            last = next_entry(last, fields)
            connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?)", (last.sequence, last.payload, last.hash)
            )
        connection.commit()
    with (
        PrivacyLedger.read(place) as ledger,  # the chain itself is sound
        pytest.raises(LedgerCorrupted, match="entry 8"),
    ):
        statement_differences(ledger, stated(place))
