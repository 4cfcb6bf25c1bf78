"""A second place that knows how far a ledger has come: what is put back older is refused."""

from __future__ import annotations

import fcntl
import json
import logging
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from flat_plans import noised_plan
from postgres_server import PostgresServer
from postgres_server import postgres_server as postgres_server

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.ledger import (
    LedgerAnchor,
    LedgerCorrupted,
    LedgerUnavailable,
    NodeLedger,
    SpentLedger,
    Witness,
    witness_at,
)
from fl_dp.ledger.node import Account
from fl_dp.ledger.store import LedgerStore
from fl_dp.ledger.witness import FileWitness, TableWitness
from fl_dp.mechanisms.mechanism_events import GaussianEvent

PLAN = noised_plan(
    1.0, delta=1e-3, rounds=9, sampling_rate=0.25, clipping_norm=1.0, num_clients=200
)
WARD = Account(unit="record", source="ward")
AMPLE = PrivacyBudget(epsilon=50.0, delta=1e-5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here" / "ledger.db"


@pytest.fixture(params=["file", pytest.param("table", marks=pytest.mark.xdist_group("postgres"))])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Witness]:
    """A second place; each call opens it anew, as another process would."""
    if request.param == "file":
        (tmp_path / "there").mkdir()
        return lambda: FileWitness(tmp_path / "there" / "ledger.heads")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.url(server.new_database())
    return lambda: TableWitness(url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there" / "ledger.heads"


def spend(path: Path, witness: Witness | None, *rounds: int) -> None:
    with PrivacyLedger.open(path, PLAN, witness=witness) as ledger:
        for number in rounds:
            ledger.commit(ledger.reserve(round=number))


def test_every_entry_is_witnessed_before_anything_is_released(
    path: Path, elsewhere: Callable[[], Witness]
) -> None:
    with PrivacyLedger.open(path, PLAN, witness=elsewhere()) as ledger:
        assert elsewhere().anchors()[-1] == ledger.anchor
        reservation = ledger.reserve(round=1)
        assert elsewhere().anchors()[-1] == ledger.anchor
        ledger.commit(reservation)
        assert elsewhere().anchors()[-1] == ledger.anchor
    assert [each.entries for each in elsewhere().anchors()] == [2, 3, 4]  # plan and run in one


def test_an_older_copy_that_is_put_back_is_refused(
    path: Path, elsewhere: Callable[[], Witness]
) -> None:
    spend(path, elsewhere(), 1)
    shutil.copy(path, path.with_name("backup"))
    spend(path, elsewhere(), 2)
    shutil.copy(path.with_name("backup"), path)
    with pytest.raises(LedgerCorrupted, match=r"has 4 entries and its witness .* knows of 7"):
        spend(path, elsewhere(), 2)
    with pytest.raises(LedgerCorrupted, match="older copy"):
        SpentLedger.read(path, witness=elsewhere())
    # The power of the test: without a witness the older copy is as good as the newest.
    spend(path, None, 2)


def test_a_ledger_that_is_gone_is_not_begun_anew(
    path: Path, elsewhere: Callable[[], Witness]
) -> None:
    spend(path, elsewhere(), 1)
    path.unlink()
    with pytest.raises(LedgerCorrupted, match="has 0 entries"):
        spend(path, elsewhere(), 1)


def test_an_end_that_was_cut_off_and_grew_again_is_refused(
    path: Path, elsewhere: Callable[[], Witness]
) -> None:
    spend(path, elsewhere(), 1, 2)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM entries WHERE sequence > 3")
        connection.commit()
    spend(path, None, 2, 3, 4)  # longer than before
    with pytest.raises(LedgerCorrupted, match="is not the one that its witness"):
        spend(path, elsewhere(), 5)


def rounds_until_refused(ledger: PrivacyLedger) -> int:
    for number in range(1, PLAN.rounds + 1):
        try:
            ledger.reserve(round=number)
        except LedgerCorrupted as refused:
            assert re.search("two copies|older copy", str(refused))
            return number - 1
    return PLAN.rounds


def two_live_copies(path: Path, witness: Callable[[], Witness]) -> tuple[PrivacyLedger, ...]:
    """Two ledgers that were opened as one: a machine that was copied while it trained."""
    (path.parent / "copy").mkdir()
    copy = path.parent / "copy" / path.name
    one, other = (PrivacyLedger.open(path, PLAN, witness=witness()) for _ in range(2))
    with other._transaction():
        pass  # it has seen all that there is
    shutil.copy(path, copy)
    other._store = LedgerStore.writable(copy)
    return one, other


@pytest.mark.parametrize("behind", [False, True], ids=["at the same entry", "where one was killed"])
def test_two_live_copies_never_spend_more_than_one_plan(
    path: Path, elsewhere: Callable[[], Witness], monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    one, other = two_live_copies(path, elsewhere)
    first = 1
    if behind:  # the entry is on disk, and the witness does not know of it
        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr(type(one._witness), "note", killed_before_it_notes)
            one.reserve(round=1)
        first = 2
    assert one.reserve(round=first)
    assert rounds_until_refused(other) == 0
    assert one.reserve(round=first + 1)  # the copy that the witness knows goes on
    one.close()
    PrivacyLedger.open(path, PLAN, witness=elsewhere()).close()
    other.close()


def killed_before_it_notes(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_file_witness_is_nobody_else_s_from_its_look_to_its_line(
    path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spend(path, FileWitness(file), 1)
    first = FileWitness(file).anchors()[-1]
    read, held = FileWitness._read, []

    def looking(witness: FileWitness, content: bytes) -> list[LedgerAnchor]:
        with file.open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(True)
            else:
                held.append(False)
        return read(witness, content)

    monkeypatch.setattr(FileWitness, "_read", looking)
    FileWitness(file).note(LedgerAnchor(entries=5, hash="a" * 64), lambda _: first.hash)
    assert held == [True]
    with pytest.raises(LedgerCorrupted, match="two copies"):
        FileWitness(file).note(LedgerAnchor(entries=5, hash="b" * 64), lambda _: first.hash)
    FileWitness(file).anchors()  # the power: who only looks holds no lock
    assert held == [True, True, False]


def test_two_live_copies_that_write_the_same_entry_are_found_out(
    path: Path, tmp_path: Path, elsewhere: Callable[[], Witness]
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with NodeLedger.open(path, witness=elsewhere()) as one:
        shutil.copy(path, copy / path.name)
        with NodeLedger.open(copy / path.name, witness=elsewhere()) as other:
            event = GaussianEvent(noise_multiplier=9.0)
            one.charge(WARD, event, budget=AMPLE, what="round 1")
            # No entry says which process wrote it: both have one hash.
            with pytest.raises(LedgerCorrupted, match="two copies"):
                other.charge(WARD, event, budget=AMPLE, what="round 1")
            assert one.anchor == other.anchor


def test_a_copy_that_was_refused_once_is_refused_for_good(
    path: Path, tmp_path: Path, elsewhere: Callable[[], Witness]
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with NodeLedger.open(path, witness=elsewhere()) as one:
        shutil.copy(path, copy / path.name)
        with NodeLedger.open(copy / path.name, witness=elsewhere()) as other:
            event = GaussianEvent(noise_multiplier=9.0)
            one.charge(WARD, event, budget=AMPLE, what="round 1")
            for number in range(2, 5):  # the second of them is beyond what the witness knows
                with pytest.raises(LedgerCorrupted, match="two copies"):
                    other.charge(WARD, event, budget=AMPLE, what=f"round {number}")
            one.charge(WARD, event, budget=AMPLE, what="round 2")


def test_a_crash_between_the_ledger_and_its_witness_does_no_harm(
    path: Path, elsewhere: Callable[[], Witness]
) -> None:
    spend(path, elsewhere(), 1)
    spend(path, None, 2)  # as if the process had been killed before each note
    spend(path, elsewhere(), 3)
    assert elsewhere().anchors()[-1].entries == 10


def test_two_processes_with_one_ledger_keep_one_witness(
    path: Path, elsewhere: Callable[[], Witness]
) -> None:
    with (
        PrivacyLedger.open(path, PLAN, witness=elsewhere()) as one,
        PrivacyLedger.open(path, PLAN, witness=elsewhere()) as other,
    ):
        for number in range(1, 5):
            (one, other)[number % 2].reserve(round=number)
    spend(path, elsewhere(), 5)


def test_a_witness_that_can_not_be_written_stops_the_release_and_the_charge_stays(
    path: Path, file: Path
) -> None:
    with PrivacyLedger.open(path, PLAN, witness=FileWitness(file)) as ledger:
        shutil.rmtree(file.parent)
        with pytest.raises(LedgerUnavailable, match=r"witness .* Nothing is released without it"):
            ledger.reserve(round=1)
    with SpentLedger.read(path) as spent:
        assert spent.rounds_spent == 1


def test_a_disk_that_is_not_mounted_is_no_empty_witness(path: Path, file: Path) -> None:
    file.parent.rmdir()
    with pytest.raises(LedgerUnavailable, match="is its disk mounted"):
        spend(path, FileWitness(file), 1)


def test_a_witness_that_knows_nothing_of_an_old_ledger_is_refused_until_it_is_begun(
    path: Path, elsewhere: Callable[[], Witness]
) -> None:
    spend(path, None, 1)
    with pytest.raises(LedgerCorrupted, match="--begin-witness"):
        spend(path, elsewhere(), 2)
    with SpentLedger.read(path) as ledger:
        ledger.begin_witness(elsewhere())
        with pytest.raises(ValueError, match="begun already"):
            ledger.begin_witness(elsewhere())
    spend(path, elsewhere(), 2)


def test_a_line_that_a_power_cut_tore_is_passed_over(path: Path, file: Path) -> None:
    spend(path, FileWitness(file), 1)
    before = FileWitness(file).anchors()
    with file.open("ab") as stream:
        stream.write(b'\n{"entries": 5, "ha')
    assert FileWitness(file).anchors() == before
    spend(path, FileWitness(file), 2)
    assert FileWitness(file).anchors()[-1].entries == 7


@pytest.mark.parametrize("text", ["[1, 2]}\n", '{"entries": 0, "hash": "x"}\n'])
def test_another_file_is_no_witness(path: Path, file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(LedgerCorrupted, match="is no witness"):
        spend(path, FileWitness(file), 1)


def test_a_witness_is_its_owners_alone_and_tells_no_name(path: Path, file: Path) -> None:
    witness = FileWitness(file)
    with NodeLedger.open(path, witness=witness) as ledger:
        ledger.charge(WARD, GaussianEvent(noise_multiplier=5.0), budget=AMPLE, what="run 7")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    keys = {key for line in file.read_text().split("\n") if line for key in json.loads(line)}
    assert keys == {"entries", "hash"}


def test_a_witness_beside_the_ledger_protects_nothing_and_is_refused(path: Path) -> None:
    beside = FileWitness(path.with_name("ledger.heads"))
    with pytest.raises(ValueError, match="another disk"):
        spend(path, beside, 1)
    link = path.parent.with_name("link")
    link.symlink_to(path.parent)
    with pytest.raises(ValueError, match="another disk"):
        spend(path, FileWitness(link / "ledger.heads"), 1)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("witness.heads", "must be absolute"),
        ("sqlite:////mnt/w.db", "is no database"),
        ("mysql://host/db", "PostgreSQL"),
    ],
)
def test_a_place_that_can_be_no_witness_is_told_in_one_line(place: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        witness_at(place)


def test_a_ledger_that_nothing_is_compared_with_says_so_when_it_is_spent_from(
    path: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new one has no end to cut off, and a witness or an anchor would show it."""
    witness = FileWitness(file)
    with caplog.at_level(logging.INFO, logger="flwr.fl_dp"):
        with PrivacyLedger.open(path, PLAN) as ledger:
            ledger.begin_witness(witness)
            anchor = ledger.anchor
        PrivacyLedger.open(path, PLAN, anchor=anchor, witness=witness).close()
        with PrivacyLedger.open(path, PLAN) as ledger:
            assert "cut off" not in caplog.text
            for number in (1, 2):
                ledger.commit(ledger.reserve(round=number))
        assert caplog.text.count("an end that was cut off would not be noticed") == 1
