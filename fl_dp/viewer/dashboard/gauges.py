"""Budget gauges of ledgers, named by the operator or among the runs; never written."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fl_dp.viewer.found_runs.ledgers import FoundLedger, ledgers_in

from .ledger_gauges import LedgerGauge, gauges_of, read_apart

_FRESH = 30.0  # seconds that the answer of a database is good for
MOST_FOUND = 20
"""Ledgers that are shown without having been named, those that were written last."""


@dataclass(kw_only=True)
class Gauges:
    """Gauges of all ledgers; only a changed ledger's are computed again.

    Attributes:
        locations: Files or URLs of named ledgers, of servers or nodes.
        root: Folder whose ledgers are shown, too; None: no folder.
    """

    locations: Sequence[str]
    root: Path | None = None
    _cache: dict[str, tuple[object, list[LedgerGauge]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> tuple[list[LedgerGauge], int]:
        """Gauges of the named ledgers, then of others; and the number of further ledgers."""
        with self._lock:
            gauges = []
            for location in self.locations:
                gauges += self._of_named(location)
            ledgers = self._unnamed()
            gauges += self._of_unnamed(ledgers[:MOST_FOUND])
            return gauges, len(ledgers[MOST_FOUND:])

    def _of_named(self, location: str) -> list[LedgerGauge]:
        version = _version(location)
        entry = self._cache.get(location)
        if entry is None or entry[0] != version:
            entry = self._cache[location] = (version, gauges_of(location))
        return entry[1]

    def _unnamed(self) -> list[FoundLedger]:
        if self.root is None:
            return []
        files = [location for location in self.locations if "://" not in location]
        named = {Path(file).resolve() for file in files}
        try:
            return [ledger for ledger in ledgers_in(self.root) if ledger.path not in named]
        except OSError:
            return []  # the list of runs says so

    def _of_unnamed(self, ledgers: Sequence[FoundLedger]) -> list[LedgerGauge]:
        versions = {str(ledger.path): _version(str(ledger.path)) for ledger in ledgers}
        # Runs come and go, and this must not grow with them.
        used = {*versions, *self.locations}
        self._cache = {file: entry for file, entry in self._cache.items() if file in used}
        changed = []
        for file, version in versions.items():
            if file not in self._cache or self._cache[file][0] != version:
                changed.append(file)
        for file, gauges in read_apart(changed).items():
            self._cache[file] = (versions[file], gauges)
        shown = []
        for ledger in ledgers:
            for gauge in self._cache[str(ledger.path)][1]:
                # Below the folder of runs, not where that lies on this machine.
                problem = gauge.problem.replace(str(ledger.path), ledger.name)
                shown.append(replace(gauge, ledger=ledger.name, problem=problem))
        return shown


def _version(location: str) -> object:
    """A value that changes when a ledger may have changed."""
    if "://" in location:
        return time.monotonic() // _FRESH
    statuses = []
    for file in (location, f"{location}-wal"):
        try:
            status = Path(file).stat()
        except OSError:
            statuses.append((0, 0))
        else:
            statuses.append((status.st_mtime_ns, status.st_size))
    return tuple(statuses)
