"""What tests of strategies share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result
from local_grid import LocalGrid

from fl_dp import Plan, PrivacyLedger
from fl_dp.strategies import DPFedAvg


@pytest.fixture
def open_ledger(tmp_path: Path) -> Iterator[Callable[[Plan], PrivacyLedger]]:
    """Open a ledger of its own for each plan, and close them all in the end."""
    opened: list[PrivacyLedger] = []

    def make(plan: Plan) -> PrivacyLedger:
        opened.append(PrivacyLedger.open(tmp_path / f"ledger{len(opened)}.db", plan))
        return opened[-1]

    yield make
    for ledger in opened:
        ledger.close()


@dataclass(frozen=True)
class Started:
    """A training that has ended; its ledger is still open."""

    strategy: DPFedAvg
    ledger: PrivacyLedger
    result: Result


@pytest.fixture
def start(open_ledger: Callable[[Plan], PrivacyLedger]) -> Callable[..., Started]:
    """Train the plan's rounds, or as many as are given, under a ledger of its own, or a given one.

    What else is given goes to the strategy, and what Flower's `start` takes to that.
    """

    def run(
        plan: Plan,
        grid: LocalGrid,
        arrays: ArrayRecord,
        inner: Any = None,
        *,
        ledger: PrivacyLedger | None = None,
        rounds: int | None = None,
        timeout: float = 60.0,
        train_config: Any = None,
        evaluate_fn: Any = None,
        **options: Any,
    ) -> Started:
        ledger = open_ledger(plan) if ledger is None else ledger
        strategy = DPFedAvg(inner, plan=plan, ledger=ledger, **options)
        result = strategy.start(
            grid,
            arrays,
            num_rounds=rounds or plan.rounds,
            timeout=timeout,
            train_config=train_config,
            evaluate_fn=evaluate_fn,
        )
        return Started(strategy, ledger, result)

    return run
