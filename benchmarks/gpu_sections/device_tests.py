"""The tests on devices."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from .bench import Bench, Row

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = "tests/app/test_on_devices.py"


class Outcomes:
    """A plugin of pytest that counts tests by outcome, and names the failed ones."""

    def __init__(self) -> None:
        """Start from none."""
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test once: when it was called, or where it ended before that."""
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.outcome == "failed":
            self.failed.append(report.nodeid)


def tests(bench: Bench) -> None:
    """Run the tests on devices."""
    import pytest

    outcomes = Outcomes()
    with contextlib.redirect_stdout(sys.stderr):
        # Other tests' fixtures need packages that these do not.
        arguments = ["--noconftest", "-rs", "-p", "no:cacheprovider", str(REPOSITORY / TESTS)]
        arguments += [f"--rootdir={REPOSITORY}", *bench.sizes.tests]
        status = pytest.main(arguments, plugins=[outcomes])
    row: Row = {"case": TESTS, **outcomes.counts, "exit_status": int(status)}
    bench.write(row | ({"names": outcomes.failed} if outcomes.failed else {}))
