"""Local training is plain SGD; evaluation changes nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fl_dp.model_arrays import get_arrays
from fl_dp.tasks.datasets import load_dataset
from fl_dp.tasks.models import build_model
from fl_dp.tasks.training import evaluate, train_locally

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"learning_rate": 0.1, "epochs": 2, "batch_size": 4, "seed": 0}


def digits(num_rows: int = 100) -> tuple[np.ndarray, np.ndarray]:
    dataset = load_dataset("digits")
    return dataset.features(slice(0, num_rows)), dataset.labels(slice(0, num_rows))


def build(name: str = "mlp", seed: int = 0) -> Any:
    """Return a model of the tasks; tests reach into its layers by number."""
    return build_model(name, input_shape=(1, 8, 8), num_classes=10, seed=seed)


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(
        np.array_equal(a, b)
        for a, b in zip(get_arrays(first).values(), get_arrays(second).values(), strict=True)
    )


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
def test_training_reduces_the_loss(name: str) -> None:
    model, data = build(name), digits()
    before, _ = evaluate(model, *data)
    train_locally(model, *data, **(SETTINGS | {"epochs": 10}))
    after, accuracy = evaluate(model, *data)
    assert after < 0.7 * before
    assert accuracy > 0.6


@pytest.mark.parametrize("batch_size", [7, 100])
def test_one_batch_is_one_step_of_gradient_descent_an_epoch(batch_size: int) -> None:
    model, reference = build(), build()
    x, y = digits(7)
    train_locally(model, x, y, **(SETTINGS | {"epochs": 3, "batch_size": batch_size}))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(reference(torch.tensor(x)), torch.tensor(y))
        torch.autograd.backward(loss)
        optimizer.step()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_each_epoch_visits_every_row_once_in_a_new_order_and_keeps_the_small_batch() -> None:
    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, 2))
            self.batches: list[list[float]] = []

        def forward(self, x: Any) -> Any:
            self.batches.append(x[:, 0].tolist())
            return x @ self.weight

    model = Recorder()
    x = np.arange(10, dtype=np.float32)[:, np.newaxis]
    train_locally(model, x, np.zeros(10, np.int64), **SETTINGS)
    assert [len(batch) for batch in model.batches] == [4, 4, 2, 4, 4, 2]
    first, second = ([*a, *b, *c] for a, b, c in (model.batches[:3], model.batches[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_the_seed_decides_the_order() -> None:
    def trained(seed: int) -> nn.Module:
        model: nn.Module = build()
        train_locally(model, *digits(), **(SETTINGS | {"seed": seed}))
        return model

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = trained(5)
    assert torch.equal(torch.random.get_rng_state(), before)  # nor is it used
    torch.manual_seed(2)
    assert same(first, trained(5))
    assert not same(first, trained(6))


def test_a_frozen_or_unused_parameter_stays_as_it_is() -> None:
    model = build()
    model[1].weight.requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    model.forward = lambda x: nn.Sequential(*model[:6])(x)
    train_locally(model, *digits(), **SETTINGS)
    assert torch.equal(model[1].weight, build()[1].weight)
    assert not torch.equal(model[3].weight, build()[3].weight)
    assert torch.equal(model.unused, torch.ones(3))


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_every_part_comes_back(training: bool) -> None:
    model = build().train(training)
    model[2].train(not training)
    train_locally(model, *digits(), **SETTINGS)
    evaluate(model, *digits())
    assert model.training == model[1].training == training
    assert model[2].training != training


def test_training_runs_in_train_mode_and_evaluation_in_eval_mode_without_gradients() -> None:
    seen = []
    model = build()
    model.register_forward_hook(
        lambda module, inputs, output: seen.append((module.training, output.requires_grad))
    )
    train_locally(model.eval(), *digits(3), **SETTINGS)
    assert set(seen) == {(True, True)}
    seen.clear()
    evaluate(model.train(), *digits(3))
    assert seen == [(False, False)]


@pytest.mark.parametrize(
    "changes",
    [{"learning_rate": -0.1}, {"learning_rate": math.nan}, {"epochs": 0}, {"batch_size": 0}],
    ids=str,
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        train_locally(build(), *digits(), **(SETTINGS | changes))


def test_rows_and_labels_of_different_length_are_refused() -> None:
    x, y = digits()
    with pytest.raises(ValueError):
        train_locally(build(), x, y[:-1], **SETTINGS)
    with pytest.raises(ValueError):
        evaluate(build(), x[:-1], y)


@pytest.mark.parametrize("batch_size", [7, 2048])
def test_evaluation_is_the_mean_over_all_rows_whatever_the_batch(batch_size: int) -> None:
    model = build()
    x, y = digits()
    loss, accuracy = evaluate(model, x, y, batch_size=batch_size)
    logits = model(torch.tensor(x))
    assert loss == pytest.approx(functional.cross_entropy(logits, torch.tensor(y)).item(), rel=1e-5)
    assert accuracy == (logits.argmax(1).numpy() == y).mean()


def test_evaluating_nothing_gives_nan() -> None:
    loss, accuracy = evaluate(build(), *digits(0))
    assert math.isnan(loss)
    assert math.isnan(accuracy)
