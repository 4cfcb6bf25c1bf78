"""`start(should_stop=...)`, as Flower has it from 1.43 on: a round may be the last one."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result, Strategy
from local_grid import LocalGrid, answer_with_update
from trainings import budgeted, plan_of, record

from fl_dp import PrivacyLedger
from fl_dp.accounting import PoissonSampling
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.strategies import (
    BufferedSelection,
    Checkpoint,
    DPFedAvg,
    DPFedBuff,
    LawSelection,
    UnprotectedFedAvg,
)

N, ROUNDS = 4, 5
INITIAL = record(w=np.zeros(2))


def grid() -> LocalGrid:
    return LocalGrid(answer_with_update([{"w": np.ones(2)}] * N), N)


def loss_of(server_round: int, arrays: object) -> MetricRecord:
    return MetricRecord({"loss": 1.0 / (1 + server_round)})


def test_training_ends_with_the_round_that_says_so_and_keeps_what_is_left(tmp_path: Path) -> None:
    seen: list[tuple[int, list[int]]] = []
    kept: list[Checkpoint] = []

    def enough(server_round: int, result: Result) -> bool:
        evaluated = result.evaluate_metrics_serverapp
        seen.append((server_round, sorted(evaluated)))
        return float(str(evaluated[server_round]["loss"])) < 0.4

    strategy = budgeted(tmp_path, rounds=ROUNDS, after_round=kept.append)
    nodes = grid()
    result = strategy.start(
        nodes, INITIAL, num_rounds=ROUNDS, evaluate_fn=loss_of, should_stop=enough
    )
    assert seen == [(1, [0, 1]), (2, [0, 1, 2])]
    assert strategy.rounds_completed == 2
    assert not strategy.budget_exhausted
    assert len(nodes.sent) == 2 * N
    np.testing.assert_array_equal(result.arrays["w"].numpy(), kept[-1].model["w"].numpy())
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert (ledger.rounds_spent, ledger.rounds_committed) == (2, 2)

    again = budgeted(tmp_path, rounds=ROUNDS)
    again.resume(kept[-1])
    again.start(grid(), INITIAL, num_rounds=ROUNDS)
    assert again.rounds_completed == ROUNDS - 2


def test_buffered_rounds_stop_too(tmp_path: Path) -> None:
    buffer = BufferedSelection(BufferedSampling(cohort=N, participation_cap=ROUNDS), concurrency=N)
    plan = plan_of(N, rounds=ROUNDS, sampling=buffer.sampling)
    with PrivacyLedger.open(tmp_path / "ledger.db", plan) as ledger:
        strategy = DPFedBuff(plan=plan, ledger=ledger)
        strategy.start(grid(), INITIAL, num_rounds=ROUNDS, should_stop=lambda *_: True)
        assert ledger.rounds_spent == 1


def test_rounds_without_privacy_stop_too() -> None:
    strategy = UnprotectedFedAvg(selection=LawSelection(PoissonSampling(sampling_rate=1.0)))
    strategy.start(grid(), INITIAL, num_rounds=ROUNDS, should_stop=lambda *_: True)
    assert strategy.rounds_completed == 1


@pytest.mark.parametrize("kind", [DPFedAvg, UnprotectedFedAvg])
def test_start_takes_all_that_the_installed_flower_s_does(kind: type[Strategy]) -> None:
    flowers = inspect.signature(Strategy.start).parameters
    ours = list(inspect.signature(kind.start).parameters.values())[: len(flowers)]
    defaults = {each.name: each.default for each in ours}
    assert defaults.pop("num_rounds") is None  # the plan's rounds
    assert [(each.name, each.kind) for each in ours] == [
        (each.name, each.kind) for each in flowers.values()
    ]
    assert defaults == {name: flowers[name].default for name in defaults}
