"""A hash-chained ledger that several processes read and add to, one at a time."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import sqlalchemy as sa

from fl_dp.documents import MALFORMED

from .anchors import LedgerAnchor
from .entries import LedgerCorrupted, LedgerEntry, next_entry, verify_chain
from .store import LedgerStore
from .witness import Witness


class ChainedLedger(ABC):
    """The entries of one store, verified and replayed before anything is added to them."""

    first_entry: ClassVar[str]
    """The content of its first entry, in words."""

    def __init__(self, store: LedgerStore, witness: Witness | None = None) -> None:
        """Follow a store; a witness, a second place, is told of each entry."""
        self._store = store
        self._witness = witness
        self._lock = threading.Lock()
        self._unsaved: list[LedgerEntry] = []
        self._entries: list[LedgerEntry] = []
        if witness is not None:
            witness.require_apart(store.file)

    @classmethod
    def read(cls, location: str | Path, *, witness: Witness | None = None) -> Self:
        """Open a ledger to look at it; nothing can be spent or changed.

        Args:
            location: Its file, or the URL of its database.
            witness: A second place that it is compared with.

        Raises:
            FileNotFoundError: If there is no such file.
            LedgerCorrupted: If it is no such ledger, an entry does not match the chain, or it is
                an older copy than the witness knows.
            LedgerUnavailable: If the disk or the database fails.
        """
        ledger = cls(LedgerStore.readable(location), witness)
        with ledger._first_transaction():
            if not ledger._entries:
                raise LedgerCorrupted(f"{ledger.location} holds no {cls.first_entry}")
        return ledger

    @contextmanager
    def _first_transaction(self) -> Iterator[sa.Connection]:
        """Hold the lock for the first time, as `_transaction`; what fails closes the ledger."""
        try:
            with self._transaction() as connection:
                self._require_witnessed()
                yield connection
        except BaseException:
            self.close()
            raise

    def _require_witnessed(self) -> None:
        """Compare the entries with all that the witness knows, if there is one.

        Raises:
            LedgerCorrupted: If the witness knows more, something else, or nothing.
        """
        witness, known = self._witness, len(self._entries)
        if witness is None:
            return
        anchors = witness.anchors()
        if known and not anchors:
            raise LedgerCorrupted(
                f"the witness {witness.place} knows nothing of {self.location}, which has {known} "
                "entries: name the witness that it had; if it never had one, "
                f"`fl-dp ledger {self.location} --begin-witness {witness.place}` begins it once"
            )
        # The furthest first: what is missing says more than what differs.
        for anchor in sorted(anchors, key=lambda each: -each.entries):
            self.require_holds(anchor, of=f"its witness {witness.place}")

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Hold the lock, with every entry replayed; all that is appended is written, or nothing.

        Raises:
            LedgerCorrupted: If an entry does not match the chain or can't be read.
            LedgerUnavailable: If the disk or the database fails, or the witness; what was appended
                may then be written, and counts.
        """
        with self._lock:
            self._unsaved = []  # what a failed transaction had added was never written
            with self._store.transaction() as connection:
                self._catch_up(connection)
                yield connection
            for entry in self._unsaved:  # only now is it on disk
                self._take_in(entry)
            # Last: what the witness knows has to be there, and not the other way round.
            if self._unsaved and self._witness is not None:
                self._witnessed(self._witness)

    def _witnessed(self, witness: Witness) -> None:
        """Tell a witness of what was written; what it knows beyond that has to be there, too."""
        furthest = witness.note(self.anchor, self._hash_at)
        if furthest.entries > self.anchor.entries:
            # Another process of this ledger was quicker, or that of a copy, whose entries are not.
            with self._store.transaction() as connection:
                self._catch_up(connection)
            self.require_holds(furthest, of=f"its witness {witness.place}")

    def _hash_at(self, entries: int) -> str:
        """Return the hash of an entry, by its number."""
        return self._entries[entries - 1].hash

    def _append(self, connection: sa.Connection, fields: dict[str, Any]) -> LedgerEntry:
        """Add an entry within a transaction; it is replayed once it is on disk."""
        written = self._unsaved or self._entries  # the chain goes on behind this transaction's own
        entry = next_entry(written[-1] if written else None, fields)
        self._store.append(connection, entry)
        self._unsaved.append(entry)
        return entry

    def _catch_up(self, connection: sa.Connection) -> None:
        """Read, verify and replay the entries that were added since the last look."""
        known = len(self._entries)
        fresh = self._store.entries_from(connection, known)
        # The last known entry is read again: a file that was put back shows by it.
        last = self._entries[-1] if self._entries else None
        if last is not None and (not fresh or fresh.pop(0) != last):
            raise LedgerCorrupted(
                f"entry {known} is not the one that it was: the ledger was changed or put back to "
                "an older state while it was open"
            )
        verify_chain(fresh, last)
        for entry in fresh:
            self._take_in(entry)

    def _take_in(self, entry: LedgerEntry) -> None:
        try:
            self._replay(entry.sequence, entry.fields)
        except (*MALFORMED, ValueError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise LedgerCorrupted(f"entry {entry.sequence} can't be read: {why}") from error
        self._entries.append(entry)

    @abstractmethod
    def _replay(self, sequence: int, fields: dict[str, Any]) -> None:
        """Take in one entry, by its sequence number and fields.

        Raises:
            KeyError: If it lacks a field. What can't be read is refused: it may be a charge.
            TypeError: If a field is of another type.
            ValueError: If it can't stand there.
        """

    @property
    def location(self) -> str:
        """The file or database that it lies in, without a password."""
        return self._store.location

    @property
    def file(self) -> Path | None:
        """The file that it lies in; None for a database."""
        return self._store.file

    @property
    def name(self) -> str:
        """The file's or database's own name, without where it is."""
        return self._store.name

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """Every entry, as last read."""
        return tuple(self._entries)

    @property
    def anchor(self) -> LedgerAnchor:
        """The point that it has reached, as last read: a later copy can be compared with it."""
        last = self._entries[-1]
        return LedgerAnchor(entries=last.sequence, hash=last.hash)

    def as_of(self, entries: int) -> Self:
        """Return a ledger of the first `entries` entries, to look at."""
        earlier = type(self)(self._store)
        for entry in self._entries[:entries]:
            earlier._take_in(entry)
        return earlier

    def require_holds(self, anchor: LedgerAnchor, *, of: str) -> None:
        """Check that the ledger, as last read, has come as far as `anchor` on the same way.

        Args:
            anchor: Of this ledger at an earlier moment.
            of: Names where the anchor stands, for the error.

        Raises:
            LedgerCorrupted: If entries were cut off, or the ledger is another one.
        """
        known = len(self._entries)
        if known < anchor.entries:
            raise LedgerCorrupted(
                f"{self.location} has {known} entries and {of} knows of {anchor.entries}: its end "
                "was cut off, or it is an older copy. What they charged stays spent: put the "
                "complete ledger back"
            )
        if self._hash_at(anchor.entries) != anchor.hash:
            raise LedgerCorrupted(
                f"entry {anchor.entries} of {self.location} is not the one that {of} knows of: "
                "the end was cut off and grew again, or it is another training's ledger. Put back "
                "the one that belongs to it"
            )

    def begin_witness(self, witness: Witness) -> None:
        """Tell a witness that knows nothing yet how far this ledger has come.

        Raises:
            LedgerUnavailable: If it can't be written.
            ValueError: If it knows something, or lies beside the ledger.
        """
        witness.require_apart(self._store.file)
        if witness.anchors():
            raise ValueError(
                f"the witness {witness.place} has begun already: `fl-dp ledger {self.location} "
                f"--witness {witness.place}` compares"
            )
        witness.note(self.anchor, self._hash_at)

    @property
    def unwitnessed(self) -> str:
        """A sentence on what it means that nothing was there to compare the ledger with."""
        return (
            f"nothing beside {self.location} knows how far it had come, so that an end that was "
            "cut off would not be noticed: name a witness on another disk"
        )

    def close(self) -> None:
        """Close the file or the connection; closing twice does no harm."""
        self._store.close()

    def __enter__(self) -> Self:
        """Return the ledger itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it; what was written as spent stays spent."""
        self.close()
