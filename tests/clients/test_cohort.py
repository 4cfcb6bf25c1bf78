"""Clients trained together get what each gets alone, and do not meet."""

from __future__ import annotations

import copy
import logging
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fixed_draws import fix_draws
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Rprop

from fl_dp.clients.cohort import (
    LocalTraining,
    UnitData,
    cohort_size,
    together,
    train_alone,
    train_units,
)
from fl_dp.clients.cohort.cohort_size import units_at_once
from fl_dp.clients.cohort.image_layers import GROUPED, PRODUCTS, image_layers
from fl_dp.clients.cohort.mask_coins import MaskCoins
from fl_dp.clients.cohort.trained_rows import CohortTraining
from fl_dp.model_arrays import distinct_state

pytestmark = pytest.mark.slow

SHAPE = (1, 8, 8)
SIZES = (8, 5, 1, 0, 13, 4, 3, 8, 20)
cross_entropy = partial(functional.cross_entropy, reduction="none")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(SGD, lr=0.1),
    "SGD of its own": partial(SGD, lr=0.1, momentum=0.0, maximize=True),
    "momentum": partial(SGD, lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
    "dampening": partial(SGD, lr=0.05, momentum=0.9, dampening=0.5, foreach=True),
    "Adam": partial(Adam, lr=0.01, weight_decay=0.1, amsgrad=True),
    "AdamW": partial(AdamW, lr=0.01, weight_decay=0.1),
    "Rprop": partial(Rprop, lr=0.01),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # models this small only wait for each other's threads
    yield
    torch.set_num_threads(before)


@pytest.fixture
def only_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it fail to train one by one."""
    monkeypatch.setattr(together, "train_alone", None)


def training(optimizer: str = "SGD", **changes: Any) -> LocalTraining:
    options: dict[str, Any] = {"loss": cross_entropy, "batch_size": 4, "epochs": 2} | changes
    return LocalTraining(optimizer=OPTIMIZERS[optimizer], **options)


def unit(num_rows: int, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> UnitData:
    generator = torch.Generator().manual_seed(100 * seed + num_rows)
    return UnitData(
        features=torch.randn(num_rows, *shape, generator=generator),
        labels=torch.randint(10, (num_rows,), generator=generator),
        seed=seed,
    )


UNITS = [unit(num_rows, seed) for seed, num_rows in enumerate(SIZES)]


def in_float64(units: list[UnitData]) -> list[UnitData]:
    return [replace(data, features=data.features.double()) for data in units]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


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


def with_dropout() -> nn.Sequential:
    return layers(nn.Dropout2d(0.25), nn.Tanh(), nn.Dropout(0.1))


def flat(model: nn.Module) -> Tensor:
    entries = distinct_state(model).values()
    return torch.cat([value.flatten() for value in entries if value.is_floating_point()])


def alone(model: nn.Module, units: list[UnitData], how: LocalTraining) -> Tensor:
    """Return the units' models, each trained alone."""
    trained = []
    for data in units:
        own = copy.deepcopy(model)
        train_alone(own, data, how)
        trained.append(flat(own))
    return torch.stack(trained)


def rows_of(
    model: nn.Module, units: list[UnitData], how: LocalTraining, **options: Any
) -> dict[int, Tensor]:
    """Return the units' models, trained together, by place."""
    rows = {}
    for places, vectors in train_units(model, units, how, **options):
        assert len(places) == len(vectors)
        for place, vector in zip(places, vectors, strict=True):
            assert place not in rows
            rows[place] = vector.clone()
    return rows


def matrix(rows: dict[int, Tensor]) -> Tensor:
    return torch.stack([rows[place] for place in range(len(rows))])


class Scaled(nn.Module):
    """A parameter of its own, a constant buffer, a frozen parameter and an integer one."""

    shift: Tensor

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


class Shifts(nn.Module):
    """Writes into what it gets."""

    def forward(self, x: Tensor) -> Tensor:
        x += 1.0
        return x


def tied() -> nn.Sequential:
    torch.manual_seed(0)
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, nn.Linear(64, 10))


MODELS: dict[str, nn.Module] = {
    "mlp": mlp(),
    "own parameters": Scaled(),
    "convolutions": layers(nn.Conv2d(4, 4, 3, padding="same", groups=2), nn.Tanh()),
    "no affine norm": layers(nn.GroupNorm(2, 4, affine=False), nn.AvgPool2d(1)),
    "one image at a time": nn.Sequential(nn.Flatten(1), nn.Unflatten(1, (8, 8)), mlp()),
    "dropout": with_dropout(),
    "shared parameters": tied(),
    "writes into its records": nn.Sequential(Shifts(), mlp()),
    "frozen BatchNorm": layers(nn.BatchNorm2d(4).requires_grad_(False).eval()),
}


