"""Units trained together get what `train_locally` gives each, and do not meet."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fixed_draws import fix_draws
from torch import nn

from fl_dp.model_arrays import get_arrays
from fl_dp.tasks.models import build_model
from fl_dp.tasks.training import UnitData, together, train_locally, train_together
from fl_dp.tasks.training.together import units_at_once, why_not_together

pytestmark = pytest.mark.slow

SHAPE = (1, 8, 8)
SETTINGS = {"learning_rate": 0.1, "epochs": 2, "batch_size": 4}
SIZES = (8, 5, 1, 0, 13, 4, 3, 8, 20)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # models this small only wait for each other's threads
    yield
    torch.set_num_threads(before)


def unit(num_rows: int, seed: int = 0, shape: tuple[Any, Any, Any] = SHAPE) -> UnitData:
    rng = np.random.default_rng((seed, num_rows))
    return UnitData(
        features=rng.normal(size=(num_rows, *shape)).astype(np.float32),
        labels=rng.integers(0, 10, num_rows),
        seed=seed,
    )


UNITS = [unit(num_rows, seed) for seed, num_rows in enumerate(SIZES)]


def build(name: str = "mlp") -> nn.Module:
    return build_model(name, input_shape=SHAPE, num_classes=10, hidden=16, seed=0)


def flat(model: nn.Module) -> np.ndarray:
    arrays = [array.reshape(-1) for array in get_arrays(model).values() if array.dtype.kind == "f"]
    return np.concatenate(arrays)


def alone(model: nn.Module | nn.Sequential, units: list[UnitData], **settings: Any) -> np.ndarray:
    """Return the units' models, trained one after the other."""
    trained = []
    for data in units:
        own = copy.deepcopy(model)
        train_locally(own, data.features, data.labels, seed=data.seed, **(SETTINGS | settings))
        trained.append(flat(own))
    return np.array(trained)


def trained(
    model: nn.Module | nn.Sequential, units: list[UnitData], **settings: Any
) -> dict[int, Any]:
    """Return the units' models, trained together, by place."""
    rows = {}
    for places, vectors in train_together(model, units, **(SETTINGS | settings)):
        assert len(places) == len(vectors)
        for place, vector in zip(places, vectors, strict=True):
            assert place not in rows
            rows[place] = vector.copy()
    return rows


def matrix(rows: dict[int, Any]) -> np.ndarray:
    return np.array([rows[place] for place in range(len(rows))])


class Scaled(nn.Module):
    """A parameter of its own, a constant buffer, a frozen parameter and an integer one."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 10)
        self.scale = nn.Parameter(torch.ones(10))
        self.frozen = nn.Parameter(torch.ones(10), requires_grad=False)
        self.register_buffer("shift", torch.full((10,), 0.5))
        self.register_buffer("seen", torch.tensor(7))

    def forward(self, x: Any) -> Any:
        return self.linear(x.flatten(1)) * self.scale * self.frozen + self.shift


class Counting(Scaled):
    """Its buffers change in training, which no chunk of units could share."""

    def __init__(self, *, by_data: bool = True) -> None:
        super().__init__()
        self.by_data = by_data

    def forward(self, x: Any) -> Any:
        self.shift += x.mean() if self.by_data else 0.25
        return super().forward(x)


def layers(*last: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(2, 4),
        nn.MaxPool2d(2, return_indices=False),
        *last,
        nn.Flatten(),
        nn.Linear(16, 10),
    )


MODELS = {
    "logistic": build("logistic"),
    "mlp": build("mlp"),
    "cnn": build("cnn"),
    "own parameters": Scaled(),
    "convolutions": layers(nn.Conv2d(4, 4, 3, padding="same", groups=2), nn.Tanh()),
    "no affine norm": layers(nn.GroupNorm(2, 4, affine=False), nn.AvgPool2d(1)),
    "one image at a time": nn.Sequential(nn.Flatten(1), nn.Unflatten(1, (8, 8)), build("mlp")),
}


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("name", MODELS)
def test_the_result_is_that_of_one_by_one(
    name: str, chunk_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]
    assert why_not_together(model) is None
    monkeypatch.setattr(together, "train_locally", None)  # it would be one by one, too
    rows = trained(model, UNITS, chunk_size=chunk_size)
    np.testing.assert_allclose(matrix(rows), alone(model, UNITS), rtol=0, atol=1e-5)
    assert np.abs(matrix(rows)[0] - flat(model)).max() > 1e-3


def test_numbers_are_learned_together_as_one_by_one() -> None:
    model = build_model("mlp", input_shape=SHAPE, num_classes=1, seed=3)
    units = [
        replace(each, labels=np.tanh(each.features[:, 0, 0, 0]).astype(np.float32))
        for each in UNITS
    ]
    np.testing.assert_allclose(matrix(trained(model, units)), alone(model, units), atol=1e-6)
    # Labels that are classes do not fit, and change nothing for the others.
    rows = trained(model, [units[0], UNITS[1], units[2]])
    assert sorted(rows) == [0, 2]
    np.testing.assert_allclose(rows[2], alone(model, [units[2]])[0], atol=1e-6)


def test_units_with_images_of_different_sizes_are_trained_in_one_call() -> None:
    units = [unit(5, 0), unit(5, 1, (1, 10, 10)), unit(3, 2)]
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 10)
    )
    np.testing.assert_allclose(matrix(trained(model, units)), alone(model, units), atol=1e-5)


# Units do not meet.


@pytest.mark.parametrize(("name", "threads"), [("logistic", 1), ("mlp", 1), ("cnn", 2)])
def test_a_unit_s_result_is_the_same_to_the_bit_in_any_company(name: str, threads: int) -> None:
    torch.set_num_threads(threads)
    model, one = MODELS[name], unit(7, 99)
    expected = trained(model, [one])[0]
    few, many = [unit(6, 2), unit(20, 3), unit(0)], UNITS * 2
    for before, after in (([], [unit(7, 1)]), (few, few), (many, many)):
        np.testing.assert_array_equal(trained(model, [*before, one, *after])[len(before)], expected)


@pytest.mark.parametrize(
    ("name", "value"), [("mlp", np.nan), ("mlp", -np.inf), ("mlp", 1e38), ("cnn", np.nan)]
)
def test_a_unit_that_is_not_finite_does_not_disturb_the_others(name: str, value: float) -> None:
    bad = unit(8, 50)
    bad.features[2, 0, 3] = value
    rows = trained(MODELS[name], [*UNITS, bad])
    assert not np.isfinite(rows[len(UNITS)]).all()
    expected = trained(MODELS[name], UNITS)
    for place in range(len(UNITS)):
        np.testing.assert_array_equal(rows[place], expected[place])


def spoilt(**changes: Any) -> UnitData:
    return UnitData(
        **({"features": unit(8).features, "labels": unit(8).labels, "seed": 0} | changes)
    )


MISFITS = {
    "another shape": unit(8, shape=(1, 9, 9)),
    "a label too many": spoilt(labels=unit(9).labels),
    "a label beyond the classes": spoilt(labels=np.full(8, 10)),
    "a negative label": spoilt(labels=np.full(8, -1)),
    "no labels": spoilt(labels=None),
    "words": spoilt(features=np.array(["secret"] * 8)),
    "a number": spoilt(features=np.float32(1.0)),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_data_that_do_not_fit_are_left_out_and_change_nothing(kind: str) -> None:
    rows = trained(build(), [UNITS[0], MISFITS[kind], UNITS[1]])
    expected = trained(build(), UNITS[:2])
    assert sorted(rows) == [0, 2]
    np.testing.assert_array_equal(rows[0], expected[0])
    np.testing.assert_array_equal(rows[2], expected[1])


# What can't be trained together.


def tied() -> nn.Sequential:
    first = nn.Linear(64, 64)
    second = nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, second, nn.Linear(64, 10))


class Branching(Scaled):
    """Looks at its data, which `vmap` does not allow."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * (2.0 if x.sum() > 0 else 1.0)


