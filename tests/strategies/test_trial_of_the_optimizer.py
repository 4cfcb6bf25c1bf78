"""A server optimizer that would fail in a round fails on a copy, before anything is charged."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy
from local_grid import LocalGrid, answer_with_update
from trainings import numbers, plan_of, record

from fl_dp import PrivacyLedger
from fl_dp.mechanisms import ScalarMetric
from fl_dp.strategies import Checkpoint, DPFedAvg, RehearsalFailed, UnfitModel

N = 4
LOSS = ScalarMetric(name="loss", low=0.0, high=4.0)


class Run:
    """One try to train two rounds; its ledger stays open."""

    def __init__(self, open_ledger: Callable[..., PrivacyLedger], inner: Any, **of: Any) -> None:
        kind, metrics = of.pop("kind", DPFedAvg), of.pop("metrics", ())
        self.plan = plan_of(N, noise_multiplier=1e-3, rounds=2, metrics=metrics)
        self.ledger = open_ledger(self.plan)
        self.grid = LocalGrid(answer_with_update([{"w": np.full(3, 0.1)}] * N), N)
        self.strategy: DPFedAvg = kind(inner, plan=self.plan, ledger=self.ledger, **of)

    def start(self, rounds: int = 2, **given: Any) -> Any:
        return self.strategy.start(self.grid, record(w=np.zeros(3)), num_rounds=rounds, **given)

    def assert_refused(self, said: str) -> None:
        with pytest.raises(RehearsalFailed, match=said):
            self.start()
        assert self.ledger.rounds_spent == 0
        assert not self.grid.sent
        assert not self.grid.introductions


class ReadsALoss(FedAvg):
    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.losses = [each.content["metrics"]["loss"] for each in replies]
        return super().aggregate_train(server_round, replies)


class OwnMessages(FedAvg):
    def configure_train(self, *given: Any) -> Any:
        messages = list(super().configure_train(*given))
        for message in messages:
            message.metadata.message_type = "train.fine_tune"
        return messages


class Renames(FedAvg):
    def aggregate_train(self, *given: Any) -> Any:
        return record(v=np.zeros(3)), None


class SendsAnother(FedAvg):
    def configure_train(self, number: int, arrays: Any, config: Any, grid: Any) -> Any:
        return super().configure_train(number, record(w=np.ones(3)), config, grid)


class WritesAKey(FedAvg):
    def configure_train(self, number: int, arrays: Any, config: Any, grid: Any) -> Any:
        config["lr"] *= 0.5
        return super().configure_train(number, arrays, config, grid)


REFUSED: dict[type[FedAvg], str] = {
    ReadsALoss: r"ReadsALoss failed with KeyError .*'loss'.* metrics are \['num-examples'\]",
    OwnMessages: r"messages of type 'train\.fine_tune', which no client is asked",
    Renames: "Renames returned arrays of other names or shapes",
    SendsAnother: "sends another model than the last released one",
    WritesAKey: r"WritesAKey failed with KeyError .*'lr'",
}


@pytest.mark.parametrize("inner", REFUSED)
def test_what_would_end_the_first_round_ends_before_it_is_charged(
    open_ledger: Any, inner: type[FedAvg]
) -> None:
    Run(open_ledger, inner()).assert_refused(REFUSED[inner])


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (lambda: FedAdam(eta=0.0), "its model is the one before: write a learning rate above 0"),
        (lambda: FedAvgM(server_learning_rate=0.0), "its model is the one before"),
        (lambda: FedAdam(eta=math.inf), "its model is not finite"),
        (lambda: FedYogi(eta=math.nan), "its model is not finite"),
    ],
)
def test_a_server_optimizer_that_learns_nothing_is_refused_uncharged(
    open_ledger: Any, inner: Callable[[], Strategy], said: str
) -> None:
    """Before, it was charged for all rounds, and returned the first model or none."""
    Run(open_ledger, inner()).assert_refused(said)


def test_a_server_optimizer_of_small_steps_trains(open_ledger: Any) -> None:
    Run(open_ledger, FedAdam(eta=1e-6)).start()


def test_an_error_of_the_subclass_itself_is_found_too(open_ledger: Any) -> None:
    class Broken(DPFedAvg):
        def aggregate_train(self, *given: Any) -> Any:
            raise ZeroDivisionError("of my own")

    Run(open_ledger, FedAvg(), kind=Broken).assert_refused("ZeroDivisionError .*of my own")


def test_a_state_that_no_checkpoint_can_hold_is_found_where_it_will_be_saved(
    open_ledger: Any,
) -> None:
    class Counts(FedAvg):
        seen: Any = None

        def aggregate_train(self, *given: Any) -> Any:
            self.seen = {1, 2}
            return super().aggregate_train(*given)

    kept: list[Checkpoint] = []
    saved = Run(open_ledger, Counts(), after_round=kept.append)
    saved.assert_refused(r"Counts\.seen changed during training and can't be saved")
    assert not kept
    assert Run(open_ledger, Counts()).start().arrays is not None  # nobody saves it


def test_what_a_trial_needs_and_rounds_have_is_there(open_ledger: Any) -> None:
    run = Run(open_ledger, inner := ReadsALoss(), metrics=(LOSS,))
    run.start()
    assert inner.losses != [0.0]  # that of the last round, which has noise in it
    Run(open_ledger, WritesAKey()).start(train_config=ConfigRecord({"lr": 1.0}))


@pytest.mark.parametrize("inner", [FedAdam, FedYogi, FedAvgM, FedProx], ids=lambda k: k.__name__)
def test_a_trial_leaves_nothing_in_the_strategy(
    open_ledger: Any, inner: type[Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean of the trial would move what comes after it."""
    arguments: dict[str, Any] = {"proximal_mu": 0.5} if inner is FedProx else {}
    tried = Run(open_ledger, inner(**arguments))
    monkeypatch.setattr("fl_dp.strategies.server_optimizer._TRIAL_MOVE", 1e6)
    model = numbers(tried.start().arrays)["w"]
    monkeypatch.setattr(type(tried.strategy.optimizer), "rehearse", lambda *_, **__: None)
    untried = numbers(Run(open_ledger, inner(**arguments)).start().arrays)["w"]
    np.testing.assert_allclose(model, untried, atol=0.05)


