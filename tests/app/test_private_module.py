"""`train_private`: a module and arrays of one's own, and what is refused before a ledger exists."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accelerator import noise_source
from fl_dp.accelerator.device_gaussian import DeviceGaussian
from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.app import train_private
from fl_dp.mechanisms import FixedClipping
from fl_dp.plan import DistributedPlan, LocalPlan, SecureSum

CLIENTS, ROUNDS = 40, 4
BUDGET: dict[str, Any] = {"epsilon": 8.0, "rounds": ROUNDS, "clipping_norm": 1.0}


PROMISE: dict[str, Any] = {
    "budget": PrivacyBudget(epsilon=50.0, delta=1e-3),
    "rounds": 2,
    "num_clients": CLIENTS,
}
CLIPPING = FixedClipping(norm=1.0)
NO_PAIR: Any = np.zeros((8, 3))


def local_plan() -> LocalPlan:
    return LocalPlan(clipping=CLIPPING, **PROMISE)


def blobs(count: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Two classes that a line tells apart."""
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, 2, count)
    records = draws.normal(size=(count, 3)) * 0.1 + np.where(labels, 1.0, -1.0)[:, None]
    return records.astype(np.float32), labels


def with_one(value: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Records of which one number is another."""
    records, labels = blobs(18)
    changed = records.astype(np.float64)
    changed[5, 1] = value
    return changed, labels


def complex_labels() -> tuple[NDArray[Any], NDArray[Any]]:
    records, labels = blobs(9)
    return records, labels + 1j


def line() -> nn.Linear:
    module = nn.Linear(3, 2)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return module


def moved(model: nn.Module) -> None:
    """Contribute something: a client that returns the model as it came counts as absent."""
    with torch.no_grad():
        next(model.parameters()).add_(1.0)


def clients(count: int = CLIENTS) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    return [blobs(8, seed) for seed in range(count)]


def test_a_module_learns_from_arrays_and_says_what_was_promised(tmp_path: Path) -> None:
    module, ledger = line(), tmp_path / "ledger.db"
    trained = train_private(module, clients(), **BUDGET, test=blobs(200, 99), ledger=ledger)
    assert len(trained.accuracies) == ROUNDS + 1
    assert trained.accuracy == trained.accuracies[-1] > 0.9 > trained.accuracies[0]
    assert 0.9 * 8.0 < trained.epsilon <= 8.0
    assert trained.delta == pytest.approx(CLIENTS**-1.1)
    assert not module.weight.any() and not trained.model.training
    with PrivacyLedger.read(ledger) as spent:
        assert spent.rounds_committed == ROUNDS
        assert spent.epsilon().best == trained.epsilon


def test_the_noise_of_each_round_is_drawn_where_the_module_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_source, "_draws_there", lambda device, size: True)
    draw, drawn = DeviceGaussian.draw, []

    def noted(self: DeviceGaussian, count: int, start: Tensor) -> tuple[Tensor, Tensor]:
        drawn.append(count)
        return draw(self, count, start)

    monkeypatch.setattr(DeviceGaussian, "draw", noted)
    trained = train_private(line(), clients(), **BUDGET, test=blobs(200, 99), ledger=tmp_path / "l")
    assert drawn == [8] * ROUNDS  # all coordinates of a line, once a round
    assert trained.accuracies[-1] > 0.9


def test_without_a_ledger_it_says_that_a_second_training_is_not_added(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    for _ in range(2):
        train_private(line(), clients(), **BUDGET, progress=False)
    assert "thrown away" in caplog.text and not any(tmp_path.iterdir())


def test_a_budget_that_promises_nothing_is_called_so(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    for epsilon in (50.0, 500.0):
        budget = BUDGET | {"epsilon": epsilon, "ledger": tmp_path / f"{epsilon:g}.db"}
        train_private(line(), clients(), **budget, progress=False)
        assert ("NO PRIVACY: epsilon 500 promises nothing" in caplog.text) is (epsilon == 500.0)


def test_a_named_ledger_is_spent_the_second_time(tmp_path: Path) -> None:
    for_both: dict[str, Any] = {**BUDGET, "ledger": tmp_path / "ledger.db"}
    train_private(line(), clients(), **for_both)
    with pytest.raises(PrivacyBudgetExhausted):
        train_private(line(), clients(), **for_both)


def test_one_data_set_is_dealt_to_clients_evenly_or_by_its_rows() -> None:
    records, labels = blobs(160)
    seen: list[int] = []

    def fit(model: nn.Module, some: Tensor, of_them: Tensor) -> None:
        seen.append(len(of_them))
        moved(model)

    always: dict[str, Any] = {**BUDGET, "sampling_rate": 1.0, "rounds": 1, "fit": fit}
    train_private(line(), (records, labels), partition=CLIENTS, **always)
    assert seen == [4, *[4] * CLIENTS]  # first one training of four made-up records
    seen.clear()
    rows = [range(0, 3), range(10, 15), [], *([20 + row] for row in range(37))]
    data = TensorDataset(torch.from_numpy(records), torch.from_numpy(labels))
    train_private(line(), data, partition=rows, **always)
    assert sorted(seen[1:]) == [1] * 37 + [3, 5]


def test_what_a_module_keeps_outside_its_weights_does_not_reach_the_next_client() -> None:
    met: list[int] = []

    class Remembers(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.visits: list[int] = []

    def fit(model: nn.Module, records: Tensor, labels: Tensor) -> None:
        assert isinstance(model, Remembers)
        model.visits.append(1)
        met.append(len(model.visits))
        moved(model)

    train_private(Remembers(), clients(), **BUDGET | {"sampling_rate": 1.0}, fit=fit)
    assert set(met) == {1}


def test_another_promise_is_a_plan() -> None:
    plan = DistributedPlan(clipping=CLIPPING, secure_sum=SecureSum(), **PROMISE)
    trained = train_private(line(), clients(), plan=plan)
    assert trained.epsilon <= 50.0
    assert trained.accuracy is None


def numbers() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    records, labels = blobs(8)
    return records, labels.astype(np.float32)


def test_labels_that_are_numbers_are_fitted_by_squares() -> None:
    trained = train_private(
        nn.Linear(3, 1), [numbers()] * CLIENTS, **BUDGET, test=numbers(), learning_rate=0.05
    )
    assert len(trained.mean_absolute_errors) == ROUNDS + 1


def test_numbers_have_a_mean_absolute_error_in_their_own_unit_and_no_accuracy() -> None:
    """A model of zeros is wrong by the labels themselves."""
    records, labels = numbers()
    prices = 250_000.0 + 1_000.0 * labels
    zeros = nn.Linear(3, 1)
    nn.init.zeros_(zeros.weight)
    nn.init.zeros_(zeros.bias)
    data = records, prices
    trained = train_private(
        zeros,
        [data] * CLIENTS,
        **BUDGET,
        test=(records.copy(), prices.copy()),
        fit=lambda model, *_: moved(model),
    )
    assert trained.mean_absolute_errors[0] == pytest.approx(prices.mean())
    assert trained.mean_absolute_error == trained.mean_absolute_errors[-1] > 100_000.0
    assert trained.accuracy is None and not trained.accuracies


@pytest.mark.parametrize("labels", [[0, 1], [0, 0], [False, True]])
def test_classes_of_a_module_with_one_output_are_refused(labels: list[int]) -> None:
    pair = np.zeros((2, 3), np.float32), np.array(labels)
    with pytest.raises(ValueError, match="two for the labels 0 and 1"):
        train_private(nn.Linear(3, 1), [pair] * CLIENTS, **BUDGET)


@pytest.mark.parametrize(("shift", "warns"), [(0.0, True), (0.5, False)])
def test_numbers_that_are_all_0_or_1_are_asked_about(
    shift: float,
    warns: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    records, labels = numbers()
    train_private(nn.Linear(3, 1), [(records, labels + shift)] * CLIENTS, **BUDGET, progress=False)
    assert ("for two classes with an accuracy give integers" in caplog.text) == warns


Wrong = Callable[[], Any]


@pytest.mark.parametrize(
    ("wrong", "line_of_it"),
    [
        (lambda: train_private(line(), clients(), epsilon=8.0), "rounds is missing"),
        (lambda: train_private(line(), blobs(9), **BUDGET), "write partition=100"),
        (lambda: train_private(line(), [NO_PAIR] * 5, **BUDGET), r"write \(records, labels\)"),
        (lambda: train_private(nn.Linear(4, 2), clients(), **BUDGET), r"shape \(3,\)"),
        (lambda: train_private(line(), clients(), **BUDGET, epochs=0), "epochs is 0"),
        (
            lambda: train_private(line(), blobs(9), partition=[[0, 1], [1, 2]], **BUDGET),
            "a row twice",
        ),
        (
            lambda: train_private(line(), [with_one(np.nan)] * 9, **BUDGET),
            "client 0: records hold 1 missing or infinite",
        ),
        (
            lambda: train_private(line(), [complex_labels()] * 9, **BUDGET),
            "client 0: labels are complex numbers",
        ),
        (
            lambda: train_private(line(), clients(), test=with_one(np.inf), **BUDGET),
            "records hold 1 missing or infinite",
        ),
    ],
)
def test_what_does_not_fit_ends_in_one_line_before_a_ledger_exists(
    wrong: Wrong, line_of_it: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises((ValueError, TypeError), match=line_of_it) as refused:
        wrong()
    assert "\n" not in str(refused.value)
    assert "ledger" not in caplog.text


def test_a_plan_that_has_its_noise_keeps_it(tmp_path: Path) -> None:
    calibrated = local_plan().calibrated()
    noisier = replace(calibrated, noise_multiplier=3.0 * calibrated.noise_multiplier)
    trained = train_private(line(), clients(), plan=noisier, ledger=tmp_path / "ledger.db")
    assert set(trained.statement.noise_multipliers) == {noisier.noise_multiplier}
    assert trained.epsilon < 50.0 / 2
