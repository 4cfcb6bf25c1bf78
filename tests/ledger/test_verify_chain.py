"""The auditor's verifier, which knows nothing of fl-dp, judges every ledger as fl-dp does."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flat_plans import noised_plan

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import VisibleSampling
from fl_dp.ledger import LedgerCorrupted, NodeLedger, SpentLedger, verify_chain
from fl_dp.ledger.entries import LedgerEntry, next_entry
from fl_dp.ledger.node import Account
from fl_dp.ledger.witness import FileWitness
from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.statement import privacy_statement

SIZES: dict[str, Any] = {"delta": 1e-3, "rounds": 5, "clipping_norm": 1.0, "num_clients": 200}
PLAIN = noised_plan(1.0, sampling_rate=0.25, **SIZES)
CAPPED = noised_plan(1.0, sampling=VisibleSampling(cohort=2), participation_cap=2, **SIZES)
OF_A_NODE = "node"


def train(path: Path, *sessions: tuple[int, ...], plan: Plan = PLAIN) -> None:
    for number, rounds in enumerate(sessions):
        with PrivacyLedger.open(path, plan, witness=witness_of(path)) as ledger:
            for round in rounds:
                names = [f"{number}-{round}-a", "ünïcödé"] if plan is CAPPED else None
                ledger.commit(ledger.reserve(round=round, participants=names))


def charge(path: Path) -> None:
    with NodeLedger.open(path, witness=witness_of(path)) as ledger:
        for number in (1, 2, 3):
            ledger.charge(
                Account(unit="record", source="ward"),
                GaussianEvent(noise_multiplier=8.0),
                budget=PrivacyBudget(epsilon=8.0, delta=1e-5),
                what=f"round {number}",
            )


def witness_of(path: Path) -> FileWitness:
    return FileWitness(path.parents[1] / "there" / "ledger.heads")


LEDGERS: dict[str, Callable[[Path], None]] = {
    "several sessions": lambda path: train(path, (1,), (1, 2), (3,)),
    "with names": lambda path: train(path, (1, 2), plan=CAPPED),
    OF_A_NODE: charge,
}


@pytest.fixture(params=list(LEDGERS))
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A ledger, its witness, and the file that verifies, each in a folder of its own."""
    for folder in (request.param, "there", "auditor"):
        (tmp_path / folder).mkdir()
    shutil.copy(Path(verify_chain.__file__), tmp_path / "auditor")
    path: Path = tmp_path / request.param / "ledger.db"
    LEDGERS[request.param](path)
    return path


@pytest.fixture
def heads(ledger: Path) -> Path:
    return Path(witness_of(ledger).location)


def verify(ledger: Path, *known_by: Path) -> tuple[bool, str]:
    """Run the copy of the file where no package can be imported, and return its verdict."""
    script = next(parent for parent in ledger.parents if (parent / "auditor").is_dir())
    command = [sys.executable, "-I", "-S", str(script / "auditor" / "verify_chain.py")]
    ended = subprocess.run(
        [*command, str(ledger), *map(str, known_by)], capture_output=True, text=True, check=False
    )
    assert ended.returncode in (0, 1), ended.stderr
    assert not ended.stderr
    assert ended.stdout.count("\n") == 1
    assert ended.stdout.startswith("VERIFIED " if ended.returncode == 0 else "NOT VERIFIED ")
    return ended.returncode == 0, ended.stdout


def verified_by_us(path: Path, *, witnessed: bool = False) -> bool:
    kind = NodeLedger if path.parent.name == OF_A_NODE else SpentLedger
    try:
        kind.read(path, witness=witness_of(path) if witnessed else None).close()
    except LedgerCorrupted:
        return False
    return True


