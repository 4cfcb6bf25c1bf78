"""Trainings by secure sums over a `LocalGrid`, with so little noise that sums can be read off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flat_plans import noised_plan
from flwr.app import Array, ArrayRecord
from local_grid import LocalGrid
from numpy.typing import NDArray
from secure_nodes import SecureNodes

from fl_dp.ledger import PrivacyLedger
from fl_dp.plan import DistributedPlan, Plan, SecureSum
from fl_dp.strategies import DPFedAvg

NODES = 5
SHAPES = ((3, 2), (4,))


def updates_of(nodes: int, *, units: int = 1, norm: float = 0.5, seed: int = 0) -> list[list[Any]]:
    """Updates of that L2 norm for each unit of each node."""
    rng = np.random.default_rng(seed)

    def one() -> list[NDArray[np.float64]]:
        arrays = [rng.normal(size=shape) for shape in SHAPES]
        length = np.sqrt(sum(float((array**2).sum()) for array in arrays))
        return [array * norm / length for array in arrays]

    return [[one() for _ in range(units)] for _ in range(nodes)]


def model() -> ArrayRecord:
    return ArrayRecord({f"layer{i}": Array(np.zeros(s)) for i, s in enumerate(SHAPES)})


def plan_of(
    nodes: int = NODES, *, rounds: int = 3, noise_multiplier: float = 0.05, **given: Any
) -> DistributedPlan:
    """A plan with so little noise that the sum can be read off, unless it is given more."""
    options: dict[str, Any] = {
        "rounds": rounds,
        "num_clients": nodes,
        "sampling_rate": 1.0,
        "clipping_norm": 1.0,
        "secure_sum": SecureSum(),
        "contribution_check": False,
    }
    plan = noised_plan(noise_multiplier, delta=1e-3, **options | given)
    assert isinstance(plan, DistributedPlan)
    return plan


def trained(
    folder: Path,
    nodes: SecureNodes,
    plan: Plan,
    *,
    rounds: int = 1,
    timeout: float = 10.0,
    **options: Any,
) -> tuple[NDArray[np.float64], DPFedAvg]:
    """The model after some rounds, flattened, and the strategy."""
    with PrivacyLedger.open(folder / "server.db", plan) as ledger:
        strategy = DPFedAvg(plan=plan, ledger=ledger, **options)
        grid = LocalGrid(nodes, len(nodes.updates))
        result = strategy.start(grid, model(), num_rounds=rounds, timeout=timeout)
        arrays = result.arrays.to_numpy_ndarrays()
        return np.concatenate([array.ravel() for array in arrays]), strategy


def tolerance(plan: Plan, nodes: int) -> float:
    """Six standard deviations of the noise on one coordinate of the mean, over all shares."""
    return 6.0 * 2.0 * plan.noise_multiplier * plan.clipping_norm / nodes