@pytest.mark.usefixtures("only_together")
@pytest.mark.parametrize("at_once", [None, 3])
@pytest.mark.parametrize("name", MODELS)
def test_together_is_one_by_one_up_to_rounding(name: str, at_once: int | None) -> None:
    model, units = copy.deepcopy(MODELS[name]).double(), in_float64(UNITS)
    rows = matrix(rows_of(model, units, training(), at_once=at_once))
    torch.testing.assert_close(rows, alone(model, units, training()), rtol=0, atol=1e-14)
    assert (rows[0] - flat(model)).abs().max() > 1e-3
    torch.testing.assert_close(rows[3], flat(model), rtol=0, atol=0)  # it has no record


@pytest.mark.usefixtures("only_together")
@pytest.mark.parametrize("optimizer", ["momentum", "Adam", "AdamW", "Rprop"])
def test_dropout_and_group_norm_go_together_by_each_optimizer(optimizer: str) -> None:
    model, units = with_dropout().double(), in_float64(UNITS)
    how = training(optimizer, epochs=3)
    rows = matrix(rows_of(model, units, how))
    torch.testing.assert_close(rows, alone(model, units, how), rtol=0, atol=1e-12)


def torch_alone(model: nn.Module, data: UnitData, name: str, how: LocalTraining) -> Tensor:
    """Train by PyTorch's own loop, with the mean loss that everybody writes."""
    own, generator = copy.deepcopy(model), torch.Generator().manual_seed(data.seed)
    optimizer, count = OPTIMIZERS[name](own.parameters()), len(data.labels)
    for _ in range(how.epochs):
        order = torch.arange(count)
        if count > how.batch_size:
            order = torch.randperm(count, generator=generator)
        for batch in torch.split(order, how.batch_size):
            optimizer.zero_grad()
            loss = functional.cross_entropy(own(data.features[batch]), data.labels[batch])
            torch.autograd.backward(loss)
            optimizer.step()
    return flat(own)


@pytest.mark.usefixtures("only_together")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_moves_each_client_as_torch_s_own_loop(name: str) -> None:
    model = nn.Sequential(mlp(), nn.Tanh()).double()
    units = in_float64([data for data in UNITS if len(data.labels)])
    how = training(name, epochs=3)
    expected = torch.stack([torch_alone(model, data, name, how) for data in units])
    rows = matrix(rows_of(model, units, how))
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(alone(model, units, how), expected, rtol=0, atol=1e-13)
    # A finished client would be moved by its moments or by the decay of its weights.
    assert (rows - flat(model)).abs().amax(1).min() > 1e-3


def test_plain_sgd_is_torch_s_to_the_bit() -> None:
    (ours,) = alone(mlp(), [UNITS[8]], training("SGD", epochs=1))
    way = replace(training("SGD", epochs=1), optimizer=partial(SGD, lr=0.1, momentum=0.0))
    assert torch.equal(ours, alone(mlp(), [UNITS[8]], way)[0])


class Frobenius(SGD):
    """A class of the list with a step of its own."""


def hooked(parameters: list[nn.Parameter]) -> SGD:
    made = SGD(parameters, lr=0.1)
    made.register_step_pre_hook(lambda *_: None)
    return made


def patched(parameters: list[nn.Parameter]) -> SGD:
    made = SGD(parameters, lr=0.1)
    made.step = made.step  # type: ignore[method-assign]  # as a schedule of rates does
    return made


REFUSED: dict[str, tuple[Any, str]] = {
    "Adafactor": (partial(torch.optim.Adafactor, lr=0.1), "a Adafactor, which may mix clients"),
    "RMSprop": (partial(torch.optim.RMSprop, lr=0.1), "partial\\(torch.optim.SGD, lr=0.1\\)"),
    "a subclass": (partial(Frobenius, lr=0.1), "a Frobenius"),
    "two groups": (lambda _: SGD([{"params": []}, {"params": []}], lr=0.1), "2 groups"),
    "others' parameters": (lambda _: SGD([nn.Parameter(torch.ones(1))], lr=0.1), "1 groups"),
    "a hook": (hooked, "a hook or a step"),
    "a patched step": (patched, "a hook or a step"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_optimizers_are_refused_with_what_to_write(name: str) -> None:
    optimizer, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        LocalTraining(loss=cross_entropy, optimizer=optimizer, batch_size=4)


def test_other_options_are_refused_with_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"CrossEntropyLoss\(reduction='none'\)"):
        training(loss=nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match="epochs is 0; write at least 1"):
        training(epochs=0)
    with pytest.raises(ValueError, match="batch_size is 0; write at least 1"):
        training(batch_size=0)
    with pytest.raises(ValueError, match="one number a record, as with reduction='none'"):
        alone(mlp(), [UNITS[0]], training(loss=functional.cross_entropy))
    with pytest.raises(ValueError, match="at_once is 0"):
        rows_of(mlp(), UNITS, training(), at_once=0)


def test_numbers_are_learned_together_as_one_by_one() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    how = training(loss=lambda outputs, y: functional.mse_loss(outputs[:, 0], y, reduction="none"))
    units = [replace(each, labels=each.features[:, 0, 0, 0].tanh()) for each in in_float64(UNITS)]
    rows = matrix(rows_of(model, units, how))
    torch.testing.assert_close(rows, alone(model, units, how), rtol=0, atol=1e-14)


def test_units_with_images_of_different_sizes_are_trained_in_one_call() -> None:
    units = in_float64([unit(5, 0), unit(5, 1, (1, 10, 10)), unit(3, 2)])
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 10)
    ).double()
    rows = matrix(rows_of(model, units, training()))
    torch.testing.assert_close(rows, alone(model, units, training()), rtol=0, atol=1e-14)


# Convolutions as products.

CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Conv2d(2, 3, 3),
    "padded": lambda: nn.Conv2d(2, 3, 3, padding=1, bias=False),
    "strided": lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1),
    "strides that leave a rest": lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 3), padding=(0, 1)),
    "dilated": lambda: nn.Conv2d(2, 3, 3, dilation=2, padding=1, stride=2),
    "of single pixels": lambda: nn.Conv2d(2, 3, 1, stride=2, bias=False),
    "padded by more than the kernel": lambda: nn.Conv2d(2, 3, 1, padding=2),
    "same": lambda: nn.Conv2d(2, 3, (3, 5), padding="same", dilation=(1, 2)),
    "same on one side": lambda: nn.Conv2d(2, 3, 2, padding="same"),
    "valid": lambda: nn.Conv2d(2, 3, 3, padding="valid"),
    "reflected": lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
    "in groups": lambda: nn.Conv2d(2, 4, 3, groups=2),
    "frozen": lambda: nn.Conv2d(2, 3, 3).requires_grad_(False),
    "transposed": lambda: nn.ConvTranspose2d(2, 3, 3, stride=2),
}


@pytest.mark.usefixtures("only_together")
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_as_a_product_is_the_grouped_one_up_to_rounding(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(  # one convolution before it, whose gradient it passes on
        *(nn.Conv2d(1, 2, 3, padding=1), nn.GroupNorm(1, 2), nn.Tanh(), CONVOLUTIONS[name]()),
        *(nn.Tanh(), nn.MaxPool2d(2, 1), nn.Dropout2d(0.25), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.LazyLinear(10)),
    )
    model(UNITS[0].features)
    model, units = model.double(), in_float64(UNITS)
    products, grouped = (
        matrix(rows_of(model, units, training(), images=images)) for images in (PRODUCTS, GROUPED)
    )
    torch.testing.assert_close(products, grouped, rtol=0, atol=1e-13)
    torch.testing.assert_close(products, alone(model, units, training()), rtol=0, atol=1e-13)
    moved = (products[0] - flat(model)).abs()
    assert moved[: 2 * 9].min() > 0.0  # the first layer, through all others


def test_products_are_for_gpus() -> None:
    assert image_layers(torch.device("cpu")) is GROUPED
    assert image_layers(torch.device("cuda")) is PRODUCTS


@pytest.mark.parametrize("threads", [1, 2])
def test_by_products_units_do_not_meet(threads: int) -> None:
    torch.set_num_threads(threads)
    model, one, spoilt = MODELS["convolutions"], unit(7, 99), unit(8, 50)
    spoilt.features[2, 0, 3] = math.nan
    (expected,) = rows_of(model, [one], training(), images=PRODUCTS).values()
    for company in ([unit(6, 2)], [spoilt, unit(20, 3)]):
        rows = rows_of(model, [*company, one, *company], training(), images=PRODUCTS)
        assert torch.equal(rows[len(company)], expected)


def test_only_the_entries_asked_for_come_in_their_order() -> None:
    (whole,) = rows_of(Scaled(), [UNITS[0]], training()).values()
    (some,) = rows_of(Scaled(), [UNITS[0]], training(), names=["linear.bias", "scale"]).values()
    state = list(Scaled().state_dict())
    assert state.index("scale") == 0
    assert torch.equal(some, torch.cat([whole[-10:], whole[:10]]))


# Units do not meet.


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Rprop"])
@pytest.mark.parametrize(("name", "threads"), [("mlp", 1), ("convolutions", 2), ("dropout", 1)])
def test_a_unit_s_row_is_the_same_to_the_bit_in_any_company(
    name: str, threads: int, optimizer: str
) -> None:
    torch.set_num_threads(threads)
    model, one, how = MODELS[name], unit(7, 99), training(optimizer)
    expected = rows_of(model, [one], how)[0]
    few, many = [unit(6, 2), unit(20, 3), unit(0)], UNITS * 2
    for before, after in (([], [unit(7, 1)]), (few, few), (many, many)):
        row = rows_of(model, [*before, one, *after], how)[len(before)]
        assert torch.equal(row, expected)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "Rprop"])
