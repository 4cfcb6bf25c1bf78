"""Neighbours whose one record can't be read: what they send differs by one gradient a step."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from owned_clock import OwnedClock
from record_plans import record_plan
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset

from fl_dp.clients import DPSGD, OpacusClient
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Account
from fl_dp.plan import RecordPlan

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

RECORDS, STEPS, BAD = 20, 2, 7
NOISE = 0.01
PLAN = record_plan(epsilon=1e6, noise_multiplier=NOISE, steps=STEPS, participations=3)
HOW = DPSGD(
    optimizer=lambda parameters: SGD(parameters, lr=1.0),
    criterion=nn.L1Loss(),  # its gradient is the same at every model here
    expected_batch_size=1.0,
)


def nothing() -> None:
    """Be a record like all others."""


def raises() -> None:
    raise OSError("one record can't be read")


def exits() -> None:
    os._exit(1)


def leaves() -> None:
    raise SystemExit(1)


class Panic(BaseException):
    """A native library's, which is no `Exception`."""


def panics() -> None:
    raise Panic("one record can't be tokenised")


class Records(Dataset[tuple[Tensor, Tensor]]):
    """Records that each move a step by the clipping norm; one does something else before."""

    def __init__(self, bad: Callable[[], None]) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if row == BAD:
            self.bad()
        return torch.ones(1), torch.full((1,), 1e6)


def sent_of(
    ledger: Path, records: Records, *, plan: RecordPlan = PLAN, how: DPSGD = HOW, **loader: Any
) -> float:
    """Return what one participation adds to the model's only number."""
    client = OpacusClient(
        nn.Linear(1, 1, bias=False),
        DataLoader(records, **loader),
        plan=plan,
        ledger=ledger,
        account=Account(unit="record", source="ward"),
        dp_sgd=how,
    )
    return fitted(client)


def fitted(client: OpacusClient) -> float:
    [sent], _, _ = client.fit([np.zeros((1, 1), np.float32)], {"server-round": 1})
    return float(sent[0, 0])


@pytest.mark.parametrize(
    ("bad", "loader", "at_once"),
    [
        (raises, {}, 3),
        (raises, {"num_workers": 2}, None),
        (exits, {"num_workers": 1}, None),
        (exits, {"num_workers": 2, "timeout": 60}, 3),
        (leaves, {}, None),
        (leaves, {"num_workers": 1}, 3),
        (panics, {}, None),
        (panics, {"num_workers": 2}, 3),
        (None, {"num_workers": 1, "timeout": 60}, None),  # hangs
    ],
)
def test_a_record_that_can_not_be_read_moves_what_is_sent_by_its_own_gradient_alone(
    tmp_path: Path,
    clock: OwnedClock,
    bad: Callable[[], None] | None,
    loader: dict[str, Any],
    at_once: int | None,
) -> None:
    """By 1 a step, where all others move it by 19; the noise is beyond 6 deviations once in 1e9."""
    how = replace(HOW, physical_batch_size=at_once)
    slack = 6.0 * NOISE * np.sqrt(2 * STEPS)
    usual = sent_of(tmp_path / "usual.db", Records(nothing), how=how, **loader)
    assert usual == pytest.approx(STEPS * RECORDS, abs=slack)
    sent = sent_of(tmp_path / "bad.db", Records(bad or clock.hang), how=how, **loader)
    assert usual - sent == pytest.approx(STEPS, abs=slack)


def test_every_record_may_end_its_worker(tmp_path: Path) -> None:
    class Fatal(Records):
        def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
            os._exit(1)

    # Nothing is left but the noise, as of records that each raise.
    plan = replace(PLAN, steps=1)
    sent = sent_of(tmp_path / "ledger.db", Fatal(nothing), plan=plan, num_workers=2)
    assert 0.0 < abs(sent) < 6.0 * NOISE


def test_workers_that_can_not_start_are_no_record_s_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent = sent_of(tmp_path / "l.db", Records(nothing), num_workers=1, worker_init_fn=exit)
    assert abs(sent) < 1.0
    assert "worker_init_fn" in caplog.text


def test_workers_of_a_loader_have_seeds_of_their_own(tmp_path: Path) -> None:
    class Random(Records):
        def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
            (tmp_path / str(row)).write_text(f"{torch.rand(())} {np.random.random()}")
            return super().__getitem__(row)

    plan, how = replace(PLAN, steps=1), replace(HOW, physical_batch_size=5)
    sent_of(tmp_path / "ledger.db", Random(nothing), plan=plan, how=how, num_workers=2)
    drawn = {(tmp_path / str(row)).read_text() for row in range(RECORDS)}
    assert len(drawn) == RECORDS


# What can't be isolated shows once a run.


def on_node(folder: Path, run: int, bad: Callable[[], None]) -> float:
    """Take part in a run of a real node's, and return what was sent."""
    node: dict[str, Any] = {"dp-ledger-path": str(folder / "ledger.db"), "dp-unit-name": "ward"}
    client = OpacusClient.on_node(
        Context(run, 1, node, RecordDict(), {}),
        nn.Linear(1, 1, bias=False),
        DataLoader(Records(bad)),
        plan=PLAN,
        dp_sgd=HOW,
    )
    return fitted(client)


def charges(folder: Path) -> int:
    with NodeLedger.read(folder / "ledger.db") as ledger:
        return ledger.spendings[0].charges


def test_a_record_that_ends_the_process_shows_once_a_run(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=on_node, args=(tmp_path, 7, exits))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert charges(tmp_path) == 1
    # Whatever would have been read: nothing is, and nothing is charged.
    for bad in (exits, nothing):
        assert on_node(tmp_path, 7, bad) == 0.0
    assert charges(tmp_path) == 1
    assert on_node(tmp_path, 8, nothing) > STEPS * (RECORDS - 1)
    assert on_node(tmp_path, 8, nothing) > STEPS * (RECORDS - 1)


def test_an_owner_who_knows_the_cause_may_take_the_mark_away(tmp_path: Path) -> None:
    def breaks() -> None:
        raise KeyboardInterrupt  # as an owner does who stops the node

    with pytest.raises(KeyboardInterrupt):
        on_node(tmp_path, 7, breaks)
    assert on_node(tmp_path, 7, nothing) == 0.0
    [mark] = tmp_path.glob("ledger.db.unfinished-run-7-*")
    assert "Remove this file" in mark.read_text()
    mark.unlink()
    assert on_node(tmp_path, 7, nothing) > STEPS * (RECORDS - 1)
    assert not list(tmp_path.glob("*.unfinished-*"))
