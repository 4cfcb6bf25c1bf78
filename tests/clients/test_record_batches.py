"""Batches in which a record is what it would be alone, whatever a collation does with others."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fixed_draws import fix_draws
from record_plans import record_plan
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from fl_dp.clients import DPSGD, FixedLengthPadding, RecordWise, check_training
from fl_dp.clients.per_record.dp_sgd import train_with_dp_sgd
from fl_dp.clients.per_record.record_batches import BatchForm, RecordBatches
from fl_dp.clients.per_record.record_loss import MixesRecords

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

NORM, WIDTH, CLASSES = 0.5, 4, 3
PLAN = record_plan(clipping_norm=NORM)


class MeanPooling(nn.Module):
    """Classifies the mean over positions, padded ones included."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.layer(x).mean(1)))
        return logits


def padded_to_the_longest(records: Any) -> Any:
    sequences, labels = zip(*records, strict=True)
    return pad_sequence(list(sequences), batch_first=True), torch.stack(labels)


def texts(lengths: list[int]) -> Any:
    """Sequences of which each is the same, whatever others there are.

    A list is a data set to PyTorch, and not to its annotations.
    """
    made = []
    for place, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(place)
        sequence = 3.0 + torch.randn(length, WIDTH, generator=generator)
        made.append((sequence, torch.tensor(place % CLASSES)))
    return made


def released(records: Any, collate: Any) -> Tensor:
    model = MeanPooling()
    before = torch.cat([each.detach().clone().reshape(-1) for each in model.parameters()])
    train_with_dp_sgd(
        model,
        DataLoader(records, collate_fn=collate),
        plan=PLAN,
        how=DPSGD(
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
            expected_batch_size=1.0,
        ),
    )
    return before - torch.cat([each.detach().reshape(-1) for each in model.parameters()])


LENGTHS = [3, 4, 5, 5, 6] * 30


@pytest.mark.parametrize(
    "collate", [padded_to_the_longest, FixedLengthPadding(8)], ids=["longest", "fixed"]
)
def test_one_long_record_moves_the_sum_by_one_clipping_norm(collate: Any) -> None:
    without, others = texts(LENGTHS), texts([*LENGTHS, 5000])
    moved = released(others, collate) - released(without, collate)
    assert moved.norm() <= NORM * (1 + 1e-3)
    assert released(without, collate).norm() > 10 * NORM


def test_padding_to_the_longest_as_a_whole_batch_would_move_it_far() -> None:
    # What the test above guards against, by a promise that does not hold.
    promised = RecordWise(padded_to_the_longest)
    moved = released(texts([*LENGTHS, 5000]), promised) - released(texts(LENGTHS), promised)
    assert moved.norm() > 10 * NORM


def test_a_promise_that_does_not_hold_shows_beforehand() -> None:
    for collate in (padded_to_the_longest, FixedLengthPadding(8)):
        check_training(MeanPooling(), DataLoader(texts(LENGTHS), collate_fn=collate))
    loader: DataLoader[Any] = DataLoader(
        texts(LENGTHS), collate_fn=RecordWise(padded_to_the_longest)
    )
    with pytest.raises(MixesRecords, match="FixedLengthPadding"):
        check_training(MeanPooling(), loader)


@pytest.mark.parametrize(
    "odd",
    [
        (torch.ones(WIDTH), 1.0),
        (torch.ones(WIDTH + 1), 1),
        (torch.ones(WIDTH), 1, "more"),
        {"x": torch.ones(WIDTH), "label": 1},
        None,
    ],
    ids=lambda odd: str(odd)[:40],
)
@pytest.mark.parametrize("collate", [None, FixedLengthPadding(WIDTH)], ids=["default", "fixed"])
def test_a_record_of_other_types_changes_nothing_of_the_others(odd: Any, collate: Any) -> None:
    # One fraction among the labels would make all of them fractions, which the loss refuses.
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.layer(x)
            return logits

    usual: list[Any] = [(torch.full((WIDTH,), 1.0 + place), place % 3) for place in range(20)]
    sums = []
    both: Any = (usual, [odd, *usual])  # a list is a data set
    for records in both:
        model = Sum()
        before = model.layer.weight.detach().clone()
        how = DPSGD(
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
            expected_batch_size=1.0,
        )
        train_with_dp_sgd(model, DataLoader(records, collate_fn=collate), plan=PLAN, how=how)
        sums.append(before - model.layer.weight.detach())
    assert (sums[0] - sums[1]).norm() <= NORM * (1 + 1e-3)
    assert sums[0].norm() > 3 * NORM


