"""Where a ledger lies: nobody else reads it, and a failing disk or database is told apart."""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from flat_plans import noised_plan
from ledger_files import killed_at_statement, start_python

from fl_dp import PrivacyLedger
from fl_dp.accounting import PrivacyBudget
from fl_dp.ledger import LedgerCorrupted, LedgerUnavailable, NodeLedger, SpentLedger
from fl_dp.ledger.node import Account
from fl_dp.mechanisms.mechanism_events import GaussianEvent

PLAN = noised_plan(
    4.0, delta=1e-3, rounds=400, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277])
def test_a_new_ledger_is_its_owners_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        PrivacyLedger.open(tmp_path / "ledger.db", PLAN).close()
        NodeLedger.open(tmp_path / "node.db").close()
    assert permissions(tmp_path / "ledger.db") == permissions(tmp_path / "node.db") == 0o600


def test_a_journal_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with umask(0):
        PrivacyLedger.open(path, PLAN).close()
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("UPDATE entries SET hash = 'x'")
            assert permissions(path.with_name("ledger.db-journal")) == 0o600
            writer.execute("ROLLBACK")


def test_a_full_disk_is_told_apart_from_a_corrupted_ledger(tmp_path: Path) -> None:
    """A limit on the size of files is a disk that is full for one process."""
    path = tmp_path / "ledger.db"
    PrivacyLedger.open(path, PLAN).close()
    child = start_python(
        f"""
        import resource, signal
        from fl_dp.ledger import LedgerUnavailable, PrivacyLedger
        plan = PrivacyLedger.read({str(path)!r}).plan
        with PrivacyLedger.open({str(path)!r}, plan) as ledger:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (16384, resource.RLIM_INFINITY))
            spent = 0
            try:
                for spent in range(400):
                    ledger.reserve(round=spent + 1)
            except LedgerUnavailable as error:
                print(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            print(spent, ledger.rounds_spent)
            ledger.reserve(round=spent + 1)
        """
    )
    error, counts = child.rest().splitlines()
    spent, known = map(int, counts.split())
    assert "can't be read or written" in error
    assert "make room on the disk" in error
    assert 0 < spent == known < 399
    assert PrivacyLedger.read(path).rounds_spent == spent + 1  # it goes on where it was


def test_whoever_is_killed_while_a_ledger_begins_leaves_a_whole_one_or_none(tmp_path: Path) -> None:
    account = Account(unit="client", source="north")
    event, budget = GaussianEvent(noise_multiplier=50.0), PrivacyBudget(epsilon=9.0, delta=1e-5)

    def charge(path: Path) -> None:
        with NodeLedger.open(path) as ledger:
            ledger.charge(account, event, budget=budget, what="round 1")

    outcomes = []
    for number in range(100):
        path = tmp_path / f"{number}.db"
        killed = killed_at_statement(number, partial(charge, path))
        # What a node asks before it charges: the owner's day, its marks, what was spent.
        assert NodeLedger.day_of_revocation(path) is None
        assert NodeLedger.marks_of_store(path, "store") is None
        try:
            with NodeLedger.read(path) as ledger:
                outcomes.append(len(ledger.entries))
        except FileNotFoundError:
            outcomes.append(0)
        charge(path)
        if not killed:
            break
    assert sorted(outcomes) == outcomes
    assert set(outcomes) == {0, 1, 2}  # the power: it was killed at each stage


def test_an_empty_file_is_a_ledger_that_was_never_made(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    for kind in (NodeLedger, SpentLedger):
        with pytest.raises(FileNotFoundError, match=r"no ledger at .*ledger\.db"):
            kind.read(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE patients (name)")
    with pytest.raises(LedgerCorrupted):  # a database of something else is not taken for none
        NodeLedger.read(path)


def test_a_database_that_may_not_grow_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fl_dp.ledger import store as ledger_store

    connect = ledger_store._connect

    def small(path: Path, *, writable: bool) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(path, writable=writable)
        connection.execute("PRAGMA max_page_count = 4")
        return connection

    monkeypatch.setattr(ledger_store, "_connect", small)
    account = Account(unit="client", source="north")
    event, budget = GaussianEvent(noise_multiplier=50.0), PrivacyBudget(epsilon=9.0, delta=1e-5)
    charged = 0
    with NodeLedger.open(tmp_path / "node.db") as ledger:
        with pytest.raises(LedgerUnavailable, match=r"disk is full.*make room") as failure:
            for charged in range(100):
                ledger.charge(account, event, budget=budget, what=f"round {charged}")
        assert not isinstance(failure.value, LedgerCorrupted)
        assert ledger.spending(account).charges == charged > 0  # nothing for what was not written


def test_a_server_that_does_not_answer_is_told_apart() -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        port = closed.getsockname()[1]
        location = f"postgresql://user:hunter2@127.0.0.1:{port}/ledgers"
        for way in (lambda: PrivacyLedger.open(location, PLAN), lambda: NodeLedger.read(location)):
            with pytest.raises(LedgerUnavailable, match="see that the database is up") as failure:
                way()
            assert "hunter2" not in str(failure.value)
            assert "\n" not in str(failure.value)


def test_a_ledger_that_another_process_holds_is_not_corrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fl_dp.ledger import store as ledger_store

    monkeypatch.setattr(ledger_store, "_LOCK_SECONDS", 0.1)
    path = tmp_path / "ledger.db"
    with PrivacyLedger.open(path, PLAN) as ledger:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerUnavailable, match=r"locked.*end the process that holds it"):
                ledger.reserve(round=1)
        ledger.reserve(round=1)
        assert ledger.rounds_spent == 1


def test_a_ledger_in_a_folder_that_takes_no_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(ValueError, match=r"is a folder: name the ledger's file"):
        PrivacyLedger.open(tmp_path / "ledger.db", PLAN)
    with pytest.raises(LedgerUnavailable, match=r"can't be created.*Name a file"):
        PrivacyLedger.open(tmp_path / ("x" * 300), PLAN)
