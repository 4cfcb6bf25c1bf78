"""Ledgers and witnesses that somebody wrote anew: refused by one error, and never changed.

A chain can be hashed again by whoever can write the file, so that its hashes hold: what its entries
say is then all that there is to go by.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from flat_plans import noised_plan
from hostile import cases, changed, damaged, damaged_bytes
from ledger_files import fresh_path

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PoissonGaussianEvent
from fl_dp.ledger import LedgerAnchor, LedgerCorrupted, NodeLedger, SpentLedger
from fl_dp.ledger.entries import LedgerEntry, LedgerUnavailable, next_entry
from fl_dp.ledger.node import Account
from fl_dp.ledger.witness import FileWitness
from fl_dp.mechanisms.mechanism_events import GaussianEvent, LaplaceEvent
from fl_dp.plan import plan_from_dict
from fl_dp.terminal.ledger_view import ledger_table

BUDGET = PrivacyBudget(epsilon=3.0, delta=1e-3)
PLAN = noised_plan(
    2.0,
    delta=1e-3,
    rounds=5,
    sampling_rate=0.25,
    clipping_norm=1.0,
    num_clients=200,
    other_releases={LaplaceEvent(noise_multiplier=5.0): 1},
)


def _training(path: Path) -> None:
    with PrivacyLedger.open(path, PLAN) as ledger:
        ledger.commit(ledger.reserve_release("means", LaplaceEvent(noise_multiplier=5.0)))
        for number in (1, 2):
            ledger.commit(ledger.reserve(round=number))


def _node(path: Path) -> None:
    with NodeLedger.open(path) as ledger:
        ward = Account(unit="record", source="ward", fingerprint="ab" * 32)
        step = PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.1)
        ledger.charge(ward, step, count=10, budget=BUDGET, what="round 1")
        site = Account(unit="client", source="ward")
        noise = GaussianEvent(noise_multiplier=9.0)
        ledger.charge(site, noise, count=1, budget=BUDGET, what="round 2")


KINDS: dict[str, tuple[Callable[[Path], None], type[SpentLedger] | type[NodeLedger]]] = {
    "training": (_training, SpentLedger),
    "node": (_node, NodeLedger),
}


@dataclass(frozen=True)
class Written:
    """Bytes of a ledger, what its entries say, and the class that reads it."""

    raw: bytes = field(repr=False)
    entries: list[Any] = field(repr=False)
    reader: type[SpentLedger] | type[NodeLedger]


@pytest.fixture(scope="module", params=KINDS)
def written(request: pytest.FixtureRequest) -> Iterator[Written]:
    write, reader = KINDS[request.param]
    with fresh_path() as path:
        write(path)
        with reader.read(path) as ledger:
            entries = [entry.fields for entry in ledger.entries]
        yield Written(path.read_bytes(), entries, reader)


def _rehashed(raw: bytes, fields: list[Any], path: Path) -> None:
    """Write a ledger whose entries say `fields`, with hashes that hold."""
    path.write_bytes(raw)
    last: LedgerEntry | None = None
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM entries")
        for each in fields:
            last = next_entry(last, each)
            row = (last.sequence, last.payload, last.hash)
            connection.execute(
                "INSERT INTO entries (sequence, payload, hash) VALUES (?, ?, ?)", row
            )
        connection.commit()


def _look(ledger: SpentLedger | NodeLedger) -> None:
    """Ask for what `fl-dp ledger` shows."""
    if isinstance(ledger, SpentLedger):
        assert ledger.rounds_spent >= ledger.rounds_committed >= 0
        _ = ledger_table(ledger)
        return
    for spending in ledger.spendings:
        assert spending.charges >= 0


@cases(120)
def test_entries_that_were_written_anew_are_read_or_refused(written: Written, rng: Random) -> None:
    with fresh_path() as path:
        try:
            _rehashed(written.raw, changed(written.entries, rng) or [], path)
        except (TypeError, ValueError, AttributeError, UnicodeError):
            return  # no ledger can hold that
        before = path.read_bytes()
        with suppress(LedgerCorrupted), written.reader.read(path) as ledger:
            _look(ledger)
        assert path.read_bytes() == before


@pytest.mark.parametrize("count", [10**30, -1, True])
def test_a_count_that_no_accountant_can_compute_with_is_refused(
    written: Written, count: object
) -> None:
    entries = deepcopy(written.entries)
    if written.reader is SpentLedger:
        (release,) = entries[0]["plan"]["other_releases"]
    else:
        release = next(each for each in entries if "count" in each)
    release["count"] = count
    with fresh_path() as path:
        _rehashed(written.raw, entries, path)
        with pytest.raises(LedgerCorrupted, match="count must be"):
            written.reader.read(path)


def test_a_plan_of_more_rounds_than_memory_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="rounds must be at most 10,000,000, got 1,000,000,000"):
        plan_from_dict(PLAN.to_dict() | {"rounds": 10**9})


def test_an_entry_that_lacks_what_is_shown_of_it_is_not_read(tmp_path: Path) -> None:
    raw, path = tmp_path / "raw.db", tmp_path / "ledger.db"
    _training(raw)
    with SpentLedger.read(raw) as ledger:
        entries = [entry.fields for entry in ledger.entries]
    del entries[1]["run"]
    _rehashed(raw.read_bytes(), entries, path)
    with pytest.raises(LedgerCorrupted, match="entry 2 can't be read: it has no 'run'"):
        SpentLedger.read(path)


@cases(120)
def test_a_damaged_file_is_refused_and_stays_as_it_is(written: Written, rng: Random) -> None:
    with fresh_path() as path:
        before = damaged_bytes(written.raw, rng)
        path.write_bytes(before)
        no_ledger = () if before else (FileNotFoundError,)
        with (
            suppress(LedgerCorrupted, LedgerUnavailable, *no_ledger),
            written.reader.read(path) as ledger,
        ):
            _look(ledger)
        assert path.read_bytes() == before


@cases(30)
def test_a_training_spends_from_no_ledger_that_it_can_t_read(rng: Random) -> None:
    with fresh_path() as path:
        _training(path)
        before = damaged_bytes(path.read_bytes(), rng)
        path.write_bytes(before)
        try:
            with PrivacyLedger.open(path, PLAN) as ledger:
                assert ledger.rounds_spent == 2  # nothing that matters was damaged
        except (LedgerCorrupted, LedgerUnavailable):
            assert path.read_bytes() == before


@cases(120)
def test_a_damaged_witness_is_read_or_refused(rng: Random) -> None:
    with fresh_path() as path:
        witness = FileWitness(path.with_name("run.heads"))
        for number in (1, 2, 3):
            witness.note(LedgerAnchor(entries=number, hash=f"{number:064x}"), "{:064x}".format)
        file = Path(witness.location)
        lines = file.read_text().splitlines()
        number = rng.randrange(len(lines))
        document = json.loads(lines[number]) if lines[number] else {}
        lines[number] = json.dumps(changed(document, rng))
        text = "\n".join(lines) if rng.random() < 0.7 else damaged(file.read_text(), rng)
        file.write_text(text, encoding="utf-8", errors="surrogateescape")
        before = file.read_bytes()
        with suppress(LedgerCorrupted, LedgerUnavailable):
            assert all(anchor.entries >= 1 for anchor in witness.anchors())
        assert file.read_bytes() == before
