"""What a node has to remember between messages, and across restarts: keys, directories, marks.

Marks and run keys live in one place, so that they are lost together: a node without marks has a new
key, and old messages are useless to it. Never restore a store from a backup.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol


class Mark(NamedTuple):
    """A record that a node did its part in a sum.

    Attributes:
        terms: Hash of the terms, 32 bytes.
        view: Hash of who replied, 32 bytes; empty for a client.
    """

    terms: bytes
    view: bytes


class NodeStore(Protocol):
    """Storage of one node. What `put` and `mark` took is on disk when they return."""

    def get(self, run: int | None, key: str) -> bytes | None:
        """Return what was put under a key of a run, None if nothing; run None: outlives runs."""
        ...

    def put(self, run: int | None, key: str, value: bytes) -> None:
        """Keep a value under a key."""
        ...

    def mark(self, run: int, role: str, number: int, mark: Mark) -> None:
        """Keep a mark, in one step with the check that no mark of the role has such a number.

        Raises:
            Refused: `stale`, if the number is not above all of this role in the run.
        """
        ...

    def marked(self, run: int, role: str, number: int) -> Mark | None:
        """Return the mark of a role for a number, if there is one."""
        ...

    def last(self, run: int, role: str) -> int:
        """Return the highest marked number of a role, 0 if there is none."""
        ...

    def forget(self, run: int) -> None:
        """Delete everything of a run."""
        ...

    def expire(self, days: float) -> None:
        """Delete everything of runs whose first value was put more than `days` ago."""
        ...


class MemoryStore:
    """A store that is lost with the process: for tests and simulations."""

    def __init__(self) -> None:
        """Start empty."""
        raise NotImplementedError


class SQLiteStore:
    """A store in one file that only its owner reads."""

    def __init__(self, file: Path) -> None:
        """Open, or create (mode 0600).

        Args:
            file: In a folder that exists.

        Raises:
            OSError: If it can't be made.
            ValueError: If it is no such store.
        """
        raise NotImplementedError
