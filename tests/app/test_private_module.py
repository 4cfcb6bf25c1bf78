"""`train_private`: a module and arrays of one's own, and what is refused before a ledger exists."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fl_dp import PrivacyBudget, PrivacyLedger
from fl_dp.accelerator import noise_source
from fl_dp.accelerator.device_gaussian import DeviceGaussian
from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.app import train_private
from fl_dp.ledger import AccountLedger
from fl_dp.mechanisms import FixedClipping
from fl_dp.plan import DistributedPlan, LocalPlan, SecureSum
from fl_dp.promise import NO_PRIVACY

CLIENTS, ROUNDS = 40, 4
BUDGET: dict[str, Any] = {"epsilon": 8.0, "rounds": ROUNDS, "clipping_norm": 1.0}


PROMISE: dict[str, Any] = {
    "budget": PrivacyBudget(epsilon=50.0, delta=1e-3),
    "rounds": 2,
    "num_clients": CLIENTS,
}
CLIPPING = FixedClipping(norm=1.0)
NO_PAIR: Any = np.zeros((8, 3))
RAGGED: Any = ([[1.0, 2.0], [1.0]], np.array([0, 1]))
PICTURES: Any = ([Image.new("L", (3, 1))] * 2, np.array([0, 1]))


def as_any(value: Any) -> Any:
    """What a type check would refuse."""
    return value


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
        told = re.search(r"NO PRIVACY: epsilon 500 at .* promises nothing", caplog.text)
        assert (told is not None) is (epsilon == 500.0)


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
    assert f"accuracy {trained.accuracy:.2f}" == "accuracy nan"  # a line of the tutorial


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
    assert np.isnan(trained.accuracy) and not trained.accuracies


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


def test_a_row_a_release_goes_to_a_table_and_to_a_picture(tmp_path: Path) -> None:
    trained = train_private(line(), clients(), **BUDGET, test=blobs(200, 99), progress=False)
    assert {tuple(row) for row in trained.history} == {("round", "loss", "accuracy", "epsilon")}
    assert [row["round"] for row in trained.history] == list(range(ROUNDS + 1))
    spent = [row["epsilon"] for row in trained.history]
    assert spent == sorted(spent) and spent[0] == 0.0 and trained.epsilon <= spent[-1] <= 8.0
    (panel,) = trained.plot(tmp_path / "accuracy.png").axes
    assert panel.get_ylabel() == "accuracy on test data"
    assert np.array_equal(panel.lines[0].get_ydata(), trained.accuracies)
    assert panel.get_title() == str(trained.statement.guarantee if trained.statement else None)
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    unmeasured = train_private(line(), clients(), **BUDGET, progress=False)
    assert [*unmeasured.history[-1]] == ["round", "epsilon"]
    assert "there was no test data" in unmeasured.plot().axes[0].texts[0].get_text()


def test_a_seed_fixes_who_has_which_rows_and_coins_but_never_noise_or_cohorts() -> None:
    dropping = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def weights(seed: int | None, **options: Any) -> Tensor:
        always: dict[str, Any] = {"rounds": 2, "sampling_rate": 1.0, "progress": False} | options
        trained = train_private(dropping, blobs(80), partition=CLIENTS, seed=seed, **always)
        return torch.cat([values.flatten() for values in trained.model.state_dict().values()])

    first = weights(5, baseline=True)
    assert torch.equal(first, weights(5, baseline=True))
    assert not torch.allclose(first, weights(6, baseline=True))
    assert not torch.allclose(weights(None, baseline=True), weights(None, baseline=True))
    assert not torch.allclose(weights(5, epsilon=8.0), weights(5, epsilon=8.0))  # noise
    some = {"sampling_rate": 0.5, "baseline": True}
    assert not torch.allclose(weights(5, **some), weights(5, **some))  # cohorts


def test_a_baseline_takes_the_same_steps_without_clipping_and_noise() -> None:
    means: list[float] = []

    def fit(model: nn.Module, *_: Tensor) -> None:
        with torch.no_grad():
            next(model.parameters()).add_(100.0)

    options: dict[str, Any] = {"sampling_rate": 1.0, "fit": fit, "progress": False}
    for plan in ({"epsilon": 8.0, "rounds": 2}, {"plan": local_plan()}):
        taken = options if "plan" not in plan else {"fit": fit, "progress": False}
        trained = train_private(line(), clients(), baseline=True, **plan, **taken)
        means.append(float(next(trained.model.parameters())[0, 0].detach()))
        assert trained.statement is None and trained.epsilon == np.inf and trained.delta == 0.0
        assert "epsilon" not in trained.history[-1]
        assert trained.plot().axes[0].get_title() == NO_PRIVACY
    assert means == [200.0, 200.0]  # the whole update of each round


def test_a_baseline_ends_its_account_s_total_and_a_cap_refuses_it(tmp_path: Path) -> None:
    at: dict[str, Any] = {"ledger": tmp_path / "ledger.db", "progress": False}
    train_private(line(), clients(), **BUDGET, **at)
    train_private(line(), clients(), **BUDGET, **at, baseline=True)
    with AccountLedger.read(at["ledger"]) as ledger:
        assert set(ledger.account.totals().values()) == {np.inf}
    capped = at | {"ledger": tmp_path / "capped.db", "cap": PrivacyBudget(epsilon=9.0, delta=0.1)}
    train_private(line(), clients(), **BUDGET, **capped)
    with pytest.raises(ValueError, match="cap"):
        train_private(line(), clients(), **BUDGET, **capped, baseline=True)


def test_training_stops_where_its_user_says_so_and_the_budget_stays_spent(tmp_path: Path) -> None:
    def should_stop(server_round: int, result: Result) -> bool:
        return server_round == 1 and "accuracy" in result.evaluate_metrics_serverapp[1]

    at: dict[str, Any] = {"ledger": tmp_path / "ledger.db", "test": blobs(9, 99)}
    trained = train_private(line(), clients(), **BUDGET, **at, should_stop=should_stop)
    assert [row["round"] for row in trained.history] == [0, 1]
    with AccountLedger.read(at["ledger"]) as ledger:
        assert 8.0 in ledger.account.totals().values()


@pytest.mark.parametrize("baseline", [False, True])
def test_clients_weigh_by_their_records_up_to_a_cap(baseline: bool) -> None:
    def fit(model: nn.Module, *_: Tensor) -> None:
        with torch.no_grad():
            next(model.parameters()).add_(0.1)

    nearly_without_noise = BUDGET | {"epsilon": 500.0, "rounds": 1, "sampling_rate": 1.0}
    moved_by = []
    for cap in (8.0, 32.0):  # each client has 8 records
        trained = train_private(
            line(), clients(), **nearly_without_noise, weight_cap=cap, baseline=baseline, fit=fit
        )
        moved_by.append(float(next(trained.model.parameters()).detach().mean()))
    assert moved_by == pytest.approx([0.1, 0.025], rel=0.2 if not baseline else 1e-6)


Wrong = Callable[[], Any]


def probabilities() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Softmax(dim=1))


@pytest.mark.parametrize(
    ("module", "line_of_it"),
    [
        (probabilities, "add up to 1, as after a Softmax"),
        (lambda: nn.Linear(3, 5), "5 outputs, and the largest label is 1"),
        (line, None),
    ],
)
def test_a_module_that_would_train_badly_is_told_of(
    module: Callable[[], nn.Module],
    line_of_it: str | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with pytest.raises(ValueError, match="rounds is missing"):
        train_private(module(), clients(), epsilon=8.0)
    told = [record.message for record in caplog.records]
    assert told == [] if line_of_it is None else line_of_it in told[0]


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
        (lambda: train_private(as_any(nn.Linear), clients(), **BUDGET), r"class Linear: give"),
        (lambda: train_private(as_any(print), clients(), **BUDGET), "must be a PyTorch module"),
        (
            lambda: train_private(line(), blobs(9), partition=as_any(3.0), **BUDGET),
            "write partition=3",
        ),
        (
            lambda: train_private(line(), blobs(2), partition=as_any([[True, False]]), **BUDGET),
            r"np.flatnonzero\(mask\)",
        ),
        (lambda: train_private(line(), [RAGGED] * 5, **BUDGET), "rows have different lengths"),
        (lambda: train_private(line(), [PICTURES] * 5, **BUDGET), "got pictures of PIL"),
        (lambda: train_private(line(), clients(), **BUDGET, seed=-1), "seed must lie in"),
        (
            lambda: train_private(line(), clients(), **BUDGET, should_stop=as_any(3)),
            "should_stop must be a function",
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
    assert trained.statement is not None
    assert set(trained.statement.noise_multipliers) == {noisier.noise_multiplier}
    assert trained.epsilon < 50.0 / 2
