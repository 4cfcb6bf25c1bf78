"""Anchors: how far a ledger had come, kept where who cuts its end off does not look.

Entries that are cut off the end of a hash chain leave a shorter chain that is as good as the long
one. They show against the hash of an entry that is gone, which privacy statements and checkpoints
carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fl_dp.files import read_json_object

STATEMENT_NAME = "privacy.json"
"""The name of a privacy statement beside its ledger."""

_LEDGER, _ENTRIES, _HASH = "ledger", "ledger_entries", "ledger_hash"
# All that a ledger knows of a statement: where an anchor stands in it.


@dataclass(frozen=True, kw_only=True)
class LedgerAnchor:
    """A point that a ledger has reached: whatever it holds later, it holds this.

    Attributes:
        entries: How many entries there were, at least 1.
        hash: The last one's hash.
    """

    entries: int
    hash: str

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If it is no anchor.
        """
        whole = isinstance(self.entries, int) and not isinstance(self.entries, bool)
        if not (whole and self.entries >= 1 and isinstance(self.hash, str)):
            raise ValueError(f"{self.entries!r} entries, the last {self.hash!r}, are no anchor")

    @classmethod
    def stated_in(cls, statement: Mapping[str, Any]) -> Self | None:
        """Return the anchor in a privacy statement; None if it was not computed from a ledger.

        Raises:
            ValueError: If it has half an anchor, as those of older versions.
        """
        if _HASH not in statement:
            return None
        if _ENTRIES not in statement:
            raise ValueError(
                "the privacy statement does not say how many entries its ledger had: it was edited "
                "or is of an older version of fl-dp, which has to check it"
            )
        return cls(entries=statement[_ENTRIES], hash=statement[_HASH])

    def as_stated(self, ledger: str) -> dict[str, Any]:
        """Return the keys that a privacy statement carries so that its ledger finds the anchor.

        Args:
            ledger: The ledger's name, as several can lie in one folder.
        """
        return {_LEDGER: ledger, _ENTRIES: self.entries, _HASH: self.hash}


def anchor_beside(ledger: Path) -> LedgerAnchor | None:
    """Return the anchor of the privacy statement beside a ledger's file, None if there is none.

    Raises:
        OSError: If the statement can't be read.
        ValueError: If it is no statement.
    """
    file = ledger.with_name(STATEMENT_NAME)
    if not file.is_file():
        return None
    statement = read_json_object(file, "privacy statement")
    # Several ledgers can lie in one folder; a statement says which is its own.
    return LedgerAnchor.stated_in(statement) if statement.get(_LEDGER) == ledger.name else None
