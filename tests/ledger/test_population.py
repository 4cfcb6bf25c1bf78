"""Who is in an account: found by source or rows, told by keyed digests, never relabelled."""

from __future__ import annotations

import json
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flat_plans import calibrated_plan
from kind_trainings import PLANS
from record_plans import record_plan

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import NeighboringRelation
from fl_dp.ledger import (
    NATURAL,
    LedgerCorrupted,
    LedgerUnavailable,
    Population,
    SpentLedger,
    enter_records,
    enter_sweep,
    enter_unprotected,
)
from fl_dp.ledger.entries import next_entry
from fl_dp.ledger.population import key_file, made_key
from fl_dp.option_errors import OptionError
from fl_dp.plan.ceiling import Neighbours, epsilon_ceiling

CAP = PrivacyBudget(epsilon=8.0, delta=1e-3)
PATIENTS = Population(source="/srv/patients", rows="all of the patients", clients="seed 0")
CLIENT = Neighbours(unit="client", relation=NeighboringRelation.ZERO_OUT)
RECORD = Neighbours(unit="record", relation=NeighboringRelation.REPLACE_ONE)


def plan_of(epsilon: float = 1.0, *, delta: float = 1e-4) -> Plan:
    sizes: dict[str, Any] = {"num_clients": 200, "clipping_norm": 1.0, "sampling_rate": 0.25}
    return calibrated_plan(PrivacyBudget(epsilon=epsilon, delta=delta), rounds=3, **sizes)


def enter(
    file: Path, name: str, population: Population | None, plan: Plan | None = None, **options: Any
) -> None:
    with PrivacyLedger.open(
        file, plan or plan_of(), name=name, population=population, **options
    ) as ledger:
        ledger.commit(ledger.reserve(round=1))


def names_in(file: Path) -> list[str]:
    with SpentLedger.read(file) as ledger:
        return list(ledger.account.trainings)


@pytest.mark.parametrize(
    "same",
    [
        PATIENTS,
        replace(PATIENTS, source="/tmp/copy"),  # all rows, elsewhere
        replace(PATIENTS, rows="one patient more"),  # changed since
        replace(PATIENTS, rows=None),
        None,  # whoever opens it says so
    ],
    ids=["the same", "a copy", "changed", "rows unknown", "declared"],
)
def test_a_source_or_all_rows_in_common_are_the_same_people(
    tmp_path: Path, same: Population | None
) -> None:
    file = tmp_path / "people.db"
    enter(file, "first", PATIENTS)
    enter(file, "second", same)
    assert names_in(file) == ["first", "second"]


@pytest.mark.parametrize(
    "other",
    [
        Population(source="/srv/visitors", rows="all of the visitors", clients="seed 0"),
        Population(source="all of the patients"),  # one kind of digest is not the other
        Population(rows="/srv/patients"),
    ],
)
def test_a_training_of_other_people_is_not_entered(tmp_path: Path, other: Population) -> None:
    file = tmp_path / "people.db"
    enter(file, "first", PATIENTS)
    written = file.read_bytes()
    with pytest.raises(OptionError, match=r"'second' is of other people than the account people"):
        enter(file, "second", other)
    with pytest.raises(OptionError, match="'first' is of other people"):  # nor goes one on
        enter(file, "first", other)
    assert file.read_bytes() == written


