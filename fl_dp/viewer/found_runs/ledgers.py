"""Ledgers below a folder; no link is followed to one, or beside one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .untrusted import folders_below

LEDGER = "ledger.db"
_BESIDE = ("-wal", "-shm", "-journal")  # what the database opens together with its file
_LARGEST = 1 << 26


@dataclass(frozen=True, kw_only=True)
class FoundLedger:
    """A file that is named like a ledger; nothing of it was read.

    Attributes:
        name: Path below the folder, with slashes.
        changed: When it was last written, seconds since 1970.
    """

    name: str
    path: Path
    changed: float


def ledgers_in(root: Path) -> list[FoundLedger]:
    """The ledgers below a folder, the last written first; the folder itself may be a link.

    Folders below a run are not searched: a simulation keeps its nodes' ledgers there.

    Raises:
        OSError: If the folder itself can't be read.
    """
    root = root.resolve()
    return sorted(_ledgers(root), key=lambda ledger: (-ledger.changed, ledger.name))


def _ledgers(root: Path) -> Iterator[FoundLedger]:
    names = [LEDGER, *(LEDGER + end for end in _BESIDE)]
    for within, entries in folders_below(root, []):
        files = {entry.name: entry for entry in entries if entry.name in names}
        if LEDGER in files and all(map(_is_plain, files.values())):
            name = f"{within}/{LEDGER}" if within else LEDGER
            changed = files[LEDGER].stat(follow_symlinks=False).st_mtime
            yield FoundLedger(name=name, path=root / name, changed=changed)


def _is_plain(entry: os.DirEntry[str]) -> bool:
    status = entry.stat(follow_symlinks=False)
    return stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST
