"""An encoder of the user's own: each record by itself, its own weights, else one clear line."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fl_dp.tasks.features import Encoder, encoder_module


class Mixing(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class AtRandom(nn.Module):
    """Drops out whatever mode it is in."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, training=True)


class Squeezed(nn.Module):
    """Gives one number for all records."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean()


def network() -> nn.Module:
    """With batch statistics and dropout, which are at rest in an encoder."""
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU())


@pytest.fixture
def factories(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that can be imported, and names some networks."""
    module = types.ModuleType("my_encoders")
    makers: dict[str, Callable[[], object]] = {
        "network": network,
        "mixing": Mixing,
        "at_random": AtRandom,
        "squeezed": Squeezed,
        "text": lambda: "no network",
    }
    for name, make in makers.items():
        setattr(module, name, make)
    monkeypatch.setitem(sys.modules, "my_encoders", module)
    return "my_encoders"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    made = network()
    made(torch.randn(50, 4))  # so that its statistics are not those of a new one
    save_file(made.state_dict(), tmp_path / "encoder.safetensors")
    return tmp_path / "encoder.safetensors"


def test_it_has_the_weights_of_the_file_and_is_frozen(factories: str, weights: Path) -> None:
    body = encoder_module(f"{factories}:network", weights, (4,))
    encoder = Encoder(body)
    vectors = encoder(torch.ones(3, 4).numpy())
    assert vectors.shape == (3, 6)
    assert (vectors == vectors[0]).all()
    assert not any(each.requires_grad for each in body.parameters())
    again = Encoder(encoder_module(f"{factories}:network", weights, (4,)))
    assert (again(torch.ones(3, 4).numpy()) == vectors).all()


@pytest.mark.parametrize("factory", ["mixing", "at_random", "squeezed", "text", "nonesuch"])
def test_what_is_no_function_of_each_record_is_refused(
    factories: str, tmp_path: Path, factory: str
) -> None:
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(ValueError, match=r"record|makes no torch\.nn\.Module"):
        encoder_module(f"{factories}:{factory}", tmp_path / "empty.safetensors", (4,))


@pytest.mark.parametrize(
    "change",
    [
        {"0.weight": None},
        {"9.weight": torch.zeros(1)},
        {"0.weight": torch.zeros(6, 5)},
        {"0.weight": torch.full((6, 4), torch.nan)},
    ],
)
def test_weights_that_are_not_its_own_are_refused(
    factories: str, weights: Path, change: dict[str, Tensor | None]
) -> None:
    arrays = {**network().state_dict(), **change}
    save_file({name: array for name, array in arrays.items() if array is not None}, weights)
    with pytest.raises(ValueError, match=next(iter(change))):
        encoder_module(f"{factories}:network", weights, (4,))


def test_nothing_is_unpickled(factories: str, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "sprung",)  # type: ignore[return-value]  # pickle's own

    for content in (pickle.dumps(Trap()), b""):
        (tmp_path / "model.pt").write_bytes(content)
        with pytest.raises(ValueError, match="is no safetensors file"):
            encoder_module(f"{factories}:network", tmp_path / "model.pt", (4,))
    assert not (tmp_path / "sprung").exists()