@pytest.mark.parametrize("name", ["mlp", "dropout"])
@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e38, "times -1,000"])
def test_one_unit_s_data_move_the_others_rows_by_exactly_zero(
    name: str, value: float | str, optimizer: str
) -> None:
    usual, bad = unit(8, 50), unit(8, 50)
    if isinstance(value, str):
        bad.features.mul_(-1000.0)
    else:
        bad.features[0, 0, 3] = value  # of the row that fills up other clients' rows
        bad.features[2, 0, 3] = value
    how = training(optimizer)
    rows = rows_of(MODELS[name], [bad, *UNITS], how)
    expected = rows_of(MODELS[name], [usual, *UNITS], how)
    assert not torch.equal(rows[0], expected[0])
    for place in range(1, len(UNITS) + 1):
        assert torch.equal(rows[place], expected[place])


@pytest.mark.usefixtures("only_together")
def test_padding_contributes_nothing_even_where_it_is_not_finite() -> None:
    """Of five records in batches of four the last batch is one record and three copies of it."""

    def spoilt(outputs: Tensor, labels: Tensor) -> Tensor:
        losses: Tensor = cross_entropy(outputs, labels)
        copies = (labels == labels[0]) & (torch.arange(4) > 0)
        return torch.where(copies, math.nan, losses)

    data = replace(unit(5), labels=torch.arange(5))  # no two records have one label
    usual = rows_of(mlp(), [data], training(epochs=1))
    rows = rows_of(mlp(), [data], training(epochs=1, loss=spoilt))
    assert torch.equal(rows[0], usual[0])


