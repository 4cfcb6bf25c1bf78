"""Verify a ledger's hash chain without fl-dp, for auditors who trust only what they read.

    python verify_chain.py ledger.db /mnt/second-disk/site-a.heads privacy.json

The first file is a training's or a node's ledger, or the output of `fl-dp ledger LEDGER --json`.
Each further file, a witness or privacy statement, records how far the ledger had come. One line
gives the verdict; the exit status is 0 only if all of it holds. This file needs only Python's
standard library, and can be copied to wherever the auditor works.

Each entry's hash is SHA-256 over the previous hash (64 zeros before the first), its number and its
text, with a line break between. So a changed, removed, inserted or moved entry shows. A chain
alone can't show that its end was cut off, or that all of it was rewritten. A witness or statement
stored elsewhere shows both. Whether entries make sense, and what epsilon they spend, only
`fl-dp ledger` checks.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

Row = tuple[int, str, str]
"""Number, text and hash of an entry."""
Head = tuple[int, str]
"""Number and hash of a last entry that a witness or statement recorded."""

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


class NotVerified(Exception):
    """The chain is broken, or does not match a witness or statement."""


def read_rows(ledger: Path) -> list[Row]:
    """Return the entries of an SQLite file or a JSON export, unverified.

    Raises:
        OSError: The file can't be read.
        NotVerified: It is neither.
    """
    with ledger.open("rb") as file:
        is_database = file.read(16) == b"SQLite format 3\0"
    read = _rows_of_database if is_database else _rows_of_export
    try:
        return read(ledger)
    except (*_MALFORMED, sqlite3.Error) as error:
        raise NotVerified(f"it can't be read as a ledger: {error!r}") from error


def _rows_of_database(ledger: Path) -> list[Row]:
    # "rw" lets SQLite undo what a killed writer had half done; nothing else is written.
    address = f"{ledger.resolve().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        connection.execute("PRAGMA query_only = ON")
        query = "SELECT sequence, payload, hash FROM entries ORDER BY sequence"
        return connection.execute(query).fetchall()


def _rows_of_export(ledger: Path) -> list[Row]:
    rows = []
    for fields in json.loads(ledger.read_text(encoding="utf-8"))["entries"]:
        sequence, written = fields.pop("sequence"), fields.pop("hash")
        # The one text that fl-dp hashes: sorted keys, no spaces, ASCII.
        payload = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        rows.append((sequence, payload, written))
    return rows


def verified_hashes(rows: Iterable[Row]) -> list[str]:
    """Recompute the chain and return the hash of each entry.

    Raises:
        NotVerified: No entry, or one that does not fit; the text names the first.
    """
    hashes = ["0" * 64]
    for sequence, payload, written in rows:
        if sequence != len(hashes):
            raise NotVerified(f"entry {len(hashes)} is missing: the next one is {sequence}")
        link = f"{hashes[-1]}\n{sequence}\n{payload}"
        if hashlib.sha256(link.encode()).hexdigest() != written:
            raise NotVerified(f"entry {sequence} does not match its hash")
        hashes.append(written)
    if len(hashes) == 1:
        raise NotVerified("it holds no entry")
    return hashes[1:]


def read_heads(file: Path) -> list[Head]:
    """Return the heads in a witness or a privacy statement.

    Raises:
        OSError: The file can't be read.
        NotVerified: It has none, or is neither.
    """
    text = file.read_text(encoding="utf-8")
    try:
        if '"ledger_hash"' in text:
            statement = json.loads(text)
            return [(statement["ledger_entries"], statement["ledger_hash"])]
        # A line that a power cut tore has no end.
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        heads = [(line["entries"], line["hash"]) for line in lines]
    except _MALFORMED as error:
        raise NotVerified(f"{file} is neither a witness nor a statement: {error!r}") from error
    if not heads:
        raise NotVerified(f"{file} knows nothing of this ledger")
    return heads


def require_heads(hashes: list[str], heads: list[Head], file: Path) -> None:
    """Check that a chain holds each head.

    Raises:
        NotVerified: Its end was cut off, or an entry differs.
    """
    for entries, hash in heads:
        if entries not in range(1, len(hashes) + 1):
            raise NotVerified(f"it has {len(hashes)} entries and {file} knows of {entries}")
        if hashes[entries - 1] != hash:
            raise NotVerified(f"entry {entries} is not the one that {file} knows of")


def verdict(ledger: Path, records: list[Path]) -> str:
    """Return one line on what was verified; `records` are witnesses and privacy statements.

    Raises:
        OSError: A file can't be read.
        NotVerified: Something does not hold.
    """
    hashes = verified_hashes(read_rows(ledger))
    for file in records:
        require_heads(hashes, read_heads(file), file)
    against = ", ".join(map(str, records)) or "nothing, so a new or shorter chain would not show"
    return f"{len(hashes)} entries, the last is {hashes[-1]}; compared with {against}"


def main(arguments: list[str]) -> int:
    """Print the verdict on the named files; return 0 if all holds."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: verify_chain.py LEDGER [WITNESS_OR_STATEMENT ...]", file=sys.stderr)
        return 2
    ledger, *records = map(Path, arguments)
    try:
        print(f"VERIFIED {ledger}: {verdict(ledger, records)}")
    except (OSError, NotVerified) as error:
        print(f"NOT VERIFIED {ledger}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
