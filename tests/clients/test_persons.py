"""Persons with several rows: one clipped gradient, one coin and one charge each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from laws import ALARM
from record_plans import record_plan
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from fl_dp.clients import (
    DPSGD,
    FixedLengthPadding,
    LossInOutputs,
    NodeRecords,
    OpacusClient,
    Persons,
    RecordWise,
    check_training,
    exchanged_arrays,
)
from fl_dp.clients.per_record.dp_sgd import PrivateSteps, train_with_dp_sgd
from fl_dp.clients.per_record.module_template import ModuleTemplate
from fl_dp.clients.per_record.persons import rows_of_persons
from fl_dp.clients.per_record.record_loss import loss_of_units
from fl_dp.clients.per_record.record_source import RecordSource
from fl_dp.clients.per_record.single_records import SingleRecords
from fl_dp.clients.record_sums import sum_of_records
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account
from fl_dp.mechanisms import GaussianBundle
from fl_dp.protocol.instruction import RoundInstruction, SumInstruction

FEATURES, CLASSES, NORM = 6, 3, 0.5
CONTEXT = Context(1, 1, {}, RecordDict(), {})
plan_of = partial(record_plan, clipping_norm=NORM, unit="person")
EXAMPLE = (torch.zeros(2, FEATURES), torch.tensor([0, 1]))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def convolutional() -> nn.Module:
    """With layers that note, a normalisation of which each person has copies, and dropout."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 3 * 4, CLASSES),
    )


class OneByOne(nn.Module):
    """Reads a value, which `vmap` can't follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)
        return outputs * (2.0 if x.sum().item() > 1e9 else 1.0)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "notes": perceptron,
    "notes and copies": convolutional,
    "one by one": OneByOne,
}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODELS[name]()


def rows_of(count: int, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, FEATURES, generator=generator),
        torch.randint(0, CLASSES, (count,), generator=generator),
    )


def flat(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().double().reshape(-1) for each in model.parameters()])


def released_sum(model: nn.Module, persons: Any, **how: Any) -> Tensor:
    """What one step of everybody releases, with hardly any noise."""
    trained = copy.deepcopy(model)
    train_with_dp_sgd(
        trained,
        persons,
        plan=plan_of(),
        how=DPSGD(
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
            expected_batch_size=1.0,
            **({"example": EXAMPLE} | how),
        ),
    )
    return flat(model) - flat(trained)


def clipped_mean(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A person's clipped gradient, by autograd on all of its rows."""
    loss = nn.CrossEntropyLoss()(model(x), y)
    gradient = torch.cat(
        [part.reshape(-1) for part in torch.autograd.grad(loss, [*model.parameters()])]
    )
    return gradient * min(1.0, NORM / float(gradient.norm()))


@pytest.mark.parametrize("name", MODELS)
def test_a_sum_is_that_of_persons_mean_gradients_each_clipped_once(name: str) -> None:
    model, (x, y) = model_of(name), rows_of(12)
    owner = np.array([0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3])
    released = released_sum(model, Persons(TensorDataset(x, y), owner))
    expected = sum(clipped_mean(model, x[owner == one], y[owner == one]) for one in range(4))
    assert float((released - expected).norm()) < 1e-3 * NORM
    # The power: clipped row by row it is another sum.
    alone = sum(clipped_mean(model, x[[row]], y[[row]]) for row in range(12))
    assert float((released - alone).norm()) > NORM


def adversarial(count: int) -> tuple[Tensor, Tensor]:
    """Rows that all pull into one direction, as far as they can."""
    return 1e3 * torch.ones(count, FEATURES), torch.zeros(count, dtype=torch.int64)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [1, 2, 100])
