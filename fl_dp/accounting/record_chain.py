"""A hash-chained file of records that several processes read and add to, one at a time."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

from .ledger_store import LedgerStore
from .records import LedgerCorrupted, LedgerRecord, next_record, verify_chain


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
        """
        with self._lock:
            self._unsaved = []
            with self._store.transaction() as connection:
                self._catch_up(connection)
                yield connection
            for record in self._unsaved:  # only now is it on disk
                self._replay(record)

    def append(self, connection: sa.Connection, fields: dict[str, Any]) -> LedgerRecord:
        """Add a record within a transaction; it is replayed once it is on disk."""
        written = self._unsaved or self.records
        record = next_record(written[-1] if written else None, fields)
        self._store.append(connection, record)
        self._unsaved.append(record)
        return record

    def close(self) -> None:
        """Close the file or the connection; closing twice does no harm."""
        self._store.close()

    def _catch_up(self, connection: sa.Connection) -> None:
        """Read, verify and replay the records that were added since the last look."""
        known = len(self.records)
        fresh = self._store.records_from(connection, known)
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

    def __init__(self, store: LedgerStore) -> None:
        """Follow a store."""
        self._chain = RecordChain(store, self._replay)

    @abstractmethod
    def _replay(self, sequence: int, fields: dict[str, Any]) -> None:
        """Take in one record, or refuse it as `RecordChain` says."""

    @property
    def location(self) -> str:
        """The file or database that it lies in, without a password."""
        return self._chain.location

    def close(self) -> None:
        """Close the file or the connection; closing twice does no harm."""
        self._chain.close()

    def __enter__(self) -> Self:
        """Return the ledger itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; what was written as spent stays spent."""
        self.close()
