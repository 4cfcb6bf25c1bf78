"""Where a ledger's records lie: an SQLite file or a PostgreSQL database, one writer at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from .records import LedgerCorrupted, LedgerRecord

_METADATA = sa.MetaData()
_TABLE = sa.Table(
    "records",
    _METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
_LOCK = 0x666C2D6470  # "fl-dp": PostgreSQL's advisory locks are numbers
_SECRETS = ("password", "sslpassword")  # which a URL may also carry behind its question mark


class LedgerStore:
    """A table of records that are added under a lock and never changed."""

    def __init__(self, engine: sa.Engine, location: str, *, writable: bool) -> None:
        """Use `writable` or `readable` instead."""
        self._engine = engine
        self._has_table = not writable
        self.location = location

    @classmethod
    def writable(cls, location: str | Path) -> Self:
        """Open an SQLite file or a database URL to add records, creating the table if need be.

        Raises:
            FileNotFoundError: If the file's folder does not exist.
            ValueError: If the URL is of another database than SQLite or PostgreSQL.
        """
        path = _sqlite_path(location)
        if path is None:
            return cls(*_server(str(location), writable=True), writable=True)
        if not path.parent.is_dir():
            raise FileNotFoundError(f"no folder {path.parent} to keep the privacy ledger in")
        return cls(_sqlite_engine(path, writable=True), str(path), writable=True)

    @classmethod
    def readable(cls, location: str | Path) -> Self:
        """Open an SQLite file or a database URL to look at the records.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the URL is of another database than SQLite or PostgreSQL.
        """
        path = _sqlite_path(location)
        if path is None:
            return cls(*_server(str(location), writable=False), writable=False)
        if not path.is_file():
            raise FileNotFoundError(f"no ledger at {path}")
        return cls(_sqlite_engine(path, writable=False), str(path), writable=False)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Hold the lock; all that is written inside is on disk afterwards, or none of it.

        Raises:
            LedgerCorrupted: If the database can't be read or written.
        """
        try:
            with self._engine.begin() as connection:
                if not self._has_table:
                    _METADATA.create_all(connection)
                yield connection
            self._has_table = True
        except sa.exc.DBAPIError as error:
            raise LedgerCorrupted(
                f"{self.location} can't be read or written: {error.orig}"
            ) from error

    def records_from(self, connection: sa.Connection, sequence: int) -> list[LedgerRecord]:
        """Return that record and all behind it, unverified; from 0 everything that there is."""
        query = sa.select(_TABLE).order_by(_TABLE.c.sequence)
        if sequence > 0:
            query = query.where(_TABLE.c.sequence >= sequence)
        rows = connection.execute(query)
        return [LedgerRecord(sequence=s, payload=p, hash=h) for s, p, h in rows]

    def append(self, connection: sa.Connection, record: LedgerRecord) -> None:
        """Add a record."""
        connection.execute(
            sa.insert(_TABLE).values(
                sequence=record.sequence, payload=record.payload, hash=record.hash
            )
        )

    def close(self) -> None:
        """Let go of the file or the connection; closing twice does no harm."""
        self._engine.dispose()


def _sqlite_path(location: str | Path) -> Path | None:
    """Return the file of a path or of an SQLite URL, None for another database's URL."""
    if isinstance(location, str) and "://" in location:
        url = _url(location)
        if url.get_backend_name() != "sqlite":
            return None
        if not url.database or url.database == ":memory:":
            raise ValueError("a ledger in memory would forget what was spent: name a file")
        location = url.database
    return Path(location).expanduser().resolve()


def _url(location: str) -> sa.URL:
    try:
        return sa.make_url(location)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise ValueError(
            "this is no database URL: write postgresql+psycopg://user@host:5432/database"
        ) from error


def _server(location: str, *, writable: bool) -> tuple[sa.Engine, str]:
    url = _url(location)
    if url.get_backend_name() != "postgresql":
        raise ValueError(
            f"a ledger lies in SQLite or PostgreSQL, got '{url.get_backend_name()}': write a file "
            "name or postgresql+psycopg://user@host/database"
        )
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    # A stricter isolation would read as of before the wait for the lock, and miss what came then.
    try:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="READ COMMITTED")
    except (sa.exc.NoSuchModuleError, ImportError) as error:
        raise ValueError(
            f"no driver for '{url.drivername}' ({error}): install 'fl-dp[postgresql]' and write "
            "postgresql+psycopg://user@host/database"
        ) from error

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        if not writable:
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
            return
        # Taken before the replay and held to the end, so that nobody can reserve in between; what
        # is read after it includes all that was committed under it before.
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")

    shown = url.update_query_dict({name: "***" for name in _SECRETS if name in url.query})
    return engine, shown.render_as_string(hide_password=True)


def _sqlite_engine(path: Path, *, writable: bool) -> sa.Engine:
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: _connect(path, writable=writable),
        poolclass=sa.pool.NullPool,
    )

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # Takes the write lock before the replay, so that nobody can reserve in between.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writable else "BEGIN")

    return engine


def _connect(path: Path, *, writable: bool) -> Any:
    # A reader may write too, where the file lets it: only so can SQLite undo what a killed writer
    # had half done. It is kept from anything else.
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={'rwc' if writable else 'rw'}",
        uri=True,
        timeout=60.0,
        isolation_level=None,
    )
    # EXTRA also syncs the folder: a reservation survives a power cut right after it.
    connection.execute("PRAGMA synchronous = EXTRA" if writable else "PRAGMA query_only = ON")
    return connection