def test_an_account_without_people_compares_nobody_and_has_no_key(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    enter(file, "first", None)
    enter(file, "second", PATIENTS)
    assert names_in(file) == ["first", "second"] and not key_file(file).exists()


def test_nobody_at_all_is_no_population() -> None:
    with pytest.raises(ValueError, match="needs a source or a fingerprint"):
        Population(clients=NATURAL)


# Clients.


def totals(file: Path) -> dict[Neighbours, float]:
    with SpentLedger.read(file) as ledger:
        return ledger.account.totals()


def test_rows_that_are_dealt_anew_make_other_clients_whose_records_are_counted(
    tmp_path: Path,
) -> None:
    file, again = tmp_path / "people.db", tmp_path / "again.db"
    for place, clients in ((file, "seed 1"), (again, "seed 0")):
        enter(place, "first", PATIENTS)
        enter(place, "second", replace(PATIENTS, clients=clients))
    dealt, kept = totals(file), totals(again)
    assert kept[CLIENT] < 2.0 and dealt[CLIENT] == float("inf")
    # Both trainings say as much of a record, as if all of a client's data were replaced.
    assert dealt[RECORD] == kept[RECORD] == 2.0 * epsilon_ceiling(plan_of(), RECORD) > 2.0


def test_natural_clients_stay_who_they_are(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    for name in ("first", "second"):
        enter(file, name, replace(PATIENTS, rows=name, clients=NATURAL))
    assert 1.0 < totals(file)[CLIENT] < 2.0


def test_a_cap_on_clients_refuses_others(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    enter(file, "first", PATIENTS, cap=CAP)
    with pytest.raises(OptionError, match=r"clients of 'second' are not those whom the cap"):
        enter(file, "second", replace(PATIENTS, clients="seed 1"))
    enter(file, "second", PATIENTS)
    assert names_in(file) == ["first", "second"]


def test_a_sweep_over_seeds_is_of_other_clients_each_time(tmp_path: Path) -> None:
    plans = {"grid/0": plan_of(), "grid/1": plan_of(2.0)}
    dealt = {name: replace(PATIENTS, clients=name) for name in plans}
    kept = dict.fromkeys(plans, PATIENTS)
    files = [tmp_path / "dealt.db", tmp_path / "kept.db"]
    for file, populations in zip(files, (dealt, kept), strict=True):
        enter_sweep(file, "grid", plans, populations=populations)
        enter(file, "grid/1", populations["grid/1"], plans["grid/1"])
    assert totals(files[0])[CLIENT] == float("inf") > totals(files[1])[CLIENT]
    assert totals(files[0])[RECORD] == totals(files[1])[RECORD] < float("inf")
    capped = tmp_path / "capped.db"
    with pytest.raises(OptionError, match="clients of 'grid/1' are not those"):
        enter_sweep(capped, "grid", plans, populations=dealt, cap=CAP)
    enter_sweep(capped, "grid", plans, populations=kept, cap=CAP)
    with pytest.raises(OptionError, match="'grid/0' has other clients than when it began"):
        enter(capped, "grid/0", replace(PATIENTS, clients="seed 1"), plans["grid/0"])


def test_what_is_entered_without_a_plan_is_of_the_same_people_too(tmp_path: Path) -> None:
    file, visitors = tmp_path / "people.db", Population(source="/srv/visitors")
    records = replace(record_plan(epsilon=1.0, noise_multiplier=9.0), training="records")
    enter_records(file, "records", records, population=PATIENTS)
    enter_unprotected(file, "baseline", "no noise", delta=1e-5, population=PATIENTS)
    for again in (
        lambda: enter_records(file, "other", records, population=visitors),
        lambda: enter_unprotected(file, "other", "no noise", delta=1e-5, population=visitors),
        lambda: enter_sweep(file, "other", {"a": plan_of()}, populations={"a": visitors}),
    ):
        with pytest.raises(OptionError, match="of other people than the account"):
            again()


def test_a_cap_on_records_is_of_the_same_records_whatever_the_clients_are(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    records: Any = PLANS["distributed_records"]().calibrated()
    records = replace(records, neighboring_relation=NeighboringRelation.REPLACE_ONE).calibrated()
    enter(file, "first", PATIENTS, records, cap=PrivacyBudget(epsilon=60.0, delta=1e-2))
    enter(file, "second", replace(PATIENTS, clients="seed 1"))
    with SpentLedger.read(file) as ledger:
        spent = ledger.account.total(ledger.account.neighbours)
        assert spent == records.budget.epsilon + epsilon_ceiling(plan_of(), RECORD)


def test_a_training_goes_on_with_its_own_clients_alone(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    enter(file, "first", PATIENTS)
    with pytest.raises(OptionError, match="'first' has other clients than when it began"):
        enter(file, "first", replace(PATIENTS, clients="seed 1"))
    with PrivacyLedger.open(file, plan_of(), name="never begun", population=PATIENTS):
        pass  # nothing was reserved of it
    enter(file, "never begun", replace(PATIENTS, clients="seed 1"))
    assert totals(file)[CLIENT] == float("inf")


# Digests and their key.


def written_in(file: Path) -> str:
    with closing(sqlite3.connect(file)) as table:
        return "\n".join(row for (row,) in table.execute("SELECT payload FROM entries"))


def test_a_ledger_confirms_no_guess_without_its_key(tmp_path: Path) -> None:
    files = [tmp_path / "one.db", tmp_path / "other.db"]
    for file in files:
        enter(file, "first", PATIENTS)
        assert PATIENTS.source is not None and PATIENTS.source not in written_in(file)
        assert PATIENTS.rows is not None and PATIENTS.rows not in written_in(file)
        mode = stat.S_IMODE(key_file(file).stat().st_mode)
        assert mode == 0o600 and key_file(file).read_bytes().hex() not in written_in(file)
    people = [json.loads(written_in(file).splitlines()[0])["account"]["people"] for file in files]
    assert people[0]["rows"] != people[1]["rows"]  # by another key
    keyed = PATIENTS.keyed(made_key(files[0]))
    assert people[0]["rows"] == keyed.rows and people[0]["source"] == keyed.source


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"short")])
def test_without_its_key_an_account_takes_nobody_whom_it_can_t_tell(
    tmp_path: Path, damage: Any
) -> None:
    file = tmp_path / "people.db"
    enter(file, "first", PATIENTS)
    damage(key_file(file))
    with pytest.raises(LedgerUnavailable, match=r"people\.db\.key"):
        enter(file, "second", PATIENTS)
    assert names_in(file) == ["first"]  # an auditor needs no key


def test_another_key_finds_nobody(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    enter(file, "first", PATIENTS)
    key_file(file).write_bytes(bytes(32))
    with pytest.raises(OptionError, match="of other people"):
        enter(file, "second", PATIENTS)


def test_what_is_public_is_said_when_the_account_is_made_and_never_by_a_training(
    tmp_path: Path,
) -> None:
    file = tmp_path / "people.db"
    enter(file, "first", PATIENTS)
    enter(file, "second", replace(PATIENTS, public=True))
    with SpentLedger.read(file) as ledger:
        people = ledger.account.terms.people
    assert people is not None and not people.public


def test_clients_that_were_forged_into_a_capped_account_are_found(tmp_path: Path) -> None:
    file = tmp_path / "people.db"
    enter(file, "first", PATIENTS, cap=CAP)
    enter(file, "second", PATIENTS)
    with closing(sqlite3.connect(file)) as table:
        rows = table.execute("SELECT payload FROM entries ORDER BY sequence").fetchall()
        previous = None
        table.execute("DELETE FROM entries")
        for (payload,) in rows:
            fields = json.loads(payload)
            if fields["kind"] == "plan" and fields["training"] == "second":
                fields["clients"] = "others"
            previous = next_entry(previous, fields)
            table.execute(
                "INSERT INTO entries (sequence, hash, payload) VALUES (?, ?, ?)",
                (previous.sequence, previous.hash, previous.payload),
            )
        table.commit()
    with pytest.raises(LedgerCorrupted, match="are not those whom the cap"):
        SpentLedger.read(file)