@pytest.mark.parametrize("part", ["attention", "recurrent"])
def test_dropout_inside_of_layers_is_no_mixing(part: str) -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.5, batch_first=True)
            self.recurrent = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.5, batch_first=True)
            for unused in {"attention", "recurrent"} - {part}:
                delattr(self, unused)
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            made = getattr(self, part)(x)
            states = made[0] if isinstance(made, tuple) else made
            logits: Tensor = self.head(states.mean(1))
            return logits

    x, y = torch.randn(6, 3, WIDTH), torch.arange(6) % CLASSES
    check_training(Dropping(), DataLoader(TensorDataset(x, y)))


@pytest.mark.parametrize("length", [2, 5, 9])
def test_fixed_length_padding_pads_and_cuts_whatever_is_a_sequence(length: int) -> None:
    records = [
        {"ids": list(range(1, n + 1)), "states": torch.ones(n, 2), "label": 1, "name": "x"}
        for n in (3, 7)
    ]
    batch = FixedLengthPadding(length, value=-1)(records)
    assert batch["ids"].shape == (2, length)
    assert batch["states"].shape == (2, length, 2)
    assert batch["label"].tolist() == [1, 1]
    assert batch["ids"][0].tolist() == ([1, 2, 3] + [-1] * 9)[:length]
    assert (batch["states"][0, 3:] == -1).all()


# What a data set makes of a whole batch.


class Transformed(Dataset[Any]):
    """Texts under a transform of whole batches, as Hugging Face's data sets have."""

    def __init__(self, lengths: list[int], transform: Callable[[list[Tensor]], Tensor]) -> None:
        self.texts, self.transform = texts(lengths), transform

    def __len__(self) -> int:
        return len(self.texts)

    def __getitems__(self, rows: list[int]) -> Any:
        sequences, labels = zip(*(self.texts[row] for row in rows), strict=True)
        return list(zip(self.transform(list(sequences)), labels, strict=False))


class Promised(Transformed):
    """Says that records don't meet in it."""

    record_wise = True


def padded(sequences: list[Tensor]) -> Tensor:
    return pad_sequence(sequences, batch_first=True)


def normalised(sequences: list[Tensor]) -> Tensor:
    cut = torch.stack([sequence[:3] for sequence in sequences])
    return 6.0 * cut / max(map(len, sequences))


def as_long_as_the_shortest(sequences: list[Tensor]) -> Tensor:
    shortest = min(map(len, sequences))
    return torch.stack([sequence[:shortest] for sequence in sequences])


TRANSFORMS = {
    "padded": (padded, 5000),
    "normalised": (normalised, 5000),
    "cut": (as_long_as_the_shortest, 1),
}


def moved_by_the_last(kind: type[Transformed], name: str) -> float:
    transform, last = TRANSFORMS[name]
    both = [kind(lengths, transform) for lengths in (LENGTHS, [*LENGTHS, last])]
    without, having = (released(records, None) for records in both)
    assert without.norm() > 5 * NORM
    return float((having - without).norm())


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_of_whole_batches_gets_one_record_at_a_time(name: str) -> None:
    assert moved_by_the_last(Transformed, name) <= NORM * (1 + 1e-3)


def test_declared_record_wise_it_gets_them_all_and_one_moves_the_sum_far() -> None:
    assert moved_by_the_last(Promised, "padded") > 2 * NORM


