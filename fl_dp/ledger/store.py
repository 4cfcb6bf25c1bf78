"""Storage of a ledger's entries: an SQLite file or a PostgreSQL database, one writer at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from fl_dp.files import private_file
from fl_dp.option_errors import ArgumentError, OptionError

from .entries import OTHER_SCHEMA, LedgerCorrupted, LedgerEntry, LedgerUnavailable

_METADATA = sa.MetaData()
_TABLE = sa.Table(
    "entries",
    _METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
_OLDER_TABLE = "records"  # an entry's name until schema 5 of trainings and 2 of nodes
_LOCK = 0x666C2D6470  # "fl-dp": PostgreSQL's advisory locks are numbers
# Codes of errors in the entries themselves. All others (a full disk, no connection, no permission,
# a lock) leave the entries as they are.
_SQLITE_CORRUPT = (
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_SCHEMA,
)
# Damaged data, a violated constraint, no such table, no such column.
_POSTGRESQL_CORRUPT = ("XX001", "XX002", "23", "42P01", "42703")
_CONNECT_SECONDS = 30
_LOCK_SECONDS = 60.0
_LIBPQ_DRIVERS = ("postgresql+psycopg", "postgresql+psycopg2")
_SECRETS = ("password", "sslpassword")  # a URL may also carry them behind its question mark


class LedgerStore:
    """A table of entries, added under a lock and never changed."""

    def __init__(
        self, engine: sa.Engine, location: str, *, writable: bool, file: Path | None = None
    ) -> None:
        """Use `writable` or `readable` instead."""
        self._engine = engine
        self._checked = False
        self._writable = writable
        self.location = location
        self.file = file
        self.name = file.name if file else location.partition("?")[0].rpartition("/")[2]

    @classmethod
    def writable(cls, location: str | Path) -> Self:
        """Open an SQLite file or database URL to add entries, creating the table if need be.

        Raises:
            LedgerUnavailable: The file can't be created.
            ValueError: It is a folder, its folder does not exist, or the database is neither
                SQLite nor PostgreSQL.
        """
        path = _sqlite_path(location)
        if path is None:
            return cls(*postgresql_engine(str(location), writable=True), writable=True)
        if os.path.isdir(path):  # noqa: PTH112  # pathlib raises for a name that is too long
            raise OptionError(
                f"{path} is a folder: name the ledger's file in it, as ledger.db", option="ledger"
            )
        if not path.parent.is_dir():
            raise OptionError(
                f"no folder {path.parent} to keep the privacy ledger in: make it, or name a file "
                "in another one",
                option="ledger",
            )
        try:
            private_file(path)  # SQLite gives its journal the same permissions
        except OSError as error:
            raise LedgerUnavailable(
                f"the ledger {path} can't be created: {error.strerror}. Name a file in a folder "
                "that you may write to, on a disk with room"
            ) from error
        return cls(_sqlite_engine(path, writable=True), str(path), writable=True, file=path)

    @classmethod
    def existing(cls, location: str | Path) -> Self | None:
        """Open as `writable`; None for a file that does not exist yet."""
        path = _sqlite_path(location)
        if path is not None and not path.exists():
            return None
        return cls.writable(location)

    @classmethod
    def readable(cls, location: str | Path) -> Self:
        """Open an SQLite file or database URL to look at entries.

        An empty file is no ledger: whoever was to make one was killed, or had no room. Then each
        transaction raises `FileNotFoundError`.

        Raises:
            FileNotFoundError: No such file.
            ValueError: The database is neither SQLite nor PostgreSQL.
        """
        path = _sqlite_path(location)
        if path is None:
            return cls(*postgresql_engine(str(location), writable=False), writable=False)
        if not path.is_file():
            raise FileNotFoundError(f"no ledger at {path}")
        return cls(_sqlite_engine(path, writable=False), str(path), writable=False, file=path)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Hold the lock. Everything written inside is on disk afterwards, or none of it.

        Raises:
            FileNotFoundError: The file, opened to read, is empty.
            LedgerCorrupted: No table of entries, or an older version's.
            LedgerUnavailable: The disk is full, the database can't be reached or written, or
                another process holds the lock too long.
        """
        try:
            with self._engine.begin() as connection:
                if not self._checked:
                    self._check_table(connection)
                yield connection
            self._checked = True
        except sa.exc.DBAPIError as error:
            raise _ledger_error(self.location, error.orig) from error
        except UnicodeDecodeError as error:  # the table's own description is damaged
            raise LedgerCorrupted(
                f"{self.location} is no ledger that can be read: {error.reason}"
            ) from error

    def entries_from(self, connection: sa.Connection, sequence: int) -> list[LedgerEntry]:
        """Return entry `sequence` and all later ones, unverified; 0: all."""
        query = sa.select(_TABLE).order_by(_TABLE.c.sequence)
        if sequence > 0:
            query = query.where(_TABLE.c.sequence >= sequence)
        rows = connection.execute(query)
        return [LedgerEntry(sequence=s, payload=p, hash=h) for s, p, h in rows]

    def append(self, connection: sa.Connection, entry: LedgerEntry) -> None:
        """Add an entry."""
        connection.execute(sa.insert(_TABLE).values(asdict(entry)))

    def _check_table(self, connection: sa.Connection) -> None:
        """Refuse an older version's ledger, whose spending a new table beside it would ignore."""
        database = sa.inspect(connection)
        if not self._writable and self._has_no_page(connection):
            raise FileNotFoundError(f"no ledger at {self.location}")
        if database.has_table(_OLDER_TABLE):
            columns = {column["name"] for column in database.get_columns(_OLDER_TABLE)}
            if columns == set(_TABLE.c.keys()):  # else it is another program's table
                raise LedgerCorrupted(
                    f"{self.location} is of an older version of fl-dp, whose entries are called "
                    f"'{_OLDER_TABLE}': {OTHER_SCHEMA}"
                )
        if self._writable:
            _METADATA.create_all(connection)

    def _has_no_page(self, connection: sa.Connection) -> bool:
        """Tell whether a file is empty, once SQLite has undone what a killed writer began."""
        if self.file is None:
            return False
        return connection.exec_driver_sql("PRAGMA page_count").scalar() == 0

    def close(self) -> None:
        """Close the file or connection; closing twice is harmless."""
        self._engine.dispose()