FALLBACKS = {
    "shared parameters": tied(),
    "BatchNorm": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)),
    "a branch": Branching(),
    "a buffer that changes": Counting(),
    "a buffer that counts": Counting(by_data=False),
}


@pytest.mark.parametrize("kind", FALLBACKS)
def test_what_can_not_be_trained_together_is_trained_one_by_one(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = FALLBACKS[kind]
    together._log_once.cache_clear()
    caplog.set_level(logging.INFO, logger="flwr.fl_dp.client")
    units = [data for data in UNITS if len(data.labels) % 4 != 1]  # BatchNorm wants two rows
    for _ in range(2):
        rows = trained(model, units)
    np.testing.assert_array_equal(matrix(rows), alone(model, units))
    assert len([text for text in caplog.messages if "one by one" in text]) == 1


def with_dropout() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))


def test_dropout_is_trained_one_by_one() -> None:
    model = with_dropout()
    rows = matrix(trained(model, UNITS))
    np.testing.assert_allclose(rows, alone(model, UNITS), atol=1.0)
    assert len(np.unique(rows, axis=0)) == len(UNITS)


def test_dropout_of_a_unit_depends_on_no_other_unit_s_data() -> None:
    model, rows = with_dropout(), []
    # The first fails before it tosses coins for a batch, and the second behind it.
    for kind in ("no labels", "a label beyond the classes"):
        fix_draws("the secret seeds")
        rows.append(trained(model, [UNITS[0], MISFITS[kind], UNITS[4]]))
    for place in (0, 2):
        np.testing.assert_array_equal(rows[0][place], rows[1][place])


def test_neither_the_model_nor_the_random_state_is_touched() -> None:
    for model in (build("cnn").eval(), Counting(), with_dropout()):
        before, random = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
        trained(model, UNITS)
        assert torch.equal(random, torch.random.get_rng_state())
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name])
        assert all(parameter.grad is None for parameter in model.parameters())
    assert not build("cnn").eval().training


# How many at once.


def test_chunks_grow_with_memory_and_are_powers_of_two() -> None:
    assert units_at_once(1 << 20) == 32
    assert units_at_once(3 << 20) == 8
    assert units_at_once(1 << 40) == 1
    assert units_at_once(1 << 20, free_bytes=130 << 20) == 64
    assert units_at_once(1, free_bytes=1 << 40) == units_at_once(1) == 256


def test_a_chunk_that_does_not_fit_into_memory_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    whole = together._trained_at_once

    def limited(model: Any, chunk: Any, width: int, training: Any) -> np.ndarray:
        tried.append(len(chunk))
        if len(chunk) > 3:
            raise torch.OutOfMemoryError
        return whole(model, chunk, width, training)

    monkeypatch.setattr(together, "_trained_at_once", limited)
    monkeypatch.setattr(together, "train_locally", None)
    units = [unit(4, seed) for seed in range(9)]
    rows = trained(build(), units, chunk_size=8)
    assert tried == [8, 4, 2, 2, 2, 2, 1]
    monkeypatch.undo()
    np.testing.assert_allclose(matrix(rows), alone(build(), units), rtol=0, atol=1e-5)
