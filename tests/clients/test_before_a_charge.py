"""What a loader's code, a model and an example say is found before a charge; no record is."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from record_plans import record_plan
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from fl_dp.clients import DPSGD, NodeRecords, OpacusClient
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account

STEPS, RECORDS, NOISE = 2, 20, 0.01
SLACK = 6.0 * NOISE * np.sqrt(STEPS)
PLAN = record_plan(epsilon=1e6, noise_multiplier=NOISE, steps=STEPS, participations=3)
HOW = DPSGD(
    optimizer=lambda parameters: SGD(parameters, lr=1.0),
    criterion=nn.L1Loss(),  # its gradient is the same at every model here
    expected_batch_size=1.0,
)
SPAWN: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}


class Records(Dataset[tuple[Tensor, Tensor]]):
    """Records that each move a step by the clipping norm."""

    def __init__(self, count: int = RECORDS, **attributes: Any) -> None:
        self.count = count
        vars(self).update(attributes)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        return torch.ones(1), torch.full((1,), 1e6)


class Held(Records):
    """The same from a list, which may hold anything."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(len(items))
        self.items = items

    def __getitem__(self, row: int) -> Any:
        return self.items[row], torch.full((1,), 1e6)


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter([(torch.ones(1), torch.full((1,), 1e6))] * RECORDS)


def local(count: int = RECORDS) -> Records:
    class Local(Records):
        """A class within a function, which no other process finds."""

    return Local(count)


def sent_of(
    ledger: Path, loader: Any, *, model: nn.Module | None = None, how: DPSGD = HOW
) -> tuple[float, int]:
    """What one participation adds to the model's only number, and the charges of the ledger."""
    client = OpacusClient(
        nn.Linear(1, 1, bias=False) if model is None else model,
        loader,
        plan=PLAN,
        ledger=ledger,
        account=Account(unit="record", source="ward"),
        dp_sgd=how,
    )
    [sent], _, _ = client.fit([np.zeros((1, 1), np.float32)], {"server-round": 1})
    if not ledger.exists():
        return float(sent[0, 0]), 0
    with NodeLedger.read(ledger) as opened:
        return float(sent[0, 0]), sum(spending.charges for spending in opened.spendings)


Make = Callable[[int], DataLoader[Any]]
THAT_CAN_NOT_START: dict[str, Make] = {
    "lambda as collation": lambda n: DataLoader(
        Records(n), collate_fn=lambda items: default_collate(items), **SPAWN
    ),
    "lambda as worker_init_fn": lambda n: DataLoader(
        Records(n), worker_init_fn=lambda _: None, **SPAWN
    ),
    "local class": lambda n: DataLoader(local(n), **SPAWN),
    "local class in a subset": lambda n: DataLoader(Subset(local(n), range(n)), **SPAWN),
    "lock": lambda n: DataLoader(Records(n, lock=threading.Lock()), **SPAWN),
    "lambda as transform": lambda n: DataLoader(Records(n, transform=lambda x: x), **SPAWN),
    "worker_init_fn that fails": lambda n: DataLoader(
        Records(n), num_workers=1, worker_init_fn=exit
    ),
}


@pytest.mark.parametrize("records", [0, 1, RECORDS])
@pytest.mark.parametrize("name", THAT_CAN_NOT_START)
def test_workers_that_can_not_start_are_found_before_a_charge(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, records: int
) -> None:
    assert sent_of(tmp_path / "ledger.db", THAT_CAN_NOT_START[name](records)) == (0.0, 0)
    assert "no worker of the loader can start" in caplog.text
    assert "num_workers=0" in caplog.text


@pytest.mark.parametrize("name", THAT_CAN_NOT_START)
def test_where_only_a_charge_shows_the_loader_this_process_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    made = THAT_CAN_NOT_START[name]
    sent, charges = sent_of(tmp_path / "ledger.db", lambda: made(RECORDS))
    assert sent == pytest.approx(STEPS * RECORDS, abs=SLACK)
    assert charges == 1
    assert "this process reads" in caplog.text


