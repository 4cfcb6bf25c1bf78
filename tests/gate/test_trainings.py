"""Whole trainings over gates, by a server of fl-dp and by one that knows nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.node_answers import RehearsalFailed
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg
from gated_site import Gates, replying
from local_grid import LocalGrid

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.ledger import NodeLedger
from fl_dp.mechanisms import FixedClipping
from fl_dp.plan import LocalPlan
from fl_dp.strategies import DPFedAvg

NODES, ROUNDS = 3, 2
SIZE = 5_000


def trained(strategy: Any, gates: Gates) -> Any:
    grid = LocalGrid(gates, NODES)
    initial = ArrayRecord({"w": Array(np.zeros(SIZE))})
    return strategy.start(grid, initial, num_rounds=ROUNDS)


def test_a_server_that_knows_nothing_of_it_is_refused_nothing(tmp_path: Path) -> None:
    gates = Gates(tmp_path, NODES)
    fedavg = FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES)
    result = trained(fedavg, gates)
    values = result.arrays["w"].numpy()
    # Noise of deviation 2 at each of three sites, in two rounds; six standard deviations.
    deviation = 2.0 * np.sqrt(ROUNDS / NODES)
    assert values.std() == pytest.approx(deviation, rel=6 / np.sqrt(2 * SIZE))
    for here in gates.sites:
        assert len(here.seen) == ROUNDS
        with NodeLedger.read(here.ledger) as ledger:
            [spending] = ledger.spendings
        assert spending.charges == ROUNDS


def plan() -> LocalPlan:
    return LocalPlan(
        budget=PrivacyBudget(epsilon=2.0, delta=1e-5),
        rounds=ROUNDS,
        num_clients=NODES,
        clipping=FixedClipping(norm=0.5),
    ).calibrated()


def test_a_training_with_noise_at_the_clients_needs_nothing_of_the_app(tmp_path: Path) -> None:
    gates = Gates(tmp_path, NODES)
    assert plan().noise_multiplier > 2.0
    with PrivacyLedger.open(tmp_path / "server.db", plan()) as ledger:
        strategy = DPFedAvg(plan=plan(), ledger=ledger)
        result = trained(strategy, gates)
    values = result.arrays["w"].numpy()
    deviation = 0.5 * plan().noise_multiplier * np.sqrt(ROUNDS / NODES)
    assert values.std() == pytest.approx(deviation, rel=6 / np.sqrt(2 * SIZE))
    for here in gates.sites:
        assert here.charges() == ROUNDS
        assert all(set(message.content["config"]) == {"server-round"} for message in here.seen)


def test_a_training_with_less_noise_than_the_owner_s_is_refused_before_its_first_round(
    tmp_path: Path,
) -> None:
    gates = Gates(tmp_path, NODES, **{"dp-gate-noise-multiplier": 100.0})
    with (
        PrivacyLedger.open(tmp_path / "server.db", plan()) as ledger,
        pytest.raises(RehearsalFailed, match="owner does not allow this training"),
    ):
        trained(DPFedAvg(plan=plan(), ledger=ledger), gates)
    assert all(not here.seen and here.charges() == 0 for here in gates.sites)


def test_metrics_of_the_app_reach_no_server(tmp_path: Path) -> None:
    gates = Gates(tmp_path, NODES)
    for here in gates.sites:
        here.app = replying(
            lambda message: {
                "arrays": message.content["arrays"],
                "metrics": MetricRecord({"num-examples": 4711, "age": 47.11}),
            }
        )
    result = trained(FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES), gates)
    assert [dict(told) for told in result.train_metrics_clientapp.values()] == [{}] * ROUNDS