def test_a_person_moves_a_sum_by_one_norm_however_many_its_rows(name: str, count: int) -> None:
    model, (x, y), (bad_x, bad_y) = model_of(name), rows_of(10), adversarial(count)
    others = np.repeat(np.arange(5), 2)
    rest = released_sum(model, Persons(TensorDataset(x, y), others))
    rows = TensorDataset(torch.cat([bad_x, x]), torch.cat([bad_y, y]))
    owner = np.concatenate([np.full(count, 7), others])
    whole = released_sum(model, Persons(rows, owner))
    moved = float((whole - rest).norm()) / NORM
    assert 0.5 < moved < 1.001
    if count == 100:  # the power: as rows of their own they move it by as many norms
        alone = released_sum(model, Persons(rows, np.concatenate([100 + np.arange(count), others])))
        assert float((alone - rest).norm()) / NORM > 50.0


def test_a_replaced_person_moves_a_sum_by_two_norms_at_most() -> None:
    model, (x, y), (bad_x, bad_y) = model_of("notes"), rows_of(10), adversarial(30)
    owner = np.repeat(np.arange(5), 2)
    sums = []
    for sign in (1.0, -1.0):
        features, labels = torch.cat([sign * bad_x, x]), torch.cat([bad_y, y])
        rows = TensorDataset(features, labels)
        sums.append(released_sum(model, Persons(rows, np.concatenate([np.full(30, 9), owner]))))
    assert float((sums[0] - sums[1]).norm()) / NORM < 2.002


class Broken(Dataset[tuple[Tensor, Tensor]]):
    """Rows of which one can't be read."""

    def __init__(self, x: Tensor, y: Tensor, broken: int) -> None:
        self.x, self.y, self.broken = x, y, broken

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row == self.broken:
            raise OSError("this row is lost")
        return self.x[row], self.y[row]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_row_that_can_t_be_read_is_left_out_of_its_person_s_mean_alone(workers: int) -> None:
    model, (x, y) = model_of("notes"), rows_of(5)
    owner = ["a", "a", "b", "b", "c"]
    released = released_sum(model, DataLoader(Persons(Broken(x, y, 3), owner), num_workers=workers))
    expected = (
        clipped_mean(model, x[:2], y[:2])
        + clipped_mean(model, x[2:3], y[2:3])
        + clipped_mean(model, x[4:], y[4:])
    )
    assert float((released - expected).norm()) < 1e-3 * NORM


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_row_without_a_finite_gradient_costs_its_person_alone(bad: float) -> None:
    model, (x, y) = model_of("notes"), rows_of(6)
    owner = np.array([0, 0, 1, 1, 2, 2])
    expected = clipped_mean(model, x[:2], y[:2]) + clipped_mean(model, x[4:], y[4:])
    x[2] = bad
    released = released_sum(model, Persons(TensorDataset(x, y), owner))
    assert float((released - expected).norm()) < 1e-3 * NORM


