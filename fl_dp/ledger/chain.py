"""A hash-chained ledger that several processes read and extend, one at a time."""

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
    """The entries of one store, verified and replayed before any is added."""

    first_entry: ClassVar[str]
    """Name of the first entry, for errors."""

    def __init__(self, store: LedgerStore, witness: Witness | None = None) -> None:
        """Follow a store; a witness notes each entry."""
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
            location: File, or database URL.
            witness: Second place, compared with the ledger.

        Raises:
            FileNotFoundError: No such file.
            LedgerCorrupted: It is no such ledger, an entry breaks the chain, or it is an older
                copy than the witness has seen.
            LedgerUnavailable: The disk or database fails.
        """
        ledger = cls(LedgerStore.readable(location), witness)
        with ledger._first_transaction():
            if not ledger._entries:
                raise LedgerCorrupted(f"{ledger.location} holds no {cls.first_entry}")
        return ledger

    @contextmanager
    def _first_transaction(self) -> Iterator[sa.Connection]:
        """As `_transaction`, for the first time; an error closes the ledger."""
        try:
            with self._transaction() as connection:
                self._require_witnessed()
                yield connection
        except BaseException:
            self.close()
            raise

    def _require_witnessed(self) -> None:
        """Compare the entries with all anchors of the witness, if any."""
        witness, count = self._witness, len(self._entries)
        if witness is None:
            return
        anchors = witness.anchors()
        if count and not anchors:
            raise LedgerCorrupted(
                f"the witness {witness.location} knows nothing of {self.location}, which has "
                f"{count} entries: name the witness that it had; if it never had one, "
                f"`fl-dp ledger {self.location} --begin-witness {witness.location}` begins it once"
            )
        # The furthest first: an error on missing entries says more than one on different ones.
        for anchor in sorted(anchors, key=lambda anchor: -anchor.entries):
            self.require_holds(anchor, of=f"its witness {witness.location}")

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Hold the lock, with every entry replayed. All appended entries are written, or none.

        Raises:
            LedgerCorrupted: An entry breaks the chain or can't be read.
            LedgerUnavailable: The disk, database or witness fails. Appended entries may be written
                then, and count.
        """
        with self._lock:
            self._unsaved = []  # a failed transaction's entries were never written
            with self._store.transaction() as connection:
                self._catch_up(connection)
                yield connection
            for entry in self._unsaved:  # only now is it on disk
                self._accept(entry)
            # Last: the ledger has to hold what the witness notes, and not the other way round.
            if self._unsaved and self._witness is not None:
                self._note_at(self._witness)

    def _note_at(self, witness: Witness) -> None:
        """Have a witness note the last entry; the ledger must hold a later one that is there."""
        furthest = witness.note(self.anchor, self._hash_at)
        if furthest.entries > self.anchor.entries:
            # Another process was quicker: of this ledger, or of a copy, whose entries are not here.
            with self._store.transaction() as connection:
                self._catch_up(connection)
            self.require_holds(furthest, of=f"its witness {witness.location}")

    def _hash_at(self, entries: int) -> str:
        return self._entries[entries - 1].hash

    def _append(self, connection: sa.Connection, fields: dict[str, Any]) -> LedgerEntry:
        """Add an entry within a transaction; it is replayed once on disk."""
        written = self._unsaved or self._entries  # the chain continues this transaction's entries
        last = written[-1] if written else None
        entry = next_entry(last, fields)
        self._store.append(connection, entry)
        self._unsaved.append(entry)
        return entry

    def _catch_up(self, connection: sa.Connection) -> None:
        """Read, verify and replay entries added since the last look."""
        count = len(self._entries)
        fresh = self._store.entries_from(connection, count)
        # The last entry is read again: it shows if an older file was put back.
        last = self._entries[-1] if self._entries else None
        if last is not None and (not fresh or fresh.pop(0) != last):
            raise LedgerCorrupted(
                f"entry {count} is not the one that it was: the ledger was changed or put back to "
                "an older state while it was open"
            )
        verify_chain(fresh, last)
        for entry in fresh:
            self._accept(entry)

    def _accept(self, entry: LedgerEntry) -> None:
        """Replay an entry that is on disk, and keep it."""
        try:
            self._replay(entry.sequence, entry.fields)
        except (*MALFORMED, ValueError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise LedgerCorrupted(f"entry {entry.sequence} can't be read: {reason}") from error
        self._entries.append(entry)

    @abstractmethod
    def _replay(self, sequence: int, fields: dict[str, Any]) -> None:
        """Update the state by one entry. An unreadable one may be a charge, so it is refused.

        Raises:
            KeyError: It lacks a field.
            TypeError: A field has another type.
            ValueError: It can't stand there.
        """

    @property
    def location(self) -> str:
        """The ledger's file or database, without a password."""
        return self._store.location

    @property
    def file(self) -> Path | None:
        """The ledger's file; None for a database."""
        return self._store.file

    @property
    def name(self) -> str:
        """Name of the file or database, without folder or host."""
        return self._store.name

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """Every entry, as last read."""
        return tuple(self._entries)

    @property
    def anchor(self) -> LedgerAnchor:
        """The point reached, as last read, to compare a later copy with."""
        last = self._entries[-1]
        return LedgerAnchor(entries=last.sequence, hash=last.hash)

    def as_of(self, entries: int) -> Self:
        """Return a ledger of the first `entries` entries, to look at."""
        earlier = type(self)(self._store)
        for entry in self._entries[:entries]:
            earlier._accept(entry)
        return earlier

    def require_holds(self, anchor: LedgerAnchor, *, of: str) -> None:
        """Check that the ledger, as last read, holds the entry of an earlier anchor.

        The error names `of`, the anchor's holder.

        Raises:
            LedgerCorrupted: Entries were cut off, or it is another ledger.
        """
        count = len(self._entries)
        if count < anchor.entries:
            raise LedgerCorrupted(
                f"{self.location} has {count} entries and {of} knows of {anchor.entries}: its end "
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
        """Have an empty witness note how far this ledger has come.

        Raises:
            LedgerUnavailable: The witness can't be written.
            ValueError: It is not empty, or lies beside the ledger.
        """
        witness.require_apart(self._store.file)
        if witness.anchors():
            raise ValueError(
                f"the witness {witness.location} has begun already: `fl-dp ledger {self.location} "
                f"--witness {witness.location}` compares"
            )
        witness.note(self.anchor, self._hash_at)

    @property
    def unwitnessed(self) -> str:
        """Sentence for a ledger that was compared with nothing."""
        return (
            f"nothing beside {self.location} knows how far it had come, so that an end that was "
            "cut off would not be noticed: name a witness on another disk"
        )

    def close(self) -> None:
        """Close the file or connection; closing twice is harmless."""
        self._store.close()

    def __enter__(self) -> Self:
        """Return the ledger itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it; what was written as spent stays spent."""
        self.close()
