"""Anchors: how far a ledger had come, stored elsewhere, against a cut of its end.

A hash chain whose end was cut off still verifies. A missing entry's hash shows the cut; privacy
statements and checkpoints carry one.
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
# The keys of an anchor in a statement: all that a ledger knows of statements.


@dataclass(frozen=True, kw_only=True)
class LedgerAnchor:
    """A point that a ledger has reached and must hold forever.

    Attributes:
        entries: Number of entries, at least 1.
        hash: Hash of the last.
    """

    entries: int
    hash: str

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A field is out of range.
        """
        whole = isinstance(self.entries, int) and not isinstance(self.entries, bool)
        if not (whole and self.entries >= 1 and isinstance(self.hash, str)):
            raise ValueError(f"{self.entries!r} entries, the last {self.hash!r}, are no anchor")

    @classmethod
    def from_statement(cls, statement: Mapping[str, Any]) -> Self | None:
        """Return a privacy statement's anchor; None if it was computed from no ledger.

        Raises:
            ValueError: It has half an anchor, as in older versions.
        """
        if _HASH not in statement:
            return None
        if _ENTRIES not in statement:
            raise ValueError(
                "the privacy statement does not say how many entries its ledger had: it was edited "
                "or is of an older version of fl-dp, which has to check it"
            )
        return cls(entries=statement[_ENTRIES], hash=statement[_HASH])

    def to_statement(self, ledger: str) -> dict[str, Any]:
        """Return a privacy statement's fields for the anchor and its ledger's name."""
        return {_LEDGER: ledger, _ENTRIES: self.entries, _HASH: self.hash}


def anchor_beside(ledger: Path) -> LedgerAnchor | None:
    """Return the anchor in a ledger's own privacy statement, beside its file; None without one.

    Raises:
        OSError: The statement can't be read.
        ValueError: It is no statement.
    """
    file = ledger.with_name(STATEMENT_NAME)
    if not file.is_file():
        return None
    statement = read_json_object(file, "privacy statement")
    # Several ledgers can lie in one folder; a statement names its own.
    if statement.get(_LEDGER) != ledger.name:
        return None
    return LedgerAnchor.from_statement(statement)
