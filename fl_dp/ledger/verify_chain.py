"""Verify the hash chain of a ledger, without fl-dp: for auditors who trust only what they read.

    python verify_chain.py ledger.db /mnt/second-disk/site-a.heads privacy.json

The first file is a ledger of a training or of a node, or what `fl-dp ledger LEDGER --json` wrote.
Each file behind it knows how far the ledger had come: its witness, or a privacy statement. One line
says the verdict, and the exit status is 0 only if all of it holds. This file needs Python's
standard library alone, and can be copied to wherever the auditor works.

Each entry's hash is SHA-256 over the hash before it (64 zeros before the first), its number and its
text, with a line break between. So an entry that was changed, removed, inserted or moved shows. Two
things can't show in a chain alone: an end that was cut off, and a chain that was written anew as a
whole. Both show against a witness or a statement that was kept elsewhere. Whether the entries make
sense, and what epsilon they spend, is not looked at here: `fl-dp ledger` does that.
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
"""Number and hash of the last entry that somebody once saw."""

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


class NotVerified(Exception):
    """The chain is broken, or does not reach what another file knows of it."""


def read_rows(ledger: Path) -> list[Row]:
    """Return the entries of an SQLite file or of an export as JSON, unverified.

    Raises:
        OSError: If it can't be read.
        NotVerified: If it is neither.
    """
    with ledger.open("rb") as file:
        is_database = file.read(16) == b"SQLite format 3\0"
    try:
        return _rows_of_database(ledger) if is_database else _rows_of_export(ledger)
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
        NotVerified: With the first entry that does not fit, or if there is none.
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
    """Return what a witness or a privacy statement knows of its ledger.

    Raises:
        OSError: If it can't be read.
        NotVerified: If it knows nothing, or is neither.
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
    """Check that a chain has come as far as each head, on the same way.

    Raises:
        NotVerified: If its end was cut off, or an entry is another one.
    """
    for entries, known in heads:
        if entries not in range(1, len(hashes) + 1):
            raise NotVerified(f"it has {len(hashes)} entries and {file} knows of {entries}")
        if hashes[entries - 1] != known:
            raise NotVerified(f"entry {entries} is not the one that {file} knows of")


def verdict(ledger: Path, known_by: list[Path]) -> str:
    """Return the line that says what was verified.

    Raises:
        OSError: If a file can't be read.
        NotVerified: If anything does not hold.
    """
    hashes = verified_hashes(read_rows(ledger))
    for file in known_by:
        require_heads(hashes, read_heads(file), file)
    against = ", ".join(map(str, known_by)) or "nothing, so a new or shorter chain would not show"
    return f"{len(hashes)} entries, the last is {hashes[-1]}; compared with {against}"


def main(arguments: list[str]) -> int:
    """Print the verdict on the files that are named; return 0 if all of it holds."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: verify_chain.py LEDGER [WITNESS_OR_STATEMENT ...]", file=sys.stderr)
        return 2
    ledger, *known_by = map(Path, arguments)
    try:
        print(f"VERIFIED {ledger}: {verdict(ledger, known_by)}")
    except (OSError, NotVerified) as error:
        print(f"NOT VERIFIED {ledger}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