MISFITS = {
    "another shape": unit(8, shape=(1, 9, 9)),
    "a label too many": replace(unit(8), labels=unit(9).labels),
    "labels of pairs": replace(unit(8), labels=unit(8).labels[:, None]),
    "another dtype": replace(unit(8), features=unit(8).features.to(torch.complex64)),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_data_that_do_not_fit_are_left_out_and_change_nothing(kind: str) -> None:
    rows = rows_of(mlp(), [UNITS[0], MISFITS[kind], UNITS[1]], training())
    expected = rows_of(mlp(), UNITS[:2], training())
    assert sorted(rows) == [0, 2]
    assert torch.equal(rows[0], expected[0])
    assert torch.equal(rows[2], expected[1])


class Choosy(nn.Module):
    """Fails on some data; `torch.vmap` finds a singular matrix and raises for all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        inverse = torch.linalg.inv(x[:, 0] + 20.0 * torch.eye(8))
        outputs: Tensor = self.linear(inverse.flatten(1))
        return outputs


@pytest.mark.usefixtures("only_together")
def test_a_unit_whose_data_make_a_kernel_raise_is_left_out_alone() -> None:
    units = [unit(4, seed) for seed in range(9)]
    expected = rows_of(Choosy(), units, training())
    units[5].features[1, 0] = -20.0 * torch.eye(8)
    rows = rows_of(Choosy(), units, training())
    assert sorted(rows) == [0, 1, 2, 3, 4, 6, 7, 8]
    assert all(torch.equal(row, expected[place]) for place, row in rows.items())


@pytest.mark.parametrize("way", ["together", "alone"])
def test_indices_are_clamped(way: str) -> None:
    torch.manual_seed(0)
    table = nn.Sequential(nn.Embedding(5, 6), nn.Flatten(), nn.Linear(18, 4)).double()
    tokens, labels = torch.tensor([[0, 4, 2]] * 4), torch.tensor([0, 3, 3, -100])
    inside = UnitData(features=tokens, labels=labels, seed=1)
    outside = UnitData(
        features=torch.tensor([[-7, 2**62, 2]] * 4),
        labels=torch.tensor([-1, 4, 2**40, -100]),  # -100 is no class, and stays so
        seed=1,
    )
    units = [inside, outside, replace(inside, labels=torch.full((4,), -100))]
    if way == "together":
        rows = matrix(rows_of(table, units, training()))
    else:
        rows = alone(table, units, training())
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[2], flat(table))
    assert (rows[0] - flat(table)).abs().max() > 1e-3


# Coins.


def test_masks_have_their_law_and_clients_are_independent() -> None:
    """Power: a probability that is off by 0.004 is 11 standard errors or more away."""
    count = 1 << 21
    coins = MaskCoins([1, 2, 3], torch.device("cpu"), step=3 * count)
    coins.use(coins.of_step(0, [1, 1, 1], rows=4))
    dropped = {}
    for p in (0.25, 0.5, 0.1):
        masks = coins.masks(4, (count,), p, torch.float64)[:3]
        assert set(torch.unique(masks).tolist()) == {0.0, 1.0 / (1.0 - p)}
        dropped[p] = (masks == 0.0).double()
        errors = (dropped[p].mean(1) - p) / math.sqrt(p * (1.0 - p) / count)
        assert errors.abs().max() < 4.5
        assert 0.004 / math.sqrt(p * (1.0 - p) / count) > 11.0
        centred = dropped[p] - p
        mixed = centred @ centred.T / count / (p * (1.0 - p))
        assert (mixed - torch.eye(3)).fill_diagonal_(0.0).abs().max() < 4.5 / math.sqrt(count)
    layers_apart = ((dropped[0.25] - 0.25) * (dropped[0.5] - 0.5)).mean(1) / math.sqrt(0.1875 / 4)
    assert layers_apart.abs().max() < 4.5 / math.sqrt(count)
    coins = MaskCoins([7], torch.device("cpu"))
    assert coins.mask((5,), 1.0, torch.float32, padding=1.0).tolist() == [0.0] * 5


def test_every_step_and_every_client_has_masks_of_its_own() -> None:
    coins = MaskCoins([5, 6], torch.device("cpu"), step=1000)
    seen = []
    for number in range(700):  # more than are drawn at a time
        coins.use(coins.of_step(number, [700, 700], rows=2))
        seen += list(coins.masks(2, (1000,), 0.5, torch.float32))
    assert len({tuple(mask.tolist()) for mask in seen}) == 1400


def test_a_unit_s_seed_decides_its_coins() -> None:
    model, how = with_dropout(), training(epochs=1)
    rows = rows_of(model, [unit(4, 1), replace(unit(4, 1), seed=2), unit(4, 1)], how)
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[1])


# What can't be trained together.


class Branching(Scaled):
    """Looks at its data, which `vmap` does not allow."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * (2.0 if x.sum() > 0 else 1.0)


class Counting(Scaled):
    """Its buffers change in training, which no chunk of units could share."""

    def __init__(self, *, by_data: bool = True) -> None:
        super().__init__()
        self.by_data = by_data

    def forward(self, x: Any) -> Any:
        self.shift += x.mean() if self.by_data else 0.25
        return super().forward(x)


class Noisy(Scaled):
    """Draws from torch, but not by dropout."""

    def forward(self, x: Any) -> Any:
        return super().forward(x + torch.randn(1))


class Jittered(Scaled):
    """Draws outside of torch."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * (1.0 + random.random())


class Numpys(Scaled):
    """Draws outside of torch."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * (1.0 + np.random.random())


class Hooked(Scaled):
    """A hook that would see the gradients of all units."""

    def forward(self, x: Any) -> Any:
        outputs = super().forward(x)
        outputs.register_hook(lambda gradient: gradient / gradient.norm())
        return outputs


class Halved(torch.autograd.Function):
    """A function with its own rule, in which units could meet."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x / 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] / 2

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return Halved.apply(x), in_dims[0]  # type: ignore[no-untyped-call]  # torch's


class OwnFunction(Scaled):
    """An autograd function of its own, beside dropout of ours."""

    def forward(self, x: Any) -> Any:
        return Halved.apply(super().forward(functional.dropout(x, 0.5)))  # type: ignore[no-untyped-call]  # torch's


FALLBACKS: dict[str, tuple[nn.Module, str]] = {
    "BatchNorm": (
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)),
        "put GroupNorm in its place",
    ),
    "a branch": (Branching(), "data-dependent"),
    "a buffer that changes": (Counting(), "broadcast"),
    "a buffer that counts": (Counting(by_data=False), "shift changes in training"),
    "random": (Jittered(), "nn.Dropout"),
    "NumPy": (Numpys(), "nn.Dropout"),
    "another random layer": (nn.Sequential(nn.Flatten(), nn.RReLU(), nn.Linear(64, 10)), "rrelu"),
    "noise": (Noisy(), "called random operation"),
    "a hook": (Hooked(), "a hook on a tensor"),
    "a function of its own": (OwnFunction(), "generate_vmap_rule"),
}


@pytest.mark.parametrize("kind", FALLBACKS)
def test_what_can_not_be_trained_together_is_trained_one_by_one(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, text = FALLBACKS[kind]
    together._log_once.cache_clear()
    caplog.set_level(logging.INFO, logger="flwr.fl_dp.client")
    units = [data for data in UNITS if len(data.labels) in (0, 4, 8, 20)]  # BatchNorm wants two
    results = []
    for company in (units, units[1:]):
        results.append(rows_of(model, company, training()))
        assert sorted(results[-1]) == list(range(len(company)))
    for place in range(len(units) - 1):  # the coins of each are its own
        assert torch.equal(results[0][place + 1], results[1][place])
    (line,) = [line for line in caplog.messages if "one by one" in line]
    assert text in line


def test_on_a_cpu_a_large_model_is_trained_one_by_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    together._log_once.cache_clear()
    caplog.set_level(logging.INFO, logger="flwr.fl_dp.client")
    monkeypatch.setattr(cohort_size, "_CPU_BYTES", 1 << 14)
    rows = rows_of(mlp(), UNITS, training())
    assert "as fast on a CPU" in caplog.text
    assert torch.equal(matrix(rows), alone(mlp(), UNITS, training()))


def test_dropout_of_a_unit_depends_on_no_other_unit_s_data() -> None:
    rows = []
    for kind in ("a label too many", "another shape"):
        fix_draws("the secret seeds")
        rows.append(rows_of(with_dropout(), [UNITS[0], MISFITS[kind], UNITS[4]], training()))
    for place in (0, 2):
        assert torch.equal(rows[0][place], rows[1][place])


class Remembering(nn.Module):
    """Keeps what it has seen outside of its state, and uses it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 10)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        outputs: Tensor = self.linear(x.flatten(1)) * self.passes
        return outputs