@pytest.mark.parametrize("subset", [False, True])
def test_rows_of_tensors_are_read_at_once(subset: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = torch.arange(20.0).reshape(10, 2), torch.arange(10)
    records: Dataset[Any] = TensorDataset(features, labels)
    chosen = torch.tensor([1, 8, 3])
    if subset:
        records = Subset(Subset(records, [9, 1, 8, 3]), [1, 2, 3])
        chosen = torch.tensor([1, 8, 3])
    rows = [0, 1, 2] if subset else [1, 8, 3]
    monkeypatch.setattr(TensorDataset, "__getitem__", None)  # would be slow
    [(inputs, targets)] = RecordBatches(records, None, BatchForm()).__getitems__(rows)
    assert torch.equal(inputs, features[chosen])
    assert torch.equal(targets, labels[chosen])


class Augmenting(Dataset[Any]):
    """Adds noise from the process's generators; one record fails before, or seeds them."""

    def __init__(self, first: Callable[[], None]) -> None:
        self.first = first

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> Any:
        if row == 0:
            self.first()
        return torch.rand(2), torch.tensor([row, np.random.rand(), random.random()])


def seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def fails() -> None:
    raise OSError("can't be read")


@pytest.mark.parametrize("collate", [None, lambda records: default_collate(records)])
def test_the_coins_of_reading_are_each_record_s_own(collate: Any) -> None:
    drawn = []
    for first in (seeds, fails):
        fix_draws("reading")
        made = RecordBatches(Augmenting(first), collate, BatchForm()).__getitems__([0, 5, 6, 7])
        drawn.append([torch.cat(parts, 1)[-3:] for parts in made])
    assert len(drawn[0][0]) == 3
    assert torch.equal(*(batches[0] for batches in drawn))
    assert len(torch.unique(drawn[0][0])) == drawn[0][0].numel()


def test_reading_leaves_the_coins_of_the_step_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    for first in (seeds, fails):
        torch.manual_seed(1)
        RecordBatches(Augmenting(first), None, BatchForm()).__getitems__([5, 0])
        assert torch.equal(torch.rand(3), expected)


class Whole(Dataset[Any]):
    """Hands out batches, and breaks at one record."""

    def __len__(self) -> int:
        return 10

    def __getitems__(self, rows: list[int]) -> Any:
        if 3 in rows:
            raise RuntimeError("record 3")
        kept = torch.tensor([row for row in rows if row != 5])
        return kept.float().reshape(-1, 1), kept


def test_a_data_set_that_hands_out_batches_loses_only_the_record_that_breaks_it() -> None:
    batches = RecordBatches(Whole(), RecordWise(lambda batch: batch), BatchForm())
    [(inputs, targets)] = batches.__getitems__([1, 2, 3, 4, 5, 6])
    assert targets.tolist() == [1, 2, 4, 6]
    assert inputs.flatten().tolist() == [1, 2, 4, 6]
    assert batches.__getitems__([]) == []
    assert batches.__getitems__([3]) == []


def test_records_of_other_shapes_make_batches_of_their_own() -> None:
    batches = RecordBatches(texts([3, 4, 3, 9]), padded_to_the_longest, BatchForm())
    made = batches.__getitems__([0, 1, 2, 3])
    assert [tuple(inputs.shape) for inputs, _ in made] == [(2, 3, 4), (1, 4, 4), (1, 9, 4)]
    assert [targets.tolist() for _, targets in made] == [[0, 2], [1], [0]]


def test_targets_are_one_tensor() -> None:
    """Of a tuple, its length would count as that of the batch."""
    records: Any = [(torch.ones(2), (torch.tensor(1),)) for _ in range(3)]
    batches = RecordBatches(records, None, BatchForm())
    assert batches.__getitems__([0, 1, 2]) == []
    with pytest.raises(TypeError, match=r"targets of a batch are a (list|tuple): let"):
        batches.alone(0)


def test_a_record_that_would_be_several_is_none() -> None:
    doubled = RecordBatches(
        texts([3, 3]), lambda records: (torch.ones(2, WIDTH), torch.zeros(2)), BatchForm()
    )
    assert doubled.__getitems__([0, 1]) == []


class LastIsBroken(Dataset[tuple[Tensor, Tensor]]):
    """Eight records, of which the last can't be read."""

    def __init__(self) -> None:
        self.read: list[weakref.ref[Tensor]] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row == 7:
            raise ValueError("no such record")
        features = torch.full((3,), float(row))
        self.read.append(weakref.ref(features))
        return features, torch.tensor(0)


def test_a_record_that_fails_keeps_no_other_in_memory() -> None:
    """Its traceback holds the frame that read them: a cycle, which waits for the collector."""
    data = LastIsBroken()
    batches = RecordBatches(data, lambda items: default_collate(items), BatchForm())
    logging.disable(logging.CRITICAL)  # pytest keeps what is logged, with its traceback
    gc.disable()
    try:
        assert len(batches.__getitems__(list(range(8)))) > 0
        assert len(data.read) == 7
        assert [record() for record in data.read if record() is not None] == []
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)
