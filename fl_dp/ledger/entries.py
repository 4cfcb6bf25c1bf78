"""A ledger's lines, and the chain that holds them together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from fl_dp.files import StorageUnavailable

SCHEMA = 14  # 11: a plan trained all arrays; 12: a ledger had one plan; 13: a record was no person
GENESIS = "0" * 64
ANOTHER_VERSION = 0.01  # relative: bounds on epsilon of other versions and machines may differ so


class LedgerCorrupted(RuntimeError):
    """An entry was altered, removed or reordered after writing."""


class LedgerUnavailable(StorageUnavailable):
    """The disk, database or witness failed; appended entries may be written, and then count.

    No release happens before its charge is on disk.
    """


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One line of a ledger, chained to the line before.

    Attributes:
        sequence: 1, 2, 3, ... without gaps.
        payload: Canonical JSON text, as hashed.
        hash: SHA-256 over the previous entry's hash, the sequence number and the payload.
    """

    sequence: int
    payload: str
    hash: str

    @property
    def fields(self) -> dict[str, Any]:
        """The entry's fields."""
        fields: dict[str, Any] = json.loads(self.payload)
        return fields

    @property
    def kind(self) -> str:
        """`plan`, `run`, `reserve`, `commit` and others; a node's: `charge` and others."""
        return str(self.fields["kind"])


def next_entry(previous: LedgerEntry | None, fields: dict[str, Any]) -> LedgerEntry:
    """Return the entry with `fields` that follows `previous`."""
    sequence = previous.sequence + 1 if previous else 1
    # One meaning has one text: an auditor can compute the hashed text from the fields.
    payload = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    link = _chain_hash(previous, sequence, payload)
    return LedgerEntry(sequence=sequence, payload=payload, hash=link)


def verify_chain(entries: Iterable[LedgerEntry], previous: LedgerEntry | None = None) -> None:
    """Check that `entries` follow `previous` and one another unaltered.

    Raises:
        LedgerCorrupted: The text names the first entry that does not fit.
    """
    for entry in entries:
        expected = previous.sequence + 1 if previous else 1
        if entry.sequence != expected:
            raise LedgerCorrupted(f"entry {expected} is missing: the next one is {entry.sequence}")
        if entry.hash != _chain_hash(previous, entry.sequence, entry.payload):
            raise LedgerCorrupted(f"entry {entry.sequence} does not match its hash")
        previous = entry


OTHER_SCHEMA = (
    "read what was spent with the version of fl-dp that wrote it, keep the file, and start a new "
    "ledger with a budget (at a node, a dp-max-epsilon) that is lower by that much"
)
"""Remedy for a ledger that this version can't read. Its spending adds up with a new one's."""


def require_schema(written: object, read: int) -> None:
    """Check the schema of a ledger's first entry.

    Raises:
        ValueError: This version reads another.
    """
    if written != read:
        raise ValueError(
            f"the ledger is of schema {written}, this version reads {read}: {OTHER_SCHEMA}"
        )


def require_printable(name: str) -> None:
    """Check a name for an entry.

    Raises:
        ValueError: It is empty or not printable.
    """
    if not name or not name.isprintable():
        raise ValueError(f"a name in the ledger has to be printable, got {name!r}")


def require_day(text: str) -> None:
    """Check a day as `today` writes it.

    Raises:
        ValueError: It is none.
    """
    date.fromisoformat(text)


def now_to_the_minute() -> str:
    """Return the UTC time, for the entry of an opening.

    Entries of releases have none: a gap would show how many took part, or a client that hung.
    """
    return datetime.now(UTC).isoformat(timespec="minutes")


def today() -> str:
    """Return the UTC day."""
    return datetime.now(UTC).date().isoformat()


def _chain_hash(previous: LedgerEntry | None, sequence: int, payload: str) -> str:
    before = previous.hash if previous else GENESIS
    return hashlib.sha256(f"{before}\n{sequence}\n{payload}".encode()).hexdigest()
