from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_dp import PrivacyLedger, PrivacyPlan
from fl_dp.accounting import (
    LedgerCorrupted,
    PlanMismatch,
    PrivacyBudgetExhausted,
    privacy_statement,
)

PLAN = PrivacyPlan.from_noise_multiplier(
    1.0, delta=1e-3, rounds=5, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
)


def spend(path: Path, rounds: int) -> None:
    with PrivacyLedger.open(path, PLAN) as ledger:
        for number in range(1, rounds + 1):
            ledger.commit(ledger.reserve(round=number))


def test_a_round_is_on_disk_before_reserve_returns(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:
        ledger.reserve(round=1)
        assert PrivacyLedger.read(tmp_path / "ledger.db").rounds_spent == 1


def test_the_budget_is_spent_exactly_and_never_exceeded(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:
        for number in range(1, 6):
            ledger.commit(ledger.reserve(round=number))
        before = ledger.records
        with pytest.raises(PrivacyBudgetExhausted, match="round 6"):
            ledger.reserve(round=6)
        assert ledger.records == before
        assert ledger.epsilon().pld <= PLAN.budget.epsilon
        assert ledger.running_epsilon() <= PLAN.budget.epsilon


def test_what_was_reserved_stays_spent_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path, PLAN) as ledger:
        ledger.commit(ledger.reserve(round=1))
        ledger.reserve(round=2)  # and the process ends here
    with PrivacyLedger.open(path, PLAN) as ledger:
        assert (ledger.rounds_spent, ledger.rounds_committed) == (2, 1)
        for number in (2, 3, 4):
            ledger.reserve(round=number)
        with pytest.raises(PrivacyBudgetExhausted):
            ledger.reserve(round=5)
        attempts = [r.fields["attempt"] for r in ledger.records if r.kind == "reserve"]
        assert attempts == [1, 1, 2, 1, 1]


def test_kill_nine_between_reserve_and_commit_leaves_the_round_spent(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    spend(path, 1)
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                f"""
                import time
                from fl_dp import PrivacyLedger
                plan = PrivacyLedger.read({str(path)!r}).plan
                PrivacyLedger.open({str(path)!r}, plan).reserve(round=2)
                print("reserved", flush=True)
                time.sleep(60)
                """
            ),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "reserved\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait(30)
    with PrivacyLedger.open(path, PLAN) as ledger:
        assert (ledger.rounds_spent, ledger.rounds_committed) == (2, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_multiplier", 1.1),
        ("sampling_rate", 0.2),
        ("clipping_norm", 2.0),
        ("rounds", 6),
        ("num_clients", 100),
    ],
)
def test_another_plan_is_refused_with_the_difference_named(
    tmp_path: Path, field: str, value: float
) -> None:
    path = tmp_path / "ledger.db"
    spend(path, 1)
    before = path.read_bytes()
    with pytest.raises(PlanMismatch, match=f"{field} is {value} here"):
        PrivacyLedger.open(path, replace(PLAN, **{field: value}))
    assert path.read_bytes() == before


def test_replay_equals_live_accounting_and_plain_dp_accounting(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path, PLAN) as ledger:
        for number in range(1, 5):
            ledger.reserve(round=number)
        live = ledger.epsilon()
    assert PrivacyLedger.read(path).epsilon() == live

    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    for record in PrivacyLedger.read(path).records:
        fields = record.fields
        if fields["kind"] == "reserve":
            gaussian = dp_accounting.GaussianDpEvent(fields["noise_multiplier"])
            accountant.compose(
                dp_accounting.PoissonSampledDpEvent(fields["sampling_rate"], gaussian)
            )
    assert live.pld == pytest.approx(accountant.get_epsilon(PLAN.budget.delta), rel=1e-9)


@pytest.fixture(scope="module")
def spent_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    spend(path, 3)
    return path


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_changing_any_byte_of_any_record_is_detected(
    spent_file: Path, tmp_path: Path, data: st.DataObject
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(spent_file.read_bytes())
    connection = sqlite3.connect(copy)
    rows = connection.execute("SELECT sequence, payload, hash FROM records").fetchall()
    sequence, payload, digest = data.draw(st.sampled_from(rows))
    column, text = data.draw(st.sampled_from([("payload", payload), ("hash", digest)]))
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("0123456789abcdefxyz,}").filter(lambda c: c != text[place]))
    connection.execute(
        f"UPDATE records SET {column} = ? WHERE sequence = ?",
        (text[:place] + other + text[place + 1 :], sequence),
    )
    connection.commit()
    connection.close()
    with pytest.raises(LedgerCorrupted):
        PrivacyLedger.read(copy)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM records WHERE sequence = 3",
        "UPDATE records SET sequence = sequence + 100 WHERE sequence > 4",
        "DELETE FROM records",
    ],
)
def test_removed_and_moved_records_are_detected(
    spent_file: Path, tmp_path: Path, statement: str
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(spent_file.read_bytes())
    connection = sqlite3.connect(copy)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(LedgerCorrupted):
        PrivacyLedger.read(copy)


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"not a database at all, but long enough to look like one" * 40)
    with pytest.raises(LedgerCorrupted):
        PrivacyLedger.read(path)
    with pytest.raises(LedgerCorrupted):
        PrivacyLedger.open(path, PLAN)
    with pytest.raises(FileNotFoundError):
        PrivacyLedger.read(tmp_path / "none.db")
    with pytest.raises(FileNotFoundError):
        PrivacyLedger.open(tmp_path / "no" / "folder" / "ledger.db", PLAN)


def test_a_ledger_opened_to_read_can_not_spend(spent_file: Path) -> None:
    with PrivacyLedger.read(spent_file) as ledger, pytest.raises(LedgerCorrupted, match="readonly"):
        ledger.reserve(round=4)


def test_a_round_is_committed_once(tmp_path: Path) -> None:
    with PrivacyLedger.open(tmp_path / "ledger.db", PLAN) as ledger:
        reservation = ledger.reserve(round=1)
        ledger.commit(reservation)
        with pytest.raises(ValueError, match="committed before"):
            ledger.commit(reservation)


def _reserve_all_you_can(
    path: Path, gate: multiprocessing.Barrier, won: multiprocessing.Queue
) -> None:
    with PrivacyLedger.open(path, PLAN) as ledger:
        gate.wait(60)
        count = 0
        try:
            while True:
                ledger.reserve(round=count + 1)
                count += 1
        except PrivacyBudgetExhausted:
            won.put(count)


def test_two_processes_can_not_spend_the_same_budget_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    PrivacyLedger.open(path, PLAN).close()
    context = multiprocessing.get_context("spawn")
    gate, won = context.Barrier(2), context.Queue()
    children = [
        context.Process(target=_reserve_all_you_can, args=(path, gate, won)) for _ in range(2)
    ]
    for child in children:
        child.start()
    total = sum(won.get(timeout=120) for _ in children)
    for child in children:
        child.join(30)
    assert total == PLAN.rounds
    assert PrivacyLedger.read(path).rounds_spent == PLAN.rounds


def test_the_statement_says_what_the_records_say(spent_file: Path) -> None:
    ledger = PrivacyLedger.read(spent_file)
    statement = privacy_statement(ledger)
    assert statement["epsilon"]["pld"] == ledger.epsilon().pld
    assert statement["rounds"] == 3
    assert statement["noise_multipliers"] == [1.0] * 3
    assert statement["ledger_hash"] == ledger.records[-1].hash
    assert statement["neighboring_relation"] == "zero-out"
