"""The lines of a ledger and the chain that holds them together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

SCHEMA = 5
GENESIS = "0" * 64


class LedgerCorrupted(RuntimeError):
    """A record was altered, removed or reordered after it was written."""


class LedgerUnavailable(OSError):
    """The disk or the database did not do what was asked of it; the records are as they were.

    Nothing was released: a release happens after its charge is on disk.
    """


@dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """One line: what it says, and the hash over it and the line before.

    Attributes:
        sequence: 1, 2, 3, ... without gaps.
        payload: The canonical JSON text that was hashed.
        hash: SHA-256 over the previous record's hash, the sequence number and the payload.
    """

    sequence: int
    payload: str
    hash: str

    @property
    def fields(self) -> dict[str, Any]:
        """The record's fields."""
        fields: dict[str, Any] = json.loads(self.payload)
        return fields

    @property
    def kind(self) -> str:
        """`plan`, `run`, `reserve` or `commit`."""
        return str(self.fields["kind"])


def next_record(previous: LedgerRecord | None, fields: dict[str, Any]) -> LedgerRecord:
    """Return the record that says `fields` and follows `previous`."""
    sequence = previous.sequence + 1 if previous else 1
    # One text for one meaning: what is hashed can be written anew from the fields.
    payload = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return LedgerRecord(
        sequence=sequence, payload=payload, hash=_chain_hash(previous, sequence, payload)
    )


def verify_chain(records: Iterable[LedgerRecord], previous: LedgerRecord | None = None) -> None:
    """Check that `records` follow `previous` and one another unaltered.

    Raises:
        LedgerCorrupted: With the first record that does not fit.
    """
    for record in records:
        expected = previous.sequence + 1 if previous else 1
        if record.sequence != expected:
            raise LedgerCorrupted(
                f"record {expected} is missing: the next one is {record.sequence}"
            )
        if record.hash != _chain_hash(previous, record.sequence, record.payload):
            raise LedgerCorrupted(f"record {record.sequence} does not match its hash")
        previous = record


def require_schema(written: object, read: int) -> None:
    """Check the schema of a ledger's first record.

    Raises:
        ValueError: If it is not the one that this version reads.
    """
    if written != read:
        raise ValueError(
            f"the ledger is of schema {written}, this version reads {read}: use the version of "
            "fl-dp that wrote it, or start a new ledger, whose spending adds up with this one's"
        )


def require_printable(name: str) -> None:
    """Check a name that records are to carry.

    Raises:
        ValueError: If it is empty or can't be printed.
    """
    if not name or not name.isprintable():
        raise ValueError(f"a name in the ledger has to be printable, got {name!r}")


def now_to_the_minute() -> str:
    """Return the time at which a ledger is opened.

    Records of releases have none: a gap between two shows how many took part, or a client that
    hung.
    """
    return datetime.now(UTC).isoformat(timespec="minutes")


def today() -> str:
    """Return the day, in UTC."""
    return datetime.now(UTC).date().isoformat()


def _chain_hash(previous: LedgerRecord | None, sequence: int, payload: str) -> str:
    link = f"{previous.hash if previous else GENESIS}\n{sequence}\n{payload}"
    return hashlib.sha256(link.encode()).hexdigest()
