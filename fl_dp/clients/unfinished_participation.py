"""The mark of a participation that did not end."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fl_dp.files import write_text
from fl_dp.ledger.node import Account, Use

_MARK_TEXT = (
    "A participation in this run began and did not end, or failed. The node contributes nothing "
    "more to the run, as one record may be the cause. Remove this file if you know that none was.\n"
)


def name_of_data(source: str) -> str:
    """Part of a file's name that stands for a node's data."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


class RunIsOver(Exception):
    """An earlier participation in this run did not end: one record may be the cause."""


@dataclass(eq=False)
class UnfinishedParticipation:
    """A mark that one account's participation in one Flower run began and has not ended.

    A record whose reading ends the process, or fails all of the training, decides about all others.
    That can't be undone, but happens once: the mark is written beside the node's ledger before a
    record is read. While it exists the node contributes nothing more to that run.

    Attributes:
        file: The mark.
    """

    file: Path

    @classmethod
    def beside(cls, ledger: str | Path, account: Account, use: Use) -> UnfinishedParticipation:
        """The mark beside a ledger's file."""
        return cls(Path(f"{ledger}.unfinished-run-{use.run}-{name_of_data(account.source)}"))

    def require_absent(self) -> None:
        """Check that the mark does not exist.

        Raises:
            RunIsOver: It does: an earlier participation in the run did not end.
        """
        if self.file.exists():
            raise RunIsOver(
                f"an earlier participation in this run failed or did not end ({self.file})"
            )

    def put(self) -> None:
        """Write the mark; it is on disk when this returns.

        Raises:
            OSError: It can't be written.
        """
        write_text(self.file, _MARK_TEXT)

    def remove(self) -> None:
        """Remove the mark: the participation has ended."""
        with suppress(FileNotFoundError):
            self.file.unlink()
