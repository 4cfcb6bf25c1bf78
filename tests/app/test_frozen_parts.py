"""`train_private` releases what it trains; frozen parts and buffers stay, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fl_dp.strategies.contributions import NobodyContributes
from torch import Tensor, nn

from fl_dp import PrivacyLedger
from fl_dp.app import train_private
from fl_dp.app.private_module import Fit
from fl_dp.model_modes import set_training_mode

CLIENTS = 20
BUDGET: dict[str, Any] = {
    "epsilon": 8.0,
    "rounds": 2,
    "clipping_norm": 1.0,
    "sampling_rate": 1.0,
    "progress": False,
}


def clients() -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    draws = np.random.default_rng(0)
    return [
        (draws.normal(size=(5, 6)).astype(np.float32), draws.integers(0, 2, 5))
        for _ in range(CLIENTS)
    ]


class Scaled(nn.Module):
    """A frozen body behind a scaling in a buffer, and a head."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((6,), 1e3))
        self.body = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 2)
        self.body.requires_grad_(False)
        self.body.eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x - self.mean))
        return out


class CountsCalls(nn.Module):
    """A moving average under a name that nobody knows."""

    history: Tensor

    def __init__(self, *, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("history", torch.zeros(6), persistent=persistent)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.history.lerp_(x.mean(dim=0), 0.1)
        out: Tensor = self.head(x)
        return out


@pytest.mark.parametrize("evaluated", [False, True])
def test_frozen_parts_and_buffers_stay_to_the_bit(evaluated: bool) -> None:
    module = Scaled()
    if evaluated:  # as a measurement leaves it
        module.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    trained = train_private(module, clients(), **BUDGET)
    for name, value in trained.model.state_dict().items():
        same = torch.equal(value, before[name])
        assert same != name.startswith("head"), name
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [part.training for part in module.modules()] == modes


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "1.running_mean"),
        (CountsCalls(), "history"),
        (CountsCalls(persistent=False), "history"),
    ],
)
def test_a_buffer_that_training_changes_is_refused_by_name(
    module: nn.Module, name: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.db"
    with pytest.raises(ValueError, match=f"training changes '{name}'"):
        train_private(module, clients(), ledger=ledger, **BUDGET)
    assert not ledger.exists()


def step(model: nn.Module, x: Tensor, y: Tensor) -> None:
    parameters = [value for value in model.parameters() if value.requires_grad]
    loss = nn.functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(gradient)


def unfreezes(model: nn.Module, x: Tensor, y: Tensor) -> None:
    step(model.requires_grad_(True), x, y)


def freezes(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.get_submodule("2").requires_grad_(False)
    step(model, x, y)


def freezes_when_done(model: nn.Module, x: Tensor, y: Tensor) -> None:
    step(model, x, y)
    model.requires_grad_(False)


def in_two_parts() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (unfreezes, "fit trains '0.weight', which is frozen and not released"),
        (freezes, "fit freezes '2.weight' and does not train it"),
    ],
)
def test_a_fit_that_trains_another_part_than_is_released_is_refused(
    fit: Fit, words: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.db"
    with pytest.raises(ValueError, match=words):
        train_private(in_two_parts(), clients(), fit=fit, ledger=ledger, **BUDGET)
    assert not ledger.exists()


def test_a_fit_may_freeze_what_it_has_trained() -> None:
    module = in_two_parts()
    trained = train_private(module, clients(), fit=freezes_when_done, **BUDGET)
    assert not torch.equal(trained.model.state_dict()["2.weight"], module.state_dict()["2.weight"])


def test_a_module_that_is_frozen_as_a_whole_is_refused(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    with pytest.raises(ValueError, match="every parameter of the module is frozen"):
        train_private(nn.Linear(6, 2).requires_grad_(False), clients(), ledger=ledger, **BUDGET)
    assert not ledger.exists()


def test_a_dtype_that_numpy_lacks_is_refused_before_a_ledger_exists(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    with pytest.raises(ValueError, match=r"'weight' is torch.bfloat16.*write module.float\(\)"):
        train_private(nn.Linear(6, 2).bfloat16(), clients(), ledger=ledger, **BUDGET)
    assert not ledger.exists()


def test_a_training_that_fails_on_made_up_records_is_refused(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"

    def fit(model: nn.Module, x: Tensor, y: Tensor) -> None:
        raise RuntimeError("no such optimizer")

    with pytest.raises(ValueError, match=r"4 made-up records .*: RuntimeError: no such optimizer"):
        train_private(nn.Linear(6, 2), clients(), fit=fit, ledger=ledger, **BUDGET)
    assert not ledger.exists()


def test_the_ledger_holds_the_planned_rounds_of_a_part(tmp_path: Path) -> None:
    train_private(Scaled(), clients(), ledger=tmp_path / "ledger.db", **BUDGET)
    with PrivacyLedger.read(tmp_path / "ledger.db") as ledger:
        assert ledger.rounds_committed == 2
        assert ledger.plan.trained == ("head.weight", "head.bias")


def test_a_step_size_of_zero_is_refused(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    with pytest.raises(ValueError, match="learning_rate must be positive"):
        train_private(nn.Linear(6, 2), clients(), learning_rate=0.0, ledger=ledger, **BUDGET)
    assert not ledger.exists()


def test_a_fit_that_moves_nothing_is_told_before_a_charge(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # It ends in `NobodyContributes` later, which is tested elsewhere.
    with pytest.raises(NobodyContributes):
        train_private(nn.Linear(6, 2), clients(), fit=lambda *_: None, **BUDGET)
    assert "fit moved no parameter on 4 made-up records" in caplog.text


def test_a_fit_that_leaves_no_finite_numbers_is_told_before_a_charge(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fit(model: nn.Module, x: Tensor, y: Tensor) -> None:
        for parameter in model.parameters():
            parameter.data.fill_(torch.nan)

    with pytest.raises(NobodyContributes):
        train_private(nn.Linear(6, 2), clients(), fit=fit, **BUDGET)
    assert "training leaves numbers that are not finite on 4 made-up records" in caplog.text


# Modes.


def modes_of(module: nn.Module) -> dict[str, bool]:
    set_training_mode(module)
    return {name: part.training for name, part in module.named_modules()}


def test_a_module_in_training_keeps_what_its_author_put_in_eval() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    module[1].eval()
    assert modes_of(module) == {"": True, "0": True, "1": False}


def test_of_a_module_in_eval_only_frozen_parts_stay_there() -> None:
    module = nn.Sequential(
        nn.BatchNorm1d(2).requires_grad_(False), nn.Linear(2, 2), nn.Dropout(0.5)
    )
    assert modes_of(module.eval()) == {"": True, "0": False, "1": True, "2": True}
