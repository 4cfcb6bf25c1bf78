"""Budget gauges: ledgers that the operator names or that lie among the runs; never written."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fl_dp.viewer.found_runs.ledgers import FoundLedger, ledgers_in

from .ledger_gauges import LedgerGauge, gauges_of, read_apart

_KEPT = 30.0  # seconds that the answer of a database is good for
MOST_FOUND = 20
"""Ledgers that are shown without having been named, those that were written last."""


@dataclass(kw_only=True)
class Gauges:
    """Gauges of all ledgers; only those of a changed ledger are computed again.

    Attributes:
        locations: Files or URLs of ledgers, or a node's.
        root: Folder whose ledgers are shown besides; None: none are.
    """

    locations: Sequence[str]
    root: Path | None = None
    _kept: dict[str, tuple[object, list[LedgerGauge]]] = field(default_factory=dict)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> tuple[list[LedgerGauge], int]:
        """Return the gauges of ledgers that were named, then of those that were found.

        Returns:
            The gauges, and how many ledgers more were found.
        """
        with self._one_at_a_time:
            named = [gauge for location in self.locations for gauge in self._of(location)]
            found = self._found()
            return [*named, *self._of_found(found[:MOST_FOUND])], len(found[MOST_FOUND:])

    def _of(self, location: str) -> list[LedgerGauge]:
        seen = _seen(location)
        kept = self._kept.get(location)
        if kept is None or kept[0] != seen:
            kept = self._kept[location] = (seen, gauges_of(location))
        return kept[1]

    def _found(self) -> list[FoundLedger]:
        if self.root is None:
            return []
        named = {Path(each).resolve() for each in self.locations if "://" not in each}
        try:
            return [found for found in ledgers_in(self.root) if found.path not in named]
        except OSError:
            return []  # the list of runs says so

    def _of_found(self, found: Sequence[FoundLedger]) -> list[LedgerGauge]:
        seen = {str(each.path): _seen(str(each.path)) for each in found}
        changed = [
            file for file in seen if file not in self._kept or self._kept[file][0] != seen[file]
        ]
        # Runs come and go, and this must not grow with them.
        known = {*seen, *self.locations}
        self._kept = {file: kept for file, kept in self._kept.items() if file in known}
        for file, gauges in read_apart(changed).items():
            self._kept[file] = (seen[file], gauges)
        return [
            # Below the folder of runs, not where that lies on this machine.
            replace(
                gauge, ledger=each.name, problem=gauge.problem.replace(str(each.path), each.name)
            )
            for each in found
            for gauge in self._kept[str(each.path)][1]
        ]


def _seen(location: str) -> object:
    """Return what changes whenever a ledger may have."""
    if "://" in location:
        return time.monotonic() // _KEPT
    found = []
    for file in (location, f"{location}-wal"):
        try:
            status = Path(file).stat()
        except OSError:
            found.append((0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_size))
    return tuple(found)
