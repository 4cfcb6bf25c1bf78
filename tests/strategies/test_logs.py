"""The log of a training: as Flower's own, and what will not act is named."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fl_dp.strategies.unfit_model import float64_error_of
from flat_plans import noised_plan
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy
from local_grid import LocalGrid, answer_with_update
from trainings import budgeted, record

from fl_dp.accounting import PoissonSampling
from fl_dp.mechanisms import ScalarMetric
from fl_dp.plan import SecureSum
from fl_dp.promise import rounded_up
from fl_dp.strategies import DPFedAvg, LawSelection, UnprotectedFedAvg
from fl_dp.updates import VectorLayout

N = 4
INITIAL = record(w=np.zeros(2))


def grid() -> LocalGrid:
    return LocalGrid(answer_with_update([{"w": np.ones(2)}] * N), N)


def test_evaluations_and_the_result_are_logged_as_flower_logs_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flwr")

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": 0.125 + server_round})

    def lines(strategy: Strategy) -> list[str]:
        caplog.clear()
        strategy.start(grid(), INITIAL, num_rounds=2, evaluate_fn=evaluate)
        return [each.getMessage() for each in caplog.records]

    made = budgeted(tmp_path, metrics=(ScalarMetric(name="loss", low=0.0, high=1.0),))
    ours, theirs = lines(made), lines(FedAvg(fraction_evaluate=0.0))
    shared = [
        line for line in theirs if "evaluation" in line or "MetricRecord: {'accuracy'" in line
    ]
    assert len(shared) == 5  # one before training, two a round
    assert [line for line in ours if line in shared] == shared
    results = [each[each.index("Final results:") :] for each in (ours, theirs)]
    assert results[0][-8:] == results[1][-8:]  # the server's evaluations
    assert any("accuracy" in line for line in results[0][-8:])
    assert sum("Aggregated MetricRecord: {'loss'" in line for line in ours) == 2
    assert any(line.startswith("Strategy execution finished in") for line in ours)


class Elaborate(FedAdam):
    """Overrides what private training has no place for."""

    def start(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("not called")

    def configure_evaluate(self, *args: Any) -> Any:
        raise AssertionError("not called")

    def aggregate_evaluate(self, *args: Any) -> Any:
        raise AssertionError("not called")


def average(contents: Any, weight: str) -> MetricRecord:
    return MetricRecord({"loss": contents[0]["metrics"]["loss"]})


UNUSED = {
    "start": (Elaborate(), "after_round"),
    "configure_evaluate": (Elaborate(), "metrics="),
    "fraction_train=0.5": (FedAvg(fraction_train=0.5), "sampling_rate="),
    "fraction_evaluate=0.5": (FedAdam(fraction_evaluate=0.5), "evaluate_fn"),
    "min_available_nodes=3": (FedAvg(min_available_nodes=3), "num_clients="),
    "weighted_by_key='size'": (FedAvg(weighted_by_key="size"), "weight_cap="),
    "train_metrics_aggr_fn": (FedAvg(train_metrics_aggr_fn=average), "metrics="),
}


@pytest.mark.parametrize("name", UNUSED)
def test_what_will_not_act_is_said_once_by_name_with_what_to_use(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner, instead = UNUSED[name]
    budgeted(tmp_path, inner)
    (line,) = [each.getMessage() for each in caplog.records if name in each.getMessage()]
    assert instead in line
    kind = type(inner).__name__
    assert line.startswith((f"{kind}.{name} is overridden", f"{kind}: {name} is not used"))


@pytest.mark.parametrize("inner", [FedAvg(), FedAdam(eta=0.3), FedAvg(fraction_evaluate=0.0)])
def test_a_strategy_as_flower_makes_it_is_told_nothing(
    inner: Strategy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    budgeted(tmp_path, inner).start(grid(), INITIAL, num_rounds=1)
    # Clients that can't say what they will answer with are no matter of the strategy's.
    told = [each for each in caplog.records if each.module != "rehearsal"]
    assert not [each for each in told if each.levelno >= logging.WARNING]


def test_without_a_plan_replies_are_weighted_and_nothing_is_said_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inner = FedAvg(weighted_by_key="size")
    UnprotectedFedAvg(inner, selection=LawSelection(PoissonSampling(sampling_rate=1.0)))
    assert "weighted_by_key" not in caplog.text


def test_an_evaluation_that_a_private_strategy_overrides_or_is_given_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Evaluating(DPFedAvg):
        def configure_evaluate(self, *args: Any) -> Any:
            raise AssertionError("not called")

    made = budgeted(tmp_path, kind=Evaluating, rounds=1)
    made.start(grid(), INITIAL, num_rounds=1, evaluate_config=ConfigRecord({"a": 1}))
    assert "Evaluating.configure_evaluate will not be called" in caplog.text
    assert "evaluate_config is not used" in caplog.text


@pytest.mark.parametrize(
    ("size", "rounds", "said"),
    [(14_000_000, 1000, None), (15_000_000, 1000, "0.00011"), (100_000_000, 1000, "0.00071")],
)
def test_float64_is_named_from_where_it_shows_in_the_last_digit(
    size: int, rounds: int, said: str | None
) -> None:
    options: dict[str, Any] = {"rounds": rounds, "num_clients": 10, "clipping_norm": 1.0}
    plan = noised_plan(100.0, delta=1e-5, sampling_rate=1.0, **options)
    layout = cast(VectorLayout, SimpleNamespace(size=size))
    told = float64_error_of(plan, layout)
    assert told is None if said is None else told is not None and f"may add {said}" in told
    # What stays unsaid is below the last digit of an epsilon as statements print it.
    error = 2.0 * size * rounds * 2.0**-48
    assert (float(rounded_up(error)) > 1e-4) is (said is not None)
    shared = noised_plan(
        100.0,
        delta=1e-5,
        sampling_rate=1.0,
        secure_sum=SecureSum(max_parameters=size),
        **(options | {"rounds": 1}),
    )
    assert shared.slack > 0.0 and float64_error_of(shared, layout) is None


def test_float64_is_named_in_the_log_of_a_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_dp.accounting.shared_noise._SAMPLER", 1e-3)
    budgeted(tmp_path).start(grid(), INITIAL, num_rounds=1)
    assert "float64 may add 0.008 to epsilon" in caplog.text
