"""A tensor that two names of a model share travels once, and a tied model trains in every mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.client import NumPyClient
from flwr.serverapp.strategy import FedAvg
from local_grid import LocalGrid, answer_with_app
from record_plans import record_plan
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_dp.clients import (
    DPSGD,
    NodeRecords,
    OpacusClient,
    exchanged_arrays,
    numpy_client_app,
    trained_names,
)
from fl_dp.ledger.node import Account
from fl_dp.model_arrays import distinct_state, get_arrays, set_arrays
from fl_dp.strategies import DPFedAvg

TOKENS, WIDTH, ROUNDS = 12, 16, 6
NAMES = ("embedding.weight", "decoder.bias")


class Copying(nn.Module):
    """Says again what it is told; it decodes by the table that it embeds by."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.decoder = nn.Linear(WIDTH, TOKENS)
        if tied:
            self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.decoder(torch.tanh(self.embedding(tokens)))
        return logits


def built() -> Copying:
    torch.manual_seed(0)
    model = Copying()
    with torch.no_grad():  # far from where it is to go
        model.embedding.weight.mul_(0.01)
    return model


TEXT = torch.arange(TOKENS).repeat(8)


def right(model: nn.Module) -> float:
    return float((model(TEXT).argmax(1) == TEXT).float().mean())


def test_a_tied_tensor_travels_once_under_its_first_name() -> None:
    model = built()
    assert tuple(get_arrays(model)) == NAMES
    assert trained_names(model) == NAMES
    assert tuple(exchanged_arrays(model)) == NAMES


def test_the_second_name_is_filled_from_the_first() -> None:
    model = built()
    sent = [np.full((TOKENS, WIDTH), 3.0, np.float32), np.zeros(TOKENS, np.float32)]
    set_arrays(model, sent)
    assert (model.decoder.weight == 3.0).all()
    assert model.decoder.weight is model.embedding.weight


def test_parameters_that_share_memory_without_being_one_are_refused() -> None:
    model = Copying(tied=False)
    assert len(distinct_state(model)) == 3
    model.decoder.weight.data = model.embedding.weight.data
    with pytest.raises(ValueError, match=r"decoder\.weight = encoder\.weight"):
        get_arrays(model)


def test_views_and_empty_tensors_are_tensors_of_their_own() -> None:
    model = nn.LSTM(3, 3, num_layers=2)  # on a GPU all its weights are views of one buffer
    whole = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    start = 0
    for each in model.parameters():
        each.data = whole[start : start + each.numel()].view_as(each)
        start += each.numel()
    model.register_buffer("nothing", torch.empty(0))
    model.register_buffer("nothing_else", torch.empty(0))
    assert list(distinct_state(model)) == list(model.state_dict())


# It trains.


def by_dp_sgd(folder: Path) -> nn.Module:
    """Train by DP-SGD inside a client, with hardly any noise."""
    model = built()
    client = OpacusClient(
        model,
        DataLoader(TensorDataset(TEXT, TEXT)),
        plan=record_plan(epsilon=1e9, noise_multiplier=0.01, steps=20, participations=ROUNDS),
        ledger=folder / "node.db",
        account=Account(unit="record", source="ward"),
        dp_sgd=DPSGD(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=2.0)),
    )
    arrays = get_arrays(model)
    sent = list(arrays.values())
    for number in range(ROUNDS):
        sent, _, _ = client.fit(sent, {"server-round": number + 1})
    set_arrays(model, sent, list(arrays))
    return model


class Training(NumPyClient):
    """Trains plainly; the server clips and adds the noise."""

    def fit(self, parameters: Any, config: Any) -> Any:
        model = built()
        set_arrays(model, parameters)
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
        for _ in range(20):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(TEXT), TEXT))
            optimizer.step()
        return list(get_arrays(model).values()), 1, {}


def by_dp_fedavg(folder: Path) -> nn.Module:
    """Train by the server's strategy, with hardly any noise."""
    model = built()
    strategy = DPFedAvg.with_budget(
        FedAvg(fraction_evaluate=0.0),
        epsilon=1e7,
        rounds=ROUNDS,
        num_clients=2,
        sampling_rate=1.0,
        clipping_norm=30.0,
        ledger=folder / "server.db",
    )
    app = numpy_client_app(lambda context: Training())
    grid = LocalGrid(answer_with_app(app, 2), 2, introduces=True)
    result = strategy.start(grid, exchanged_arrays(model), num_rounds=ROUNDS)
    assert tuple(result.arrays) == NAMES
    set_arrays(model, result.arrays.to_numpy_ndarrays())
    return model


@pytest.mark.parametrize("way", [by_dp_sgd, by_dp_fedavg])
def test_a_tied_model_trains(way: Callable[[Path], nn.Module], tmp_path: Path) -> None:
    assert right(built()) < 0.5
    assert right(way(tmp_path)) == 1.0


def test_records_of_a_node_have_one_gradient_of_a_tied_tensor() -> None:
    records = NodeRecords(
        model_fn=lambda context, config: built(),
        loader_fn=lambda context, config: DataLoader(TensorDataset(TEXT, TEXT)),
    )
    context = Context(1, 1, {}, RecordDict(), {})
    assert trained_names(records.arrays_fn(context, {})) == NAMES
    model = ArrayRecord(exchanged_arrays(built()).to_numpy_ndarrays())  # names of another's
    sums, count = records(context, {}, model).clipped_sum(range(len(TEXT)), 1.0)
    assert count == len(TEXT)
    assert list(sums) == list(model)
    assert all(np.abs(each).max() > 0.0 for each in sums.values())