def test_a_strategy_that_can_t_be_copied_is_said_and_trained(
    open_ledger: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Locked(FedAvg):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    Run(open_ledger, Locked()).start()
    assert "Locked can't be tried before the first charge: it can't be copied" in caplog.text


def test_none_keeps_the_model_as_in_flower(open_ledger: Any) -> None:
    class EverySecond(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            mean, _ = super().aggregate_train(server_round, replies)
            return (mean, None) if server_round == 1 else (None, MetricRecord({"skipped": 1}))

    run, kept = Run(open_ledger, EverySecond()), []
    result = run.start(evaluate_fn=lambda _, arrays: kept.append(numbers(arrays)["w"]))
    assert (run.ledger.rounds_spent, run.ledger.rounds_committed) == (2, 2)
    np.testing.assert_allclose(kept[1], 0.1, atol=0.02)
    np.testing.assert_array_equal(kept[2], kept[1])
    assert dict(result.train_metrics_clientapp[2]) == {"skipped": 1}


def test_what_a_round_can_t_do_with_is_still_said_first(open_ledger: Any) -> None:
    """A BatchNorm is no matter of the optimizer's, nor is a model that no update makes finite."""
    run = Run(open_ledger, FedAvg())
    normed = record(
        **{"n.running_mean": np.zeros(2), "n.running_var": np.ones(2), "n.weight": np.ones(2)}
    )
    for arrays in (normed, record(w=np.array([0.0, np.nan])), record(w=np.array([np.inf]))):
        with pytest.raises(UnfitModel):
            run.strategy.start(run.grid, arrays, num_rounds=1)
    assert run.ledger.rounds_spent == 0