class OfSeveralLengths(Dataset[tuple[Tensor, Tensor]]):
    """Sequences of words, each of its own length."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return torch.full((self.lengths[row],), 1.0 + row), torch.tensor(row % CLASSES)


def test_a_person_of_rows_of_several_shapes_counts_as_none_unless_they_are_padded() -> None:
    model, owner = model_of("notes"), [0, 0, 1]
    texts = OfSeveralLengths([FEATURES, FEATURES - 2, FEATURES])
    padded = FixedLengthPadding(FEATURES)
    with_first = released_sum(model, DataLoader(Persons(texts, owner), collate_fn=padded))
    without = released_sum(model, DataLoader(Persons(texts, owner)))
    x, y = padded([texts[row] for row in range(3)])
    alone = clipped_mean(model, x[2:], y[2:])
    assert float((without - alone).norm()) < 1e-3 * NORM
    both = alone + clipped_mean(model, x[:2], torch.tensor([0, 1]))
    assert float((with_first - both).norm()) < 1e-2 * NORM


class Counting(Dataset[tuple[Tensor, Tensor]]):
    """Counts how often each row is read; a declared batch of rows is read at once."""

    record_wise = True

    def __init__(self, count: int) -> None:
        self.reads = np.zeros(count, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.reads)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        self.reads[rows] += 1
        return torch.zeros(len(rows), FEATURES), torch.zeros(len(rows), dtype=torch.int64)


@pytest.mark.slow
def test_coins_are_the_persons_at_the_plan_s_rate_and_not_the_rows() -> None:
    steps, rate = 300, 0.3
    sizes = [1, 2, 40]
    owner = np.repeat(np.arange(3), sizes)
    rows = Counting(len(owner))
    train_with_dp_sgd(
        model_of("notes"),
        DataLoader(Persons(rows, owner), collate_fn=RecordWise(lambda batch: batch)),
        plan=plan_of(steps=steps, sampling_rate=rate, noise_multiplier=1.0),
        how=DPSGD(expected_batch_size=1.0),
    )
    drawn = [rows.reads[owner == person] for person in range(3)]
    for reads in drawn:
        assert len(set(reads.tolist())) == 1  # all rows of a person, or none
        assert stats.binomtest(int(reads[0]), steps, rate).pvalue > ALARM
    # The power: 40 coins at that rate all agree hardly ever.
    assert rate ** sizes[2] < ALARM


def test_a_step_is_divided_by_persons_of_the_law_and_not_by_rows() -> None:
    (x, y), model = rows_of(40), model_of("notes")
    owner = np.concatenate([np.zeros(37, dtype=int), [1, 2, 3]])
    trained = copy.deepcopy(model)
    train_with_dp_sgd(
        trained,
        Persons(TensorDataset(x, y), owner),
        plan=plan_of(),
        how=DPSGD(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0)),
    )
    total = sum(clipped_mean(model, x[owner == one], y[owner == one]) for one in range(4))
    assert float((flat(model) - flat(trained) - total / 4.0).norm()) < 1e-3 * NORM


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_opacus_ways_clip_rows_and_are_refused(mode: str) -> None:
    how = DPSGD(grad_sample_mode=mode, example=EXAMPLE)
    with pytest.raises(ValueError, match="a person's rows are clipped together"):
        PrivateSteps(model_of("notes"), plan=plan_of(), how=how)


class OwnLoss(nn.Module):
    """Computes its loss itself, of all rows that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": self.layer(x).square().mean()}


def test_a_model_that_computes_its_loss_of_several_rows_is_refused_with_an_example() -> None:
    how = DPSGD(criterion=LossInOutputs(), example=EXAMPLE)
    PrivateSteps(OwnLoss(), plan=record_plan(), how=how)
    with pytest.raises(ValueError, match="one loss of several records"):
        PrivateSteps(OwnLoss(), plan=plan_of(), how=how)


def test_records_and_persons_are_never_taken_for_each_other(tmp_path: Path) -> None:
    records = TensorDataset(*rows_of(4))
    persons = Persons(records, [0, 0, 1, 1])
    with pytest.raises(ValueError, match="nothing says whose each row is"):
        RecordSource(records, unit="person")
    with pytest.raises(ValueError, match="the promise is to records"):
        RecordSource(persons)
    with pytest.raises(ValueError, match="persons are put together last"):
        RecordSource(Subset(persons, [0]), unit="person")
    with pytest.raises(ValueError, match="several rows are the same record"):
        RecordSource(Persons(Subset(records, [0, 0]), ["a", "b"]), unit="person")
    with pytest.raises(ValueError, match="4 rows, and persons of shape"):
        Persons(records, [0, 1])
    account = Account(unit="record", source="ward")
    with pytest.raises(ValueError, match="protects persons, but the account is of a record"):
        OpacusClient(
            model_of("notes"), persons, plan=plan_of(), ledger=tmp_path / "l.db", account=account
        )


def test_a_function_that_returns_the_other_unit_is_noise_after_the_charge(tmp_path: Path) -> None:
    model, ledger = model_of("notes"), tmp_path / "ledger.db"
    client = OpacusClient(
        model,
        lambda: TensorDataset(*adversarial(4)),
        plan=plan_of(),
        ledger=ledger,
        account=Account(unit="person", source="ward"),
        dp_sgd=DPSGD(expected_batch_size=1.0),
    )
    before = [part.detach().numpy().copy() for part in model.parameters()]
    after, *_ = client.fit(before, {})
    moved = sum(float(np.abs(one - other).max()) for one, other in zip(before, after, strict=True))
    assert 0.0 < moved < 1e-3
    with NodeLedger.read(ledger) as read:
        [use] = read.uses
        assert (use.unit, use.charges) == ("person", 1)


