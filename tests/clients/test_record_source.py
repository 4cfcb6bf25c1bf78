"""Loaders under DP-SGD: each argument is used, changes nothing, or is refused before a charge."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from hugging_face import Table
from made_modules import Shifts
from PIL import Image
from record_plans import record_plan
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from fl_dp.accounting import PrivacyBudget
from fl_dp.clients import DPSGD, NodeRecords, OpacusClient, RecordWise, check_training
from fl_dp.clients.per_record.dp_sgd import train_with_dp_sgd
from fl_dp.clients.per_record.record_source import RecordSource
from fl_dp.ledger.node import Account

ROWS, MINE = 40, range(10)
PLAN = record_plan(epsilon=100.0, noise_multiplier=0.1)


class Counted(Dataset[tuple[Tensor, Tensor]]):
    """Records that note who was read."""

    def __init__(self) -> None:
        self.read: set[int] = set()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        self.read.add(row)
        return torch.ones(1), torch.tensor(0)


class Streamed(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.ones(1), torch.tensor(0)


class WithoutLength(Dataset[tuple[Tensor, Tensor]]):
    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        raise AssertionError("no row is read")


class OwnOrder(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


EVERYTHING = Counted()
OTHERS = TensorDataset(torch.ones(3, 1), torch.zeros(3).long())


def sampled(sampler: Any) -> DataLoader[Any]:
    return DataLoader(EVERYTHING, batch_size=4, sampler=sampler)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a file's name": (lambda: "records.csv", r"rows of a str .*write TensorDataset\(inputs, targ"),
    "row numbers": (lambda: range(3), "rows of a range are no pairs"),
    "an array": (lambda: np.ones((3, 2)), "rows of a ndarray are no pairs"),
    "a tensor": (lambda: torch.ones(3, 2), "rows of a Tensor are no pairs"),
    "some rows": (
        lambda: sampled(SubsetRandomSampler(MINE)),
        r"SubsetRandomSampler would be ignored: write DataLoader\(Subset\(everything, mine\)\)",
    ),
    "weights": (lambda: sampled(WeightedRandomSampler([1.0] * ROWS, 5)), "WeightedRandomSampler"),
    "rows as a list": (lambda: sampled([1, 2]), "sampler=list"),
    "a worker's part": (
        lambda: sampled(DistributedSampler(EVERYTHING, num_replicas=2, rank=0)),
        "DistributedSampler",
    ),
    "another data set's rows": (lambda: sampled(SequentialSampler(OTHERS)), "SequentialSampler"),
    "a random part": (lambda: sampled(RandomSampler(EVERYTHING, num_samples=5)), "RandomSampler"),
    "with replacement": (
        lambda: sampled(RandomSampler(EVERYTHING, replacement=True)),
        "RandomSampler",
    ),
    "batches of one's own": (
        lambda: DataLoader(
            EVERYTHING, batch_sampler=BatchSampler(SubsetRandomSampler(MINE), 4, False)
        ),
        "batch_sampler=BatchSampler would be ignored",
    ),
    "no batches": (lambda: DataLoader(EVERYTHING, batch_size=None), "batch_size=None"),
    "a dropped rest": (lambda: DataLoader(EVERYTHING, 4, drop_last=True), "drop_last"),
    "a time of no worker": (lambda: DataLoader(EVERYTHING, timeout=5), "write num_workers=1"),
    "an order of its own": (lambda: OwnOrder(EVERYTHING), "OwnOrder"),
    "a stream": (lambda: DataLoader(Streamed()), r"Streamed can't be drawn: write list\(records\)"),
    "no length": (lambda: WithoutLength(), "WithoutLength can't be drawn"),
    "several data sets": (lambda: {"train": EVERYTHING}, r"write one of them.*data\['train'\]"),
    "a row six times": (
        lambda: Subset(EVERYTHING, [3] * 6),
        r"the same record, .* name each row once in Subset\(everything, mine\)",
    ),
    "a row by both its numbers": (lambda: Subset(EVERYTHING, [-1, ROWS - 1]), "same record"),
    "a subset's row again": (
        lambda: DataLoader(Subset(Subset(EVERYTHING, [4, 5]), [0, 1, 0])),
        "same record",
    ),
    "rows of two parts": (
        lambda: ConcatDataset([Subset(EVERYTHING, [0, 1]), OTHERS, Subset(EVERYTHING, [1, 2])]),
        "same record",
    ),
    "a data set and itself": (lambda: ConcatDataset([OTHERS, OTHERS]), "same record"),
}

TAKEN: dict[str, Callable[[], Any]] = {
    "a data set": lambda: EVERYTHING,
    "a list": lambda: [EVERYTHING[0]] * 3,
    "an order": lambda: DataLoader(EVERYTHING, 32, shuffle=True),
    "an order of a seed": lambda: DataLoader(
        EVERYTHING, shuffle=True, generator=torch.Generator().manual_seed(0)
    ),
    "the default order by name": lambda: sampled(RandomSampler(EVERYTHING)),
    "speed": lambda: DataLoader(
        EVERYTHING, 8, num_workers=1, prefetch_factor=4, persistent_workers=True, timeout=60
    ),
    "some rows": lambda: Subset(EVERYTHING, MINE),
    "a split": lambda: random_split(EVERYTHING, [10, 30])[0],
    "rows of two parts": lambda: ConcatDataset([Subset(EVERYTHING, [0, 1]), OTHERS]),
    "as many rows of two data sets": lambda: ConcatDataset([OTHERS, Counted()]),
}


def client(source: Any, ledger: Path) -> OpacusClient:
    return OpacusClient(
        nn.Linear(1, 2),
        source,
        plan=PLAN,
        ledger=ledger,
        account=Account(unit="record", source="ward"),
        dp_sgd=DPSGD(expected_batch_size=10.0),
    )


def node(source: Any) -> Any:
    model = nn.Linear(1, 2)
    records = NodeRecords(model_fn=lambda *_: model, loader_fn=lambda *_: source)
    return records(Context(1, 1, {}, RecordDict(), {}), {}, ArrayRecord(model.state_dict()))


@pytest.mark.parametrize(("make", "line"), REFUSED.values(), ids=REFUSED)
def test_what_would_not_be_used_whole_is_refused_before_a_charge(
    make: Callable[[], Any], line: str, tmp_path: Path
) -> None:
    EVERYTHING.read.clear()
    source, ledger = make(), tmp_path / "ledger.db"
    uses: list[Callable[[], Any]] = [
        lambda: client(source, ledger),
        lambda: train_with_dp_sgd(nn.Linear(1, 2), source, plan=PLAN, how=DPSGD()),
        lambda: check_training(nn.Linear(1, 2), source),
        lambda: node(source),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=line) as refused:
            use()
        assert "\n" not in str(refused.value)
    assert not ledger.exists() and not EVERYTHING.read


@pytest.mark.parametrize("make", TAKEN.values(), ids=TAKEN)
def test_a_loader_of_all_its_data_set_is_taken(make: Callable[[], Any]) -> None:
    source = make()
    rows: Any = source.dataset if isinstance(source, DataLoader) else source
    assert len(RecordSource(source)) == len(rows)


def test_each_argument_of_a_loader_is_used_or_refused_or_named_as_harmless() -> None:
    """A new version's new argument fails here until somebody has decided about it."""
    decided = {"dataset", "collate_fn", "num_workers", "timeout", "worker_init_fn"}
    decided |= {"multiprocessing_context", "pin_memory"}  # used
    decided |= {"sampler", "batch_sampler", "drop_last"}  # refused
    decided |= {"batch_size", "shuffle", "generator"}  # replaced by secret coins
    decided |= {"prefetch_factor", "persistent_workers", "pin_memory_device", "in_order"}  # speed
    assert set(inspect.signature(DataLoader).parameters) == decided


