"""A mark that a participation began and has not ended: what ends a process shows once a run.

A record whose reading ends the process, or fails all of the training, decides about all others.
Nothing can undo that, but it happens once: the mark lies beside the node's ledger before a record
is read, and while it is there the node contributes nothing more to that run.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from fl_dp.files import write_text
from fl_dp.ledger import Account, Use

_WORDS = (
    "A participation in this run began and did not end, or failed. The node contributes nothing "
    "more to the run, as one record may be the cause. Remove this file if you know that none was.\n"
)


class UnfinishedParticipation:
    """The mark of one account in one Flower run."""

    def __init__(self, file: Path) -> None:
        """Name the mark's file."""
        self.file = file

    @classmethod
    def beside(cls, ledger: str | Path, account: Account, use: Use) -> UnfinishedParticipation:
        """Return the mark that lies beside a ledger's file."""
        name = hashlib.sha256(account.source.encode()).hexdigest()[:16]
        return cls(Path(f"{ledger}.unfinished-run-{use.run}-{name}"))

    @property
    def is_there(self) -> bool:
        """Whether an earlier participation in the run did not end."""
        return self.file.exists()

    def put(self) -> None:
        """Write the mark; it is on disk when this returns.

        Raises:
            OSError: If it can't be written.
        """
        write_text(self.file, _WORDS)

    def remove(self) -> None:
        """Take the mark away: the participation has ended."""
        with suppress(FileNotFoundError):
            self.file.unlink()
