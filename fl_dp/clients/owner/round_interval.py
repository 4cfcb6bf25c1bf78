"""Least time between two rounds at a node: one that comes too early is refused, and costs nothing.

A small file beside the ledger holds the moment of each kind's last message, overwritten by the
next: no ledger holds a time of a round. The message was let in then, before anything was read, so
the moment depends on no record.

While the machine runs, setting the clock changes nothing: times since its start are compared.
After a restart only the wall clock is left. If it has gone back, the wait begins again, once: a
wrong clock locks nobody out for ever.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fl_dp.files import StorageUnavailable, private_file

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PATIENCE = 30.0  # seconds for another process of the same ledger
_TABLE = (
    "CREATE TABLE IF NOT EXISTS rounds (what TEXT PRIMARY KEY, wall REAL, since REAL, boot TEXT)"
)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment by two clocks.

    Attributes:
        wall: Seconds of the wall clock, which may be set.
        since_boot: Seconds since the machine started, which only grow.
        boot: That start's id; empty where the system does not say.
    """

    wall: float
    since_boot: float
    boot: str

    @classmethod
    def now(cls) -> Moment:
        """This moment."""
        try:
            boot = _BOOT.read_text(encoding="ascii").strip()
        except OSError:
            boot = ""
        return cls(wall=time.time(), since_boot=time.monotonic(), boot=boot)

    def after(self, earlier: Moment) -> float:
        """Seconds since an earlier moment; negative if the clocks deny it."""
        if self.boot and self.boot == earlier.boot:
            return self.since_boot - earlier.since_boot
        return self.wall - earlier.wall


class RoundInterval:
    """The moments of the last messages at one ledger's node."""

    def __init__(self, file: Path, *, now: Callable[[], Moment] | None = None) -> None:
        """Name a file in an existing folder; the first message makes it.

        `now` returns the moment; None: by the machine's clocks.
        """
        self._file, self._now = file, now or Moment.now

    @classmethod
    def beside(cls, ledger: str) -> RoundInterval:
        """The interval of a ledger's file."""
        return cls(Path(f"{ledger}.rounds"))

    def wait_left(self, what: str, seconds: float) -> float:
        """Let a message in and note it, or return how many seconds it comes too early.

        Args:
            what: The message's kind and the data's name, which share one time.
            seconds: Least time between two such messages.

        Returns:
            0 if it may be answered; then it is noted on disk, whatever becomes of it.

        Raises:
            StorageUnavailable: The file can't be read or written; then nothing may be answered.
        """
        now = self._now()
        try:
            private_file(self._file)
            with closing(
                sqlite3.connect(self._file, timeout=_PATIENCE, isolation_level=None)
            ) as store:
                store.execute("BEGIN IMMEDIATE")
                store.execute(_TABLE)
                query = "SELECT wall, since, boot FROM rounds WHERE what = ?"
                row = store.execute(query, (what,)).fetchone()
                past = seconds  # for the first message
                if row is not None:
                    wall, since, boot = row
                    past = now.after(Moment(wall=wall, since_boot=since, boot=boot))
                # A clock that went back begins the wait again, and is noted.
                went_back = not past >= 0.0  # what is no number waits, too
                remaining = seconds if went_back else max(seconds - past, 0.0)
                if remaining == 0.0 or went_back:
                    store.execute(
                        "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?)",
                        (what, now.wall, now.since_boot, now.boot),
                    )
                store.execute("COMMIT")
        except sqlite3.Error as error:
            raise StorageUnavailable(
                f"{self._file} can't be read or written ({error}): nothing is answered without it, "
                "as the last round's time is there. Mend that, or move it away"
            ) from error
        return remaining
