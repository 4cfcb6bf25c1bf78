"""Memory of a node between messages, and across restarts: keys, directories, marks.

One file holds marks and run keys: they are lost together. A node without marks has a new key, and
old messages are useless to it. Never restore a store from a backup.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fl_dp.files import StorageUnavailable, private_file

from .terms import Refused
from .texts import digest

_SECONDS_A_DAY = 86_400.0
_APPLICATION = 0x666C6470  # "fldp", in the header of the file
# Codes of errors that leave the file as it is.
_UNREACHED = (
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)
_ANY_RUN = ""  # the key of values that outlive runs
_TABLES = """
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, began REAL NOT NULL);
CREATE TABLE IF NOT EXISTS kept (
    run TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (run, key));
CREATE TABLE IF NOT EXISTS once (
    run TEXT NOT NULL, role TEXT NOT NULL, number INTEGER NOT NULL,
    terms BLOB NOT NULL, view BLOB NOT NULL, PRIMARY KEY (run, role, number));
CREATE TABLE IF NOT EXISTS taken (
    one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT NOT NULL, marks INTEGER NOT NULL,
    last BLOB NOT NULL);
"""


class Mark(NamedTuple):
    """A record that a node did its part in a sum.

    Attributes:
        terms: Hash of the terms, 32 bytes.
        view: Hash of who replied, 32 bytes; empty for a client.
    """

    terms: bytes
    view: bytes = b""


class MarksTaken(NamedTuple):
    """A store's own count of its marks. It shows that a copy is an older one.

    Attributes:
        store: The store's random name, in hex.
        marks: Number of marks ever written, including runs that are over.
        last: Hash over all of them, in hex.
    """

    store: str
    marks: int
    last: str


def stale(number: int) -> Refused:
    """The refusal of a number that is not above all that were answered."""
    return Refused("stale", f"sum {number} is over, or was answered")


class SQLiteStore:
    """Storage of one node. `put` and `mark` return when their values are on disk.

    It is one file that only its owner can read. Several processes may use it at once.
    """

    def __init__(self, file: str | Path | None, *, durable: bool = True) -> None:
        """Open the store, or create it (mode 0600) in an existing folder.

        Args:
            file: The store's path. None: in memory, lost with the process.
            durable: Whether a mark outlives a power cut. A simulation does not need it.

        A process that is killed here leaves a file that the next one completes.

        Raises:
            StorageUnavailable: The file can't be made or written.
            ValueError: It is no such store.
        """
        self._file, self._lock = file, threading.Lock()
        with self._errors_named():
            if file is not None:
                private_file(Path(file))
            self._database = sqlite3.connect(
                file or ":memory:", timeout=60.0, isolation_level=None, check_same_thread=False
            )
            # EXTRA syncs the folder too. With FULL a power cut may restore the deleted rollback
            # journal, and with it a state before the mark.
            synchronous = "EXTRA" if durable else "OFF"
            self._database.execute(f"PRAGMA synchronous = {synchronous}")
            self._database.execute("PRAGMA secure_delete = ON")  # run keys are gone when deleted
            application = self._number("PRAGMA application_id")
            other_program = application not in (0, _APPLICATION)
            if other_program or (application == 0 and self._number(_COUNT_TABLES)):
                raise ValueError(f"{file} is another program's database: move it away")
            if application == 0:
                self._database.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._database.executescript(_TABLES)
            self._together(
                ("INSERT OR IGNORE INTO taken VALUES (1, ?, 0, ?)", (secrets.token_hex(16), b""))
            )

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def get(self, run: int | None, key: str) -> bytes | None:
        """A run's value under a key, or None. Values of run None outlive runs."""
        row = self._one("SELECT value FROM kept WHERE run = ? AND key = ?", _name(run), key)
        if row is None:
            return None
        return bytes(row[0])

    def put(self, run: int | None, key: str, value: bytes) -> None:
        """Store a value under a key, in place of an earlier one."""
        self._together(
            ("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", (_name(run), key, value)),
            ("INSERT OR IGNORE INTO runs VALUES (?, ?)", (_name(run), time.time())),
        )

    def first(self, key: str, value: bytes) -> bytes:
        """Store a value that outlives runs unless there is one; return the value in force."""
        self._together(("INSERT OR IGNORE INTO kept VALUES (?, ?, ?)", (_ANY_RUN, key, value)))
        stored = self.get(None, key)
        assert stored is not None  # nothing deletes it
        return stored

    def mark(self, run: int, role: str, number: int, mark: Mark) -> None:
        """Store a mark. One transaction checks that its number exceeds all of its role in the run.

        Raises:
            Refused: `stale`, if it does not.
        """
        with self._transaction():
            inserted = self._database.execute(
                "INSERT INTO once SELECT ?, ?, ?, ?, ? WHERE NOT EXISTS "
                "(SELECT 1 FROM once WHERE run = ? AND role = ? AND number >= ?)",
                (_name(run), role, number, *mark, _name(run), role, number),
            )
            if inserted.rowcount != 1:
                raise stale(number)
            query = "SELECT marks, last FROM taken"
            count, last = self._database.execute(query).fetchone()
            after = digest("mark", last, _name(run).encode(), role.encode(), number, *mark)
            self._database.execute("UPDATE taken SET marks = ?, last = ?", (count + 1, after))

    @property
    def taken(self) -> MarksTaken:
        """Its own count of its marks."""
        [(name, count, last)] = self._all("SELECT name, marks, last FROM taken")
        return MarksTaken(str(name), int(count), bytes(last).hex())

    def marked(self, run: int, role: str, number: int) -> Mark | None:
        """A role's mark for a number, if any."""
        row = self._one(
            "SELECT terms, view FROM once WHERE run = ? AND role = ? AND number = ?",
            _name(run),
            role,
            number,
        )
        if row is None:
            return None
        terms, view = row
        return Mark(bytes(terms), bytes(view))

    def last(self, run: int, role: str) -> int:
        """A role's highest marked number, 0 if none."""
        query = "SELECT max(number) FROM once WHERE run = ? AND role = ?"
        return self._number(query, _name(run), role)

    def forget(self, run: int) -> None:
        """Delete everything of a run."""
        tables = ("runs", "kept", "once")
        statements = [(f"DELETE FROM {table} WHERE run = ?", (_name(run),)) for table in tables]
        self._together(*statements)

    def older(self, days: float) -> tuple[int, ...]:
        """Runs whose first value was put more than `days` days ago."""
        limit = time.time() - days * _SECONDS_A_DAY
        query = "SELECT run FROM runs WHERE run != ? AND began < ?"
        return tuple(sorted(int(row[0]) for row in self._all(query, _ANY_RUN, limit)))

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, self._errors_named():
            return self._database.execute(query, values).fetchall()

    def _one(self, query: str, *values: object) -> tuple[Any, ...] | None:
        return next(iter(self._all(query, *values)), None)

    def _number(self, query: str, *values: object) -> int:
        row = self._one(query, *values)
        if row is None or row[0] is None:
            return 0
        return int(row[0])

    def _together(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        with self._transaction():
            for statement, values in statements:
                self._database.execute(statement, values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Hold the locks of thread and file: all statements are written, or none."""
        with self._lock, self._errors_named():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # SQLite itself takes back what found no room
                    self._database.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        """Name the file in errors of the database, each in one line.

        Raises:
            StorageUnavailable: The disk is full, or the file can't be reached or written.
            ValueError: The file is no store.
        """
        try:
            yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _UNREACHED:
                raise StorageUnavailable(
                    f"{self._file} can't be read or written ({error}): nothing is answered without "
                    "it. Make room on its disk, or mend it, and keep the file"
                ) from error
            raise ValueError(f"{self._file} is no store of secure sums ({error})") from error
        except OSError as error:
            raise StorageUnavailable(f"{self._file} can't be made: {error.strerror}") from error


_COUNT_TABLES = "SELECT count(*) FROM sqlite_master"


def _name(run: int | None) -> str:
    """A run as text, as Flower's ids exceed a database's integers."""
    return _ANY_RUN if run is None else str(run)