def hash_of_last(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT hash FROM entries ORDER BY sequence DESC"
        return str(connection.execute(query).fetchone()[0])


def exported(path: Path) -> Path:
    """Write a training's entries as a document."""
    with SpentLedger.read(path) as opened:
        entries = [
            {"sequence": entry.sequence, "hash": entry.hash, **entry.fields}
            for entry in opened.entries
        ]
    export = path.with_name("export.json")
    export.write_text(json.dumps({"entries": entries}))
    return export


# Ledgers as they should be ----------------------------------------------------------------------


def test_a_sound_ledger_is_verified_and_its_last_hash_shown(ledger: Path, heads: Path) -> None:
    holds, line = verify(ledger)
    assert holds
    assert hash_of_last(ledger) in line
    assert "would not show" in line  # nothing was there to compare with
    holds, line = verify(ledger, heads)
    assert holds
    assert str(heads) in line
    assert verified_by_us(ledger, witnessed=True)


def test_an_export_is_verified_as_its_ledger_is(ledger: Path, heads: Path) -> None:
    if ledger.parent.name == OF_A_NODE:
        pytest.skip("a node's ledger is exported by account, without its entries")
    export = exported(ledger)
    holds, line = verify(export, heads)
    assert holds
    assert hash_of_last(ledger) in line

    document = json.loads(export.read_text())
    document["entries"][1]["run"] = "another"
    export.write_text(json.dumps(document))
    assert not verify(export)[0]


def test_a_statement_is_compared_with_its_ledger(ledger: Path) -> None:
    if ledger.parent.name == OF_A_NODE:
        pytest.skip("a statement is of a training")
    statement = ledger.with_name("privacy.json")
    with SpentLedger.read(ledger) as opened:
        statement.write_text(json.dumps(privacy_statement(opened).to_dict(), indent=2))
    assert verify(ledger, statement)[0]
    removed_tail(ledger)
    assert verify(ledger)[0]
    holds, line = verify(ledger, statement)
    assert not holds
    assert "knows of" in line


# Ledgers that were tampered with ----------------------------------------------------------------

Tampering = Callable[[Path], None]


def by_statement(*statements: str) -> Tampering:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            for statement in statements:
                assert connection.execute(statement).rowcount > 0
            connection.commit()

    return change


removed_tail = by_statement("DELETE FROM entries WHERE sequence >= 4")
BROKEN: dict[str, Tampering] = {
    "changed text": by_statement(
        "UPDATE entries SET payload = replace(payload, '\"kind\"', '\"kind\" ') WHERE sequence = 2"
    ),
    "changed hash": by_statement("UPDATE entries SET hash = upper(hash) WHERE sequence = 3"),
    "first removed": by_statement("DELETE FROM entries WHERE sequence = 1"),
    "one removed": by_statement("DELETE FROM entries WHERE sequence = 3"),
    "one removed, numbers moved up": by_statement(
        "DELETE FROM entries WHERE sequence = 2",
        "UPDATE entries SET sequence = -sequence WHERE sequence > 2",
        "UPDATE entries SET sequence = -sequence - 1 WHERE sequence < 0",
    ),
    "two swapped": by_statement(
        "UPDATE entries SET sequence = -3 WHERE sequence = 3",
        "UPDATE entries SET sequence = 3 WHERE sequence = 2",
        "UPDATE entries SET sequence = 2 WHERE sequence = -3",
    ),
    "one inserted": by_statement(
        "UPDATE entries SET sequence = -sequence WHERE sequence > 2",
        "UPDATE entries SET sequence = 1 - sequence WHERE sequence < 0",
        "INSERT INTO entries SELECT 3, payload, hash FROM entries WHERE sequence = 2",
    ),
    "one put behind the end": by_statement(
        "INSERT INTO entries SELECT max(sequence) + 1, payload, hash FROM entries"
    ),
    "all removed": by_statement("DELETE FROM entries"),
    "overwritten": lambda path: no_database(path),
}


def no_database(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + bytes(100))


@pytest.mark.parametrize("tampering", BROKEN)
def test_what_breaks_the_chain_is_not_verified_with_or_without_fl_dp(
    ledger: Path, tampering: str
) -> None:
    BROKEN[tampering](ledger)
    assert not verified_by_us(ledger)
    assert not verify(ledger)[0]


def test_an_end_that_was_cut_off_shows_against_the_witness_alone(ledger: Path, heads: Path) -> None:
    removed_tail(ledger)
    assert verified_by_us(ledger)
    assert verify(ledger)[0]
    assert not verified_by_us(ledger, witnessed=True)
    assert not verify(ledger, heads)[0]


def test_a_chain_that_was_written_anew_shows_against_the_witness_alone(
    ledger: Path, heads: Path
) -> None:
    with closing(sqlite3.connect(ledger)) as connection:
        rows = connection.execute("SELECT payload FROM entries ORDER BY sequence").fetchall()
        connection.execute("DELETE FROM entries")
        last: LedgerEntry | None = None
        for (payload,) in rows:
            fields = json.loads(payload)
            fields["comment"] = "written anew"
            last = next_entry(last, fields)
            connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?)", (last.sequence, last.payload, last.hash)
            )
        connection.commit()
    assert verify(ledger)[0]
    assert not verified_by_us(ledger, witnessed=True)
    assert not verify(ledger, heads)[0]


def test_a_witness_that_knows_nothing_verifies_nothing(ledger: Path, heads: Path) -> None:
    heads.write_text("")
    assert not verified_by_us(ledger, witnessed=True)
    assert not verify(ledger, heads)[0]


def test_a_line_that_a_power_cut_tore_is_no_harm(ledger: Path, heads: Path) -> None:
    heads.write_text(heads.read_text() + '\n{"entries": 99, "ha')
    assert verified_by_us(ledger, witnessed=True)
    assert verify(ledger, heads)[0]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"entries": [1]}', '{"entries": []}'])
def test_what_is_no_ledger_is_not_verified(ledger: Path, content: str) -> None:
    ledger.write_text(content)
    assert not verify(ledger)[0]
    assert not verify(ledger.with_name("absent.db"))[0]


@pytest.mark.parametrize(
    "head", ['{"entries": 0, "hash": "a"}', '{"entries": "1"}', "{}", "nonsense}"]
)
def test_what_is_no_witness_verifies_nothing(ledger: Path, heads: Path, head: str) -> None:
    heads.write_text(f"{head}\n")
    assert not verify(ledger, heads)[0]
