"""A training said as options: what a node answers, together, alone and with units that fail."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from asked_node import Node, arrays_in, metrics_in
from flwr.app import Context
from torch import Tensor, nn

from fl_dp.clients import NodeUnits, TorchUnits, numpy_client_app
from fl_dp.clients.cohort import together
from fl_dp.mechanisms import GaussianBundle
from fl_dp.model_arrays import get_arrays, trained_names
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import COINS_SEED_KEY

COUNTS = (9, 4, 0, 12, 5)
BUNDLE = GaussianBundle(noise_multiplier=1.0, clipping_norms=(0.5,))


def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.25), nn.Linear(8, 3))


def data(context: Context, unit: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(unit)
    features = torch.randn(COUNTS[unit], 4, 4, generator=generator)
    return features, torch.randint(3, (COUNTS[unit],), generator=generator)


def units(**changes: Any) -> TorchUnits:
    options: dict[str, Any] = {
        "model": module(),
        "loss": nn.CrossEntropyLoss(reduction="none"),
        "optimizer": partial(torch.optim.SGD, lr=0.5),
        "batch_size": 4,
        "epochs": 2,
        "data": data,
        "count": lambda context, config: len(COUNTS),
    }
    return TorchUnits(**options | changes)


def answer(hosted: TorchUnits | NodeUnits, seed: int | None = 7, **fields: Any) -> Any:
    """Return the sum of a node's units, in grid steps, flat."""
    usual: dict[str, Any] = {"server_round": 1, "max_units": 8, "bundle": BUNDLE}
    usual["units"] = tuple(range(len(COUNTS)))
    instruction = RoundInstruction(**usual | fields)
    config: dict[str, Any] = {"server-round": 1}
    if seed is not None:
        config[COINS_SEED_KEY] = seed
    reply = Node(numpy_client_app(units=hosted)).train(get_arrays(module()), instruction, **config)
    return np.concatenate([values.ravel() for values in arrays_in(reply).values()])


def one_by_one(hosted: TorchUnits) -> NodeUnits:
    return NodeUnits(client_fn=hosted.client_fn, count=hosted.count)


def test_a_node_answers_with_the_sum_of_its_units_each_clipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = answer(one_by_one(units()))
    monkeypatch.setattr(together, "train_alone", None)
    monkeypatch.setattr("fl_dp.clients.torch_units.train_alone", None)
    total = answer(units())
    np.testing.assert_allclose(total * BUNDLE.updates.grid, alone * BUNDLE.updates.grid, atol=1e-5)
    assert np.abs(total * BUNDLE.updates.grid).max() > 0.05
    single = sum(answer(units(), units=(unit,)) for unit in range(len(COUNTS)))
    assert (total == single).all()  # to the bit, whoever else takes part


def test_the_run_s_seed_decides_the_coins_and_without_one_the_system() -> None:
    first = answer(units())
    assert (answer(units()) == first).all()
    assert (answer(units(), seed=8) != first).any()
    assert (answer(units(), seed=None) != answer(units(), seed=None)).any()


@pytest.mark.parametrize("unit", [0, 3])
def test_a_unit_that_fails_contributes_zero_and_moves_nobody(unit: int) -> None:
    def failing(context: Context, asked: int) -> tuple[Tensor, Tensor]:
        if asked == unit:
            raise RuntimeError("a secret")
        return data(context, asked)

    others = tuple(other for other in range(len(COUNTS)) if other != unit)
    assert (answer(units(data=failing)) == answer(units(), units=others)).all()


def test_data_may_draw_from_the_process_and_each_unit_has_its_own_coins() -> None:
    def augmented(context: Context, unit: int) -> tuple[Tensor, Tensor]:
        features, labels = data(context, unit)
        noise = float(np.random.normal()) + random.random()
        return features + noise * torch.randn(features.shape), labels

    hosted = units(data=augmented)
    total = answer(hosted)
    assert (total == sum(answer(hosted, units=(unit,)) for unit in range(len(COUNTS)))).all()
    assert (total != answer(hosted, seed=8)).any()


def test_a_unit_without_records_contributes_zero() -> None:
    assert (answer(units(), units=(2,)) == 0).all()
    assert (answer(units()) == answer(units(), units=(0, 1, 3, 4))).all()


def test_a_node_of_one_unit_answers_as_a_client() -> None:
    hosted = units(count=lambda context, config: 1)
    reply = Node(numpy_client_app(units=hosted)).train(get_arrays(module()), None)
    assert metrics_in(reply)["num-examples"] == COUNTS[0]
    before = get_arrays(module())
    assert any((values != before[name]).any() for name, values in arrays_in(reply).items())


def test_what_is_trained_alone_may_be_sent() -> None:
    hosted = units(model=nn.Sequential(module(), nn.BatchNorm1d(3).requires_grad_(False).eval()))
    names = trained_names(hosted.model)
    arrays = get_arrays(hosted.model, names)
    reply = Node(numpy_client_app(units=hosted)).train(
        arrays, RoundInstruction(server_round=1, max_units=8, bundle=BUNDLE, units=(0, 1))
    )
    assert tuple(arrays_in(reply)) == names


def test_a_unit_is_measured_by_its_loss() -> None:
    context: Any = None  # which its data need not
    client = units().client_fn(context, 1)
    parameters = list(get_arrays(module()).values())
    loss, count, _ = client.evaluate(parameters, {})
    features, labels = data(context, 1)
    expected = nn.functional.cross_entropy(module().eval()(features), labels).item()
    assert (round(loss, 6), count) == (round(expected, 6), 4)


def test_options_are_checked_at_once() -> None:
    with pytest.raises(ValueError, match="a Adafactor, which may mix clients"):
        units(optimizer=partial(torch.optim.Adafactor, lr=0.1))
    with pytest.raises(ValueError, match=r"CrossEntropyLoss\(reduction='none'\)"):
        units(loss=nn.CrossEntropyLoss())
