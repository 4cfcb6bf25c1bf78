"""A BatchNorm's running statistics are refused before anything is spent: noise would ruin them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flat_plans import noised_plan
from flwr.app import Array, ArrayRecord, Message
from local_grid import LocalGrid, answer_with_update, arrays_of, reply
from torch import nn
from trainings import budgeted

from fl_dp.accounting import VisibleSampling
from fl_dp.accounting.sampling import BufferedSampling
from fl_dp.ledger import PrivacyLedger
from fl_dp.plan import SecureSum
from fl_dp.strategies import (
    BufferedSelection,
    DPFedAvg,
    DPFedBuff,
)
from fl_dp.updates.batch_norm import running_statistics

N = 6
SEEN: dict[str, Any] = {"sampling": VisibleSampling(cohort=N)}
MODES: dict[str, dict[str, Any]] = {
    "central": {"sampling_rate": 1.0},
    "local": SEEN | {"client_scheme": "gaussian"},
    "distributed": SEEN | {"secure_sum": SecureSum()},
    "buffered": {"sampling": BufferedSelection(BufferedSampling(cohort=3)).sampling},
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def unnamed(arrays: list[Any]) -> ArrayRecord:
    return ArrayRecord([np.asarray(each) for each in arrays])


def values_of(model: nn.Module) -> ArrayRecord:
    return unnamed([each.numpy() for each in model.state_dict().values()])


def start(folder: Path, mode: str, model: ArrayRecord) -> None:
    """Start a training of one round, and hold that it asks and charges nobody."""
    grid = LocalGrid(answer_with_update([{}] * N), N)
    plan = noised_plan(1.0, delta=1e-3, rounds=1, num_clients=N, clipping_norm=1.0, **MODES[mode])
    made = DPFedBuff if mode == "buffered" else DPFedAvg
    with PrivacyLedger.open(folder / "ledger.db", plan) as ledger:
        try:
            made(plan=plan, ledger=ledger).start(grid, model, num_rounds=1, timeout=5.0)
        finally:
            assert not grid.sent and not grid.introductions
            assert ledger.rounds_spent == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_norm_is_refused_in_every_mode_before_anybody_is_asked(
    mode: str, tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError, match=r"'1\.running_mean' holds.*GroupNorm.*name the arrays that are trained"
    ):
        start(tmp_path, mode, ArrayRecord(network().state_dict()))


def test_a_batch_norm_whose_statistics_stay_with_the_clients_is_trained(tmp_path: Path) -> None:
    clients = [network() for _ in range(N)]
    first = {
        name: value
        for name, value in network().state_dict().items()
        if not name.startswith("1.running") and value.is_floating_point()
    }

    def answer(message: Message, partition: int) -> Message:
        model = clients[partition].train()
        sent = {name: torch.tensor(each) for name, each in arrays_of(message).items()}
        model.load_state_dict(sent, strict=False)
        model(torch.full((4, 4), float(partition)) + torch.eye(4)).square().mean().backward()
        for parameter in model.parameters():
            parameter.data -= 0.1 * (parameter.grad if parameter.grad is not None else 0.0)
        return reply(message, {name: model.state_dict()[name].numpy() for name in first})

    strategy = budgeted(tmp_path, epsilon=50.0, num_clients=N)
    result = strategy.start(LocalGrid(answer, N), ArrayRecord(first), num_rounds=2)
    assert list(result.arrays) == list(first)
    kept = [each.state_dict()["1.running_mean"] for each in clients]
    assert all(each.any() for each in kept)
    assert not torch.equal(kept[0], kept[1])


KNOWN = {
    "PyTorch": ArrayRecord(network().state_dict()),
    "PyTorch's values": values_of(network()),
    "without a scale": values_of(nn.BatchNorm1d(8, affine=False)),
    "Keras": ArrayRecord(
        {
            f"normalization/{name}": Array(np.ones(8))
            for name in ("gamma", "beta", "moving_mean", "moving_variance")
        }
    ),
    "Keras' weights": unnamed(
        [np.ones((4, 8)), np.ones(8), np.zeros(8), np.zeros(8), np.ones(8), np.ones((8, 2))]
    ),
}


@pytest.mark.parametrize("model", KNOWN)
def test_statistics_are_recognised_by_name_and_by_place(model: str) -> None:
    assert len(running_statistics(KNOWN[model])) == 2


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 8)),
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.GroupNorm(2, 8)),
        nn.TransformerEncoderLayer(8, 2, dim_feedforward=8),
    ],
    ids=lambda model: type(model).__name__,
)
def test_no_other_layer_is_taken_for_one(model: nn.Module) -> None:
    assert running_statistics(ArrayRecord(model.state_dict())) == []
    assert running_statistics(values_of(model)) == []