def test_a_node_of_a_secure_sum_adds_up_its_persons() -> None:
    model, (x, y) = model_of("notes"), rows_of(7)
    owner = np.array([0, 1, 1, 1, 2, 3, 3])
    records = NodeRecords(
        model_fn=lambda context, config: copy.deepcopy(model),
        loader_fn=lambda context, config: Persons(TensorDataset(x, y), owner),
        unit="person",
    )
    gradients = records(CONTEXT, {}, exchanged_arrays(model))
    assert len(gradients) == 4
    sums, count = gradients.clipped_sum([1, 3], NORM)
    expected = sum(clipped_mean(model, x[owner == one], y[owner == one]) for one in (1, 3))
    total = torch.from_numpy(np.concatenate([part.ravel() for part in sums.values()]))
    assert count == 2 and float((total - expected).norm()) < 1e-5 * NORM


@pytest.mark.parametrize(("unit", "charged"), [("person", "record"), ("record", "person")])
def test_a_sum_of_other_units_than_are_charged_is_refused(unit: str, charged: str) -> None:
    model, rows = model_of("notes"), TensorDataset(*rows_of(4))
    units: Any = Persons(rows, [0, 0, 1, 1]) if unit == "person" else rows
    records = NodeRecords(
        model_fn=lambda context, config: model, loader_fn=lambda context, config: units, unit=unit
    )
    instruction = RoundInstruction(
        server_round=1,
        sampling_rate=1.0,
        max_units=50,
        of_records=True,
        bundle=GaussianBundle(noise_multiplier=1.0, clipping_norms=(NORM,)),
        secure_sum=SumInstruction(rounds=1, unit=charged),
    )
    with pytest.raises(ValueError, match=f"another unit than this app's {unit}"):
        sum_of_records(instruction, exchanged_arrays(model), {}, CONTEXT, records)
    with pytest.raises(ValueError, match="unit must be record or person, got 'client'"):
        NodeRecords(model_fn=records.model_fn, loader_fn=records.loader_fn, unit="client")


def test_persons_are_named_by_numbers_or_texts_and_nobody_s_rows_are_left_out() -> None:
    rows = rows_of_persons(np.array([5, -1, 3, 5, -1]))
    assert [part.tolist() for part in rows] == [[2], [0, 3]]
    assert [part.tolist() for part in rows_of_persons(np.array(["b", "a", "b"]))] == [[1], [0, 2]]
    assert rows_of_persons(np.array([-1, -1])) == []


def test_a_rehearsal_looks_at_persons_too() -> None:
    x, y = rows_of(9)
    persons = Persons(TensorDataset(x, y), [0, 0, 0, 1, 1, 2, 2, 2, 2])
    check_training(model_of("notes"), persons)
    with pytest.raises(ValueError, match="nothing can be trained"):
        check_training(model_of("notes"), Persons(TensorDataset(x[:, :2], y), range(9)))


def test_a_shared_pass_and_single_passes_give_one_gradient() -> None:
    model, loss = model_of("notes and copies"), loss_of_units(nn.CrossEntropyLoss(), "person")
    x, y = rows_of(12)
    x, y = x.view(3, 4, FEATURES), y.view(3, 4)
    template = ModuleTemplate(model)

    def at(squares: Tensor) -> tuple[Tensor, None]:
        return torch.linspace(0.5, 1.0, len(squares)).double(), None

    ways = [
        SingleRecords(template, loss),
        SingleRecords(template, loss, copied=template.parameters),
        SingleRecords(template, loss, one_by_one=True),
    ]
    sums = [
        torch.cat([part.flatten() for part in way.clipped_sums(x, y, at) if part is not None])
        for way in ways
    ]
    for other in sums[1:]:
        assert float((sums[0] - other).norm()) < 1e-5 * float(other.norm())