def test_a_record_that_can_not_be_sent_to_a_worker_decides_for_itself_alone(
    tmp_path: Path,
) -> None:
    items: list[Any] = [torch.ones(1)] * (RECORDS - 1)
    for number, last in enumerate((torch.ones(1), threading.Lock(), lambda: None)):
        workers = SPAWN if number else {"num_workers": 1}
        sent, charges = sent_of(
            tmp_path / f"{number}.db", DataLoader(Held([*items, last]), **workers)
        )
        assert sent == pytest.approx(STEPS * (RECORDS - bool(number)), abs=SLACK)
        assert charges == 1


@pytest.mark.parametrize("workers", [{}, SPAWN])
def test_a_stream_is_refused_before_a_charge(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, workers: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="rows of a Stream can't be drawn"):
        sent_of(tmp_path / "ledger.db", DataLoader(Stream(), **workers))
    assert not (tmp_path / "ledger.db").exists()
    # Its function is called after the charge alone: noise, and the same line.
    sent, charges = sent_of(tmp_path / "later.db", lambda: DataLoader(Stream()))
    assert 0.0 < abs(sent) <= SLACK and charges == 1
    assert "rows of a Stream can't be drawn" in caplog.text


def test_features_of_another_dtype_than_the_model_s_are_found_by_the_example(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = torch.ones(2, 1, dtype=torch.float64)
    loader = DataLoader(Records())
    how = replace(HOW, example=(numbers, torch.zeros(2, 1)))
    assert sent_of(tmp_path / "ledger.db", loader, how=how) == (0.0, 0)
    assert "DPSGD(example=...), of torch.float64 (2, 1), torch.float32 (2, 1)" in caplog.text
    assert "The model's parameters are torch.float32" in caplog.text
    fitting = replace(HOW, example=(numbers.float(), torch.zeros(2, 1)))
    sent, _ = sent_of(tmp_path / "fitting.db", loader, how=fitting)
    assert sent == pytest.approx(STEPS * RECORDS, abs=SLACK)


class NoStep(SGD):
    def step(self, closure: Any = None) -> Any:
        return None


@pytest.mark.parametrize(
    ("optimizer", "line"),
    [
        (lambda parameters: SGD(parameters, lr=0.0), "moves no parameter"),
        (lambda parameters: Adam(parameters, lr=0.0, weight_decay=1.0), "moves no parameter"),
        (lambda parameters: NoStep(parameters, lr=1.0), "moves no parameter"),
        (lambda parameters: SGD([nn.Parameter(torch.ones(1))], lr=1.0), "moves no parameter"),
        (lambda parameters: SGD(parameters, lr=math.inf), "leaves numbers that are not finite"),
        (lambda parameters: SGD(parameters, lr=math.nan), "leaves numbers that are not finite"),
    ],
)
def test_an_optimizer_that_trains_nothing_is_found_before_a_charge(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, optimizer: Any, line: str
) -> None:
    how = replace(HOW, optimizer=optimizer)
    assert sent_of(tmp_path / "ledger.db", DataLoader(Records()), how=how) == (0.0, 0)
    assert line in caplog.text


@pytest.mark.parametrize("rate", [1e-30, 1e-3])
def test_an_optimizer_of_small_steps_trains(tmp_path: Path, rate: float) -> None:
    how = replace(HOW, optimizer=lambda parameters: Adam(parameters, lr=rate))
    _, charges = sent_of(tmp_path / "ledger.db", DataLoader(Records()), how=how)
    assert charges == 1


def test_a_model_of_which_nothing_is_trained_is_refused_before_a_charge(tmp_path: Path) -> None:
    frozen = nn.Linear(1, 1, bias=False).requires_grad_(False)
    with pytest.raises(ValueError, match="every parameter of the model is frozen"):
        sent_of(tmp_path / "ledger.db", DataLoader(Records()), model=frozen)
    assert not (tmp_path / "ledger.db").exists()
    records = NodeRecords(
        model_fn=lambda *_: frozen, loader_fn=lambda *_: pytest.fail("reads records")
    )
    with pytest.raises(ValueError, match="every parameter of the model is frozen"):
        records.arrays_fn(Context(1, 1, {}, RecordDict(), {}), {})
