"""A hash-chained file of records that several processes read and add to, one at a time."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import sqlalchemy as sa

from .anchors import LedgerAnchor
from .entries import LedgerCorrupted, LedgerRecord, next_record, verify_chain
from .store import LedgerStore


class RecordChain:
    """The records of one store, verified and replayed before anything is added to them."""

    def __init__(self, store: LedgerStore, replay: Callable[[int, dict[str, Any]], None]) -> None:
        """Follow a store.

        Args:
            store: Where the records lie.
            replay: Takes in one record, by its sequence number and fields. What it can't read it
                refuses with a KeyError, TypeError or ValueError: it may be a charge.
        """
        self._store = store
        self._replay_fields = replay
        self._lock = threading.Lock()
        self._unsaved: list[LedgerRecord] = []
        self.records: list[LedgerRecord] = []

    @property
    def location(self) -> str:
        """The file or database, without a password."""
        return self._store.location

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Hold the lock, with every record replayed; all that is appended is written, or nothing.

        Raises:
            LedgerCorrupted: If a record does not match the chain or can't be read.
            LedgerUnavailable: If the disk or the database fails.
        """
        with self._lock:
            self._unsaved = []  # what a failed transaction had added was never written
            with self._store.transaction() as connection:
                self._catch_up(connection)
                yield connection
            for record in self._unsaved:  # only now is it on disk
                self._replay(record)

    def append(self, connection: sa.Connection, fields: dict[str, Any]) -> LedgerRecord:
        """Add a record within a transaction; it is replayed once it is on disk."""
        written = self._unsaved or self.records  # the chain goes on behind this transaction's own
        record = next_record(written[-1] if written else None, fields)
        self._store.append(connection, record)
        self._unsaved.append(record)
        return record

    def replay_from(self, records: Iterable[LedgerRecord]) -> None:
        """Take in records that another chain of the same store has verified."""
        for record in records:
            self._replay(record)

    def close(self) -> None:
        """Close the file or the connection; closing twice does no harm."""
        self._store.close()

    def _catch_up(self, connection: sa.Connection) -> None:
        """Read, verify and replay the records that were added since the last look."""
        known = len(self.records)
        fresh = self._store.records_from(connection, known)
        # The last known record is read again: a file that was put back shows by it.
        last = self.records[-1] if self.records else None
        if last is not None and (not fresh or fresh.pop(0) != last):
            raise LedgerCorrupted(
                f"record {known} is not the one that it was: the ledger was changed or put back to "
                "an older state while it was open"
            )
        verify_chain(fresh, last)
        for record in fresh:
            self._replay(record)

    def _replay(self, record: LedgerRecord) -> None:
        try:
            self._replay_fields(record.sequence, record.fields)
        except (KeyError, TypeError, ValueError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise LedgerCorrupted(f"record {record.sequence} can't be read: {why}") from error
        self.records.append(record)


class ChainedLedger(ABC):
    """A ledger over a chain of records: it is replayed on opening, and closed at the end."""

    first_record: ClassVar[str]
    """The content of its first record, in words."""

    def __init__(self, store: LedgerStore) -> None:
        """Follow a store."""
        self._store = store
        self._chain = RecordChain(store, self._replay)

    @classmethod
    def read(cls, location: str | Path) -> Self:
        """Open a ledger to look at it; nothing can be spent or changed.

        Raises:
            FileNotFoundError: If there is no such file.
            LedgerCorrupted: If it is no such ledger or a record does not match the chain.
            LedgerUnavailable: If the disk or the database fails.
        """
        ledger = cls(LedgerStore.readable(location))
        with ledger._first_transaction():
            if not ledger._chain.records:
                raise LedgerCorrupted(f"{ledger.location} holds no {cls.first_record}")
        return ledger

    @contextmanager
    def _first_transaction(self) -> Iterator[sa.Connection]:
        """Replay every record, as `RecordChain.transaction`; what fails closes the ledger."""
        try:
            with self._chain.transaction() as connection:
                yield connection
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _replay(self, sequence: int, fields: dict[str, Any]) -> None:
        """Take in one record, or refuse it as `RecordChain` says."""

    @property
    def location(self) -> str:
        """The file or database that it lies in, without a password."""
        return self._chain.location

    @property
    def name(self) -> str:
        """The file's or database's own name, without where it is."""
        return self._store.name

    @property
    def records(self) -> tuple[LedgerRecord, ...]:
        """Every record, as last read."""
        return tuple(self._chain.records)

    @property
    def anchor(self) -> LedgerAnchor:
        """The point that it has reached, as last read: a later copy can be compared with it."""
        last = self._chain.records[-1]
        return LedgerAnchor(records=last.sequence, hash=last.hash)

    def as_of(self, records: int) -> Self:
        """Return the ledger as it was after so many of its records, to look at."""
        earlier = type(self)(self._store)
        earlier._chain.replay_from(self._chain.records[:records])
        return earlier

    def require_holds(self, anchor: LedgerAnchor, *, of: str) -> None:
        """Check that the ledger, as last read, has come as far as `anchor` on the same way.

        Args:
            anchor: Of this ledger at an earlier moment.
            of: Names where the anchor stands, for the error.

        Raises:
            LedgerCorrupted: If records were cut off, or the ledger is another one.
        """
        records = self._chain.records
        known = len(records)
        if known < anchor.records:
            raise LedgerCorrupted(
                f"{self.location} has {known} records and {of} knows of {anchor.records}: its end "
                "was cut off, or it is an older copy. What they charged stays spent: put the "
                "complete ledger back"
            )
        if records[anchor.records - 1].hash != anchor.hash:
            raise LedgerCorrupted(
                f"record {anchor.records} of {self.location} is not the one that {of} knows of: "
                "the end was cut off and grew again, or it is another training's ledger. Put back "
                "the one that belongs to it"
            )

    def close(self) -> None:
        """Close the file or the connection; closing twice does no harm."""
        self._chain.close()

    def __enter__(self) -> Self:
        """Return the ledger itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it; what was written as spent stays spent."""
        self.close()