def test_some_rows_are_all_that_is_read() -> None:
    EVERYTHING.read.clear()
    mine = DataLoader(Subset(EVERYTHING, MINE), batch_size=4, shuffle=True)
    train_with_dp_sgd(nn.Linear(1, 2), mine, plan=PLAN, how=DPSGD())
    assert EVERYTHING.read == set(MINE)


def test_what_a_function_returns_is_looked_at_after_the_charge_and_then_only_noise_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function may read records, so the charge comes first."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    EVERYTHING.read.clear()
    made = client(lambda: sampled(SubsetRandomSampler(MINE)), tmp_path / "ledger.db")
    start = [np.zeros((2, 1), np.float32), np.zeros(2, np.float32)]
    sent, _, _ = made.fit(start, {"server-round": 1})
    assert not EVERYTHING.read and any(array.any() for array in sent)
    assert "SubsetRandomSampler would be ignored" in caplog.text


class Stored(Dataset[tuple[Tensor, Tensor]]):
    """Records that are handed out as they are kept."""

    def __init__(self) -> None:
        self.x, self.y = torch.arange(6.0)[:, None], torch.zeros(6).long()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row], self.y[row]


def the_only(records: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A collation without a copy."""
    [(x, y)] = records
    return x[None], y[None]


@pytest.mark.parametrize("collate", [None, the_only, RecordWise(the_only)])
@pytest.mark.parametrize("at_once", [None, 1])
def test_no_model_writes_into_the_data(collate: Any, at_once: int | None) -> None:
    records = Stored()
    loader = DataLoader(records, collate_fn=collate)
    how = DPSGD(physical_batch_size=at_once)
    train_with_dp_sgd(Shifts(1, 2), loader, plan=replace(PLAN, steps=3), how=how)
    assert torch.equal(records.x, torch.arange(6.0)[:, None])


# Tables of Hugging Face.


def table(rows: int = 8) -> Table:
    labels = [row % 2 for row in range(rows)]
    x = [[5.0 * label, -5.0 * label + 1.0] for label in labels]
    return Table({"x": x, "label": labels, "name": ["someone"] * rows})


def as_it_comes(data: Table) -> Table:
    return data


def in_torch(data: Table) -> Table:
    return data.with_format("torch")


def transformed(data: Table) -> Table:
    return data.with_transform(lambda batch: batch | {"x": list(map(torch.tensor, batch["x"]))})


def in_a_loader(data: Table) -> Any:
    return DataLoader(data, batch_size=4, shuffle=True)  # type: ignore[arg-type]  # a Dataset in all but its class


@pytest.mark.parametrize("form", [as_it_comes, in_torch, transformed, in_a_loader])
@pytest.mark.parametrize("function", [False, True])
def test_a_table_of_hugging_face_trains_as_its_tensors_do(
    form: Callable[[Table], Any], function: bool, tmp_path: Path
) -> None:
    """With next to no noise: the steps are those of the same records in a `TensorDataset`."""
    x = torch.tensor(table()["x"])
    tensors = TensorDataset(x, torch.tensor(table()["label"]))
    quiet = replace(PLAN, noise_multiplier=1e-6, budget=PrivacyBudget(epsilon=1e18, delta=1e-5))
    start = [np.zeros((2, 2), np.float32), np.zeros(2, np.float32)]

    def sent(source: Any, ledger: str) -> list[Any]:
        client = OpacusClient(
            nn.Linear(2, 2),
            (lambda: source) if function else source,
            plan=quiet,
            ledger=tmp_path / ledger,
            account=Account(unit="record", source="ward"),
            dp_sgd=DPSGD(expected_batch_size=8.0),
        )
        return client.fit(start, {"server-round": 1})[0]

    expected = sent(tensors, "tensors.db")
    assert np.abs(expected[0]).max() > 0.01
    for one, other in zip(sent(form(table()), "table.db"), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_pictures_of_a_table_are_channels_of_numbers(mode: str, channels: int) -> None:
    pictures = [Image.new(mode, (4, 4), "white") for _ in range(3)]
    model = nn.Sequential(nn.Conv2d(channels, 2, 4), nn.Flatten())
    check_training(model, Table({"img": pictures, "label": [0, 1, 0]}))
