"""A node's store: marks are kept once, on disk, and lost together with the keys."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ledger_files import killed_at_statement

from fl_dp.files import StorageUnavailable
from fl_dp.secagg import Identity, Refused, SecureNode, SQLiteStore
from fl_dp.secagg.node_store import Mark

_BIG = 2**64 - 1  # Flower's largest run id
MARK = Mark(b"t" * 32, b"v" * 32)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SQLiteStore:
    return SQLiteStore(None) if request.param == "memory" else SQLiteStore(tmp_path / "secagg.db")


def test_values_are_kept_by_run_and_key(store: SQLiteStore) -> None:
    store.put(_BIG, "key", b"one")
    store.put(_BIG, "key", b"two")
    store.put(None, "key", b"three")
    assert store.get(_BIG, "key") == b"two"
    assert store.get(None, "key") == b"three"
    assert store.get(1, "key") is None and store.get(_BIG, "other") is None


def test_a_mark_is_refused_unless_its_number_is_above_all_of_its_role(store: SQLiteStore) -> None:
    store.mark(1, "sum", 5, MARK)
    for number in (5, 4, 1):
        with pytest.raises(Refused) as refused:
            store.mark(1, "sum", number, MARK)
        assert refused.value.code == "stale"
    store.mark(1, "open", 5, Mark(b"o" * 32))
    store.mark(2, "sum", 5, MARK)
    store.mark(1, "sum", 7, MARK)
    assert store.marked(1, "sum", 5) == MARK
    assert store.marked(1, "open", 5) == Mark(b"o" * 32, b"")
    assert store.marked(1, "sum", 6) is None
    assert [store.last(1, "sum"), store.last(1, "open"), store.last(3, "sum")] == [7, 5, 0]


def test_a_run_is_forgotten_as_a_whole(store: SQLiteStore) -> None:
    for run in (1, _BIG):
        store.put(run, "key", b"x")
        store.mark(run, "sum", 1, MARK)
    store.put(None, "key", b"x")
    store.forget(_BIG)
    assert store.get(_BIG, "key") is None and store.last(_BIG, "sum") == 0
    assert store.get(1, "key") == store.get(None, "key") == b"x" and store.last(1, "sum") == 1


def test_old_runs_are_found(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9
    monkeypatch.setattr("fl_dp.secagg.node_store.time.time", lambda: now)
    store.put(1, "key", b"x")
    store.put(None, "key", b"x")
    now += 29 * 86_400
    store.put(1, "other", b"x")
    store.put(2, "key", b"x")
    assert store.older(30) == ()
    now += 2 * 86_400
    assert store.older(30) == (1,)
    store.forget(1)
    assert store.get(1, "key") is None and store.get(1, "other") is None
    assert store.get(2, "key") == store.get(None, "key") == b"x"


def test_of_what_outlives_runs_the_first_may_stay(store: SQLiteStore) -> None:
    assert store.first("key", b"a") == store.first("key", b"b") == b"a"
    assert store.get(None, "key") == b"a"


def test_whoever_is_killed_while_a_store_begins_leaves_one_that_is_completed(
    tmp_path: Path,
) -> None:
    stages = set()
    for number in range(100):
        file = tmp_path / f"{number}.db"

        def begin(file: Path = file) -> None:
            SQLiteStore(file).mark(1, "sum", 3, MARK)

        killed = killed_at_statement(number, begin)
        store = SQLiteStore(file)
        before = store.last(1, "sum")
        store.mark(1, "sum", 4, MARK)
        assert store.taken.marks == 1 + (before == 3)
        stages.add(before)
        if not killed:
            break
    assert stages == {0, 3}


class TestSQLite:
    def test_only_its_owner_reads_it(self, tmp_path: Path) -> None:
        file = tmp_path / "secagg.db"
        SQLiteStore(file).put(1, "key", b"x")
        assert file.stat().st_mode & 0o777 == 0o600

    def test_it_outlives_its_process(self, tmp_path: Path) -> None:
        file = tmp_path / "secagg.db"
        kill = (
            "import os, sys; from pathlib import Path; from fl_dp.secagg.node_store import *;"
            f"s = SQLiteStore(Path({str(file)!r})); s.put(1, 'key', b'x');"
            "s.mark(1, 'sum', 3, Mark(b't')); os._exit(9)"
        )
        assert subprocess.run([sys.executable, "-c", kill], check=False).returncode == 9
        store = SQLiteStore(file)
        assert store.get(1, "key") == b"x" and store.last(1, "sum") == 3

    def test_a_full_disk_ends_in_one_line_and_loses_no_mark(self, tmp_path: Path) -> None:
        store = SQLiteStore(tmp_path / "secagg.db")
        pages = store._number("PRAGMA page_count")
        store._database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageUnavailable, match=r"secagg\.db .*is full.*Make room") as full:
            for number in range(1, 1000):
                store.mark(1, "sum", number, MARK)
        assert "\n" not in str(full.value)
        last = store.last(1, "sum")
        assert 0 < last == store.taken.marks
        store._database.execute("PRAGMA max_page_count = 1000000")
        store.mark(1, "sum", last + 1, MARK)  # it goes on where it was
        assert SQLiteStore(tmp_path / "secagg.db").last(1, "sum") == last + 1

    def test_marks_reach_the_disk_before_the_answer(self, tmp_path: Path) -> None:
        store = SQLiteStore(tmp_path / "secagg.db")
        assert store._number("PRAGMA synchronous") == 3  # EXTRA
        assert store._number("PRAGMA secure_delete") == 1

    def test_a_deleted_key_is_not_in_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "secagg.db"
        store, secret = SQLiteStore(file), b"a secret run key of 32 bytes ...."
        store.put(1, "run-key", secret)
        assert secret in file.read_bytes()  # power
        store.forget(1)
        assert secret not in file.read_bytes()

    def test_of_two_at_once_one_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "secagg.db"
        stores = [SQLiteStore(file) for _ in range(4)]
        outcomes: list[str] = []

        def try_it(store: SQLiteStore) -> None:
            for number in range(1, 11):
                try:
                    store.mark(1, "open", number, MARK)
                    outcomes.append(f"kept {number}")
                except Refused as refused:
                    outcomes.append(refused.code)

        threads = [threading.Thread(target=try_it, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kept = [each for each in outcomes if each != "stale"]
        assert len(outcomes) == 40 and len(kept) == len(set(kept)) <= 10

    @pytest.mark.parametrize("make", ["text", "other"])
    def test_another_file_is_refused(self, tmp_path: Path, make: str) -> None:
        file = tmp_path / "secagg.db"
        if make == "text":
            file.write_text("not a database " * 100)
        else:
            database = sqlite3.connect(file)
            database.execute("CREATE TABLE rounds (number)")
            database.close()
        with pytest.raises(ValueError, match=r"secagg\.db is"):
            SQLiteStore(file)

    def test_a_new_store_is_a_new_key(self, tmp_path: Path) -> None:
        identity = Identity.generate()
        one, two = (
            SecureNode(identity, SQLiteStore(tmp_path / name), name="a") for name in ("1", "2")
        )
        assert one.entry(5).run_key != two.entry(5).run_key
