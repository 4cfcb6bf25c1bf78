"""What tests of strategies share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fl_dp import PrivacyLedger, PrivacyPlan


@pytest.fixture
def open_ledger(tmp_path: Path) -> Iterator[Callable[[PrivacyPlan], PrivacyLedger]]:
    """Open a ledger of its own for each plan, and close them all in the end."""
    opened: list[PrivacyLedger] = []

    def make(plan: PrivacyPlan) -> PrivacyLedger:
        opened.append(PrivacyLedger.open(tmp_path / f"ledger{len(opened)}.db", plan))
        return opened[-1]

    yield make
    for ledger in opened:
        ledger.close()