def _ledger_error(location: str, error: BaseException | None) -> Exception:
    """Return the ledger's error for a database's: corrupted, or unavailable."""
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, sqlite3.Error):
        # An error without a code is Python's own: a text that is no UTF-8.
        corrupted = code is None or code & 0xFF in _SQLITE_CORRUPT
    else:
        state = getattr(error, "sqlstate", None)  # PostgreSQL's; None without a connection
        corrupted = state is not None and state.startswith(_POSTGRESQL_CORRUPT)
    message = " ".join(str(error).split())  # PostgreSQL's has several lines
    if corrupted:
        return LedgerCorrupted(f"{location} is no ledger that can be read: {message}")
    return LedgerUnavailable(
        f"the ledger {location} can't be read or written: {message}. Nothing is released without "
        f"its charge: {_remedy(code, message)}, then continue with the same ledger"
    )


def _remedy(sqlite_code: int | None, message: str) -> str:
    if sqlite_code is None:
        if "read-only" in message:
            return "open it to write"
        return "see that the database is up, and that its URL and your permissions are right"
    match sqlite_code & 0xFF:
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return "make room on the disk, or mend it"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "end the process that holds it"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return "open it to write, as a user who may write the file and its folder"
        case _:
            return "mend that"


def _sqlite_path(location: str | Path) -> Path | None:
    """Return the file of a path or SQLite URL; None for another database's URL."""
    if isinstance(location, str) and "://" in location:
        url = _url(location)
        if url.get_backend_name() != "sqlite":
            return None
        location = url.database or ":memory:"
    if not isinstance(location, str | Path):
        raise ArgumentError(
            f"a ledger's location must be a text or Path, got {location!r:.80} of type "
            f"{type(location).__name__}",
            option="ledger",
        )
    if str(location) in ("", ":memory:") or "\0" in str(location):
        raise OptionError(
            f"a ledger has to outlast the training, got {str(location)!r}: name a file, such as "
            "ledger.db",
            option="ledger",
        )
    return Path(location).expanduser().resolve()


def shown_location(location: str) -> str:
    """Return a ledger's or witness's location to show: a URL without its secrets.

    A URL that can't be read is not shown at all.
    """
    if "://" not in location:
        return location
    try:
        return _without_secrets(_url(location))
    except ValueError:
        return "a database whose URL can't be read"


def _without_secrets(url: sa.URL) -> str:
    shown = url.update_query_dict({name: "***" for name in _SECRETS if name in url.query})
    return shown.render_as_string(hide_password=True)


def _url(location: str) -> sa.URL:
    try:
        return sa.make_url(location)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise OptionError(
            "this is no database URL: write postgresql+psycopg://user@host:5432/database",
            option="ledger",
        ) from error


def postgresql_engine(location: str, *, writable: bool) -> tuple[sa.Engine, str]:
    """Return the engine of a PostgreSQL URL, and the URL without its secrets.

    Where `writable`, each transaction holds the lock from its beginning; else it only reads.

    Raises:
        ValueError: The URL is of another database, or has no driver here.
    """
    url = _url(location)
    if url.get_backend_name() != "postgresql":
        raise OptionError(
            f"a ledger lies in SQLite or PostgreSQL, got '{url.get_backend_name()}': write a file "
            "name or postgresql+psycopg://user@host/database",
            option="ledger",
        )
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    connect_args = {}
    if url.drivername in _LIBPQ_DRIVERS and "connect_timeout" not in url.query:
        # Without it the system decides how long to wait for a server whose packets are dropped.
        connect_args["connect_timeout"] = _CONNECT_SECONDS
    try:
        # A stricter isolation would read the state before the wait for the lock, and miss entries.
        engine = sa.create_engine(
            url,
            poolclass=sa.pool.NullPool,
            isolation_level="READ COMMITTED",
            connect_args=connect_args,
        )
    except (sa.exc.NoSuchModuleError, ImportError) as error:
        raise OptionError(
            f"no driver for '{url.drivername}' ({error}): install 'fl-dp[postgresql]' and write "
            "postgresql+psycopg://user@host/database",
            option="ledger",
        ) from error

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        if not writable:
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
            return
        # The lock is taken before the replay and held to the end, so that nobody can reserve in
        # between. What is read after it includes all that was committed under it before.
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")

    return engine, _without_secrets(url)


def _sqlite_engine(path: Path, *, writable: bool) -> sa.Engine:
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: _connect(path, writable=writable),
        poolclass=sa.pool.NullPool,
    )

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # IMMEDIATE takes the write lock before the replay, so that nobody can reserve in between.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writable else "BEGIN")

    return engine


def _connect(path: Path, *, writable: bool) -> Any:
    # A reader may write too, where the file lets it: otherwise SQLite can't undo what a killed
    # writer had half done. `query_only` prevents all other writes.
    mode = "rwc" if writable else "rw"
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=_LOCK_SECONDS,
        isolation_level=None,
    )
    # EXTRA also syncs the folder: a reservation survives a power cut right after it.
    connection.execute("PRAGMA synchronous = EXTRA" if writable else "PRAGMA query_only = ON")
    return connection
