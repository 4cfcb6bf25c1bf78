r"""A copy of a ledger for the day its disk dies, verified before it counts as one.

    python deploy/backup.py /var/lib/fl-dp-north/ledger.db --to /mnt/backup/fl-dp-north \
      --witness /mnt/witness/fl-dp-north/ledger.heads

A copy does not know what is spent after it was made. So it must never be charged, and the witness
sees to that: a node that finds an older copy in its ledger's place answers nothing. Never copy the
witness, and never put it back. The same holds for `secagg.db` beside a ledger: a node that forgot
which sums it took part in could mask two numbers alike.
"""

from __future__ import annotations

import argparse
import os
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from fl_dp.commands.shown_ledger import show_ledger
from fl_dp.files import private_folder, written_whole
from fl_dp.ledger import LedgerCorrupted

_KEPT = 14
_ATTEMPTS = 3


def back_up(ledger: Path, folder: Path, *, witness: str | None, keep: int = _KEPT) -> Path:
    """Copy a ledger that may be in use, and verify the copy.

    Args:
        ledger: An SQLite ledger, of a node or of a training.
        folder: Where copies go, a file a day; on another disk.
        witness: File or database that knows how far the ledger has come; None: there is none.
        keep: Number of copies that stay; the oldest go.

    Returns:
        The copy.

    Raises:
        FileNotFoundError: If there is no ledger.
        LedgerCorrupted: If the ledger was altered, or is older than its witness says. Then no copy
            is made, and older copies stay.
    """
    if not ledger.is_file():
        raise FileNotFoundError(f"no ledger at {ledger}")
    private_folder(folder)
    copy = folder / f"{ledger.stem}-{datetime.now(UTC):%Y-%m-%d}{ledger.suffix}"
    with written_whole(copy) as temporary:
        for left in reversed(range(_ATTEMPTS)):
            with (
                closing(_read_only(ledger)) as original,
                closing(sqlite3.connect(temporary)) as target,
            ):
                original.backup(target)  # a whole state of it, also while it is written
            try:
                show_ledger(os.fspath(temporary), csv=None, check=None, witness=witness)
                break
            except LedgerCorrupted:
                # A witness that is ahead may have been told of a charge since the copy was made.
                if not left:
                    raise
    for old in _copies(ledger, folder)[:-keep]:
        old.unlink()
    return copy


def _read_only(ledger: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{ledger.resolve().as_uri()}?mode=ro", uri=True)


def _copies(ledger: Path, folder: Path) -> list[Path]:
    """A ledger's copies, the oldest first; no other file that only begins alike."""
    name = re.compile(rf"{re.escape(ledger.stem)}-\d{{4}}-\d\d-\d\d{re.escape(ledger.suffix)}")
    return sorted(each for each in folder.iterdir() if name.fullmatch(each.name))


def main(arguments: Sequence[str] | None = None) -> None:
    """Copy the ledger that the command line names."""
    parser = argparse.ArgumentParser(description="A verified copy of a ledger")
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--to", type=Path, required=True, help="folder of copies, on another disk")
    parser.add_argument("--witness", help="the ledger's witness: an older ledger is not copied")
    parser.add_argument("--keep", type=int, default=_KEPT, help=f"copies (default: {_KEPT})")
    asked = parser.parse_args(arguments)
    try:
        if asked.keep < 1:
            raise ValueError(f"--keep must be at least 1, got {asked.keep}")
        print(back_up(asked.ledger, asked.to, witness=asked.witness, keep=asked.keep))
    except (OSError, ValueError, LedgerCorrupted, sqlite3.Error) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
