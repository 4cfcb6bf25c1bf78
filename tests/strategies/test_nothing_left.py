"""A budget that pays for no round at all: an error, never an untrained model and a success."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import Result
from local_grid import LocalGrid, answer_with_update
from trainings import budgeted, plan_of, record

from fl_dp import PrivacyLedger
from fl_dp.accounting import PrivacyBudgetExhausted, VisibleSampling
from fl_dp.strategies import Checkpoint, DPFedAvg

N = 10
INITIAL = record(w=np.zeros(2))


def grid() -> LocalGrid:
    return LocalGrid(answer_with_update([{"w": np.ones(2)}] * N), N)


def strategy(folder: Path, **options: Any) -> DPFedAvg:
    return budgeted(folder, num_clients=N, **options)


def train(made: DPFedAvg, at: LocalGrid | None = None, **options: Any) -> Result:
    return made.start(at if at is not None else grid(), INITIAL, num_rounds=2, **options)


def test_a_second_run_on_a_spent_ledger_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    train(strategy(tmp_path))
    kept: list[Checkpoint] = []
    evaluated: list[int] = []
    second, nodes = strategy(tmp_path, after_round=kept.append), grid()
    with pytest.raises(PrivacyBudgetExhausted, match="is spent") as refused:
        train(second, nodes, evaluate_fn=lambda server_round, _: evaluated.append(server_round))
    for advice in (
        "ledger.db",
        "resume(checkpoint)",
        "name= of its own",
        "after the 2 that are spent",
    ):
        assert advice in str(refused.value)
    assert not kept  # the checkpoint of the trained model is not overwritten by the fresh one
    assert not evaluated
    assert not nodes.sent
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.rounds_spent == 2


def test_with_a_checkpoint_the_second_run_returns_the_trained_model(tmp_path: Path) -> None:
    kept: list[Checkpoint] = []
    first = train(strategy(tmp_path, after_round=kept.append))
    second = strategy(tmp_path)
    second.resume(kept[1])  # after round 1, whose successor is spent
    result = train(second)
    assert second.budget_exhausted
    np.testing.assert_array_equal(result.arrays["w"].numpy(), kept[1].model["w"].numpy())
    assert not np.array_equal(result.arrays["w"].numpy(), first.arrays["w"].numpy())


def test_a_checkpoint_from_before_the_first_round_is_no_trained_model(tmp_path: Path) -> None:
    kept: list[Checkpoint] = []
    train(strategy(tmp_path, after_round=kept.append))
    second = strategy(tmp_path)
    second.resume(kept[0])
    with pytest.raises(PrivacyBudgetExhausted, match="is spent"):
        train(second)


def test_clients_that_are_all_at_their_cap_are_the_same_error(tmp_path: Path) -> None:
    plan = plan_of(N, rounds=2, sampling=VisibleSampling(cohort=N), participation_cap=1)
    path = tmp_path / "capped.db"
    train_reply = grid().answer

    def named(message: Message, partition: int) -> Message | None:
        if message.metadata.message_type == "train":
            return train_reply(message, partition)
        name = ConfigRecord({"name": f"clinic {partition}"})
        return Message(RecordDict({"config": name}), reply_to=message)

    with PrivacyLedger.open(path, plan) as ledger:
        first = train(DPFedAvg(plan=plan, ledger=ledger), LocalGrid(named, N, introduces=True))
    assert first.arrays["w"].numpy().any()
    kept: list[Checkpoint] = []
    with (
        PrivacyLedger.open(path, plan) as ledger,
        pytest.raises(
            PrivacyBudgetExhausted, match=r"is spent.*has taken part as often as .* of 1 allows"
        ),
    ):
        train(
            DPFedAvg(plan=plan, ledger=ledger, after_round=kept.append),
            LocalGrid(named, N, introduces=True),
        )
    assert not kept


def test_a_training_that_begins_anew_on_a_ledger_in_use_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strategy(tmp_path).start(grid(), INITIAL, num_rounds=1)
    assert "earlier training" not in caplog.text
    second = strategy(tmp_path)
    assert train(second).arrays["w"].numpy().any()
    assert second.rounds_completed == 1
    assert "has 1 rounds of an earlier training" in caplog.text