def test_what_a_module_remembers_does_not_reach_the_next_units() -> None:
    model, units = Remembering().double(), in_float64([unit(8, seed) for seed in range(5)])
    rows = matrix(rows_of(model, units, training(), at_once=2))
    torch.testing.assert_close(rows, alone(model, units, training()), rtol=0, atol=1e-13)


def test_neither_the_model_nor_the_random_state_is_touched() -> None:
    for model in (layers().eval(), Counting(), with_dropout()):
        before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
        rows_of(model, UNITS, training())
        assert torch.equal(state, torch.random.get_rng_state())
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name])
        assert all(parameter.grad is None for parameter in model.parameters())
    assert not layers().eval().training


# How many at once.


def test_chunks_grow_with_memory_and_are_powers_of_two() -> None:
    assert units_at_once(1 << 20) == 32
    assert units_at_once(3 << 20) == 8
    assert units_at_once(1 << 40) == 1
    assert units_at_once(1 << 20, free_bytes=130 << 20) == 64
    assert units_at_once(1, free_bytes=1 << 40) == units_at_once(1) == 256


@pytest.mark.usefixtures("only_together")
def test_a_chunk_that_does_not_fit_into_memory_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    whole = CohortTraining.rows

    def limited(self: CohortTraining, units: Any, *rest: Any) -> Tensor:
        tried.append(len(units))
        if len(units) > 3:
            raise torch.OutOfMemoryError
        return whole(self, units, *rest)

    monkeypatch.setattr(CohortTraining, "rows", limited)
    units = [unit(4, seed) for seed in range(9)]
    rows = rows_of(mlp(), units, training(), at_once=8)
    assert tried == [8, 4, 2, 2, 2, 2, 1]
    assert torch.equal(matrix(rows), matrix(rows_of(mlp(), units, training())))
