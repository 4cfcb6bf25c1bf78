"""Opacus can train every model: per-record gradients are exact, and a step of DP-SGD is made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from opacus.grad_sample.utils import wrap_model
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch.nn import functional

from fl_dp.tasks.fit import MODELS, ON_TOKENS
from fl_dp.tasks.models import build_model, get_arrays

NAMES = pytest.mark.parametrize("name", MODELS)
LABELS = torch.tensor([0, 2, 1])

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning"),
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),
]


def made(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """Return a model and three records for it, in double precision: errors don't grow in it."""
    arguments = {"num_classes": 3, "hidden": 8, "seed": 0}
    generator = torch.Generator().manual_seed(1)
    if name in ON_TOKENS:
        model = build_model(name, input_shape=(6,), vocabulary_size=7, **arguments).double()
        return model, torch.randint(0, 7, (3, 6), generator=generator)
    model = build_model(name, input_shape=(1, 8, 8), **arguments).double()
    return model, torch.rand(3, 1, 8, 8, generator=generator, dtype=torch.float64)


def gradients_one_by_one(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return each parameter's gradients, `(3, *shape)`, from three backward passes."""
    parameters = list(model.parameters())
    rows = [
        torch.autograd.grad(
            functional.cross_entropy(model(x[i : i + 1]), LABELS[i, None]), parameters
        )
        for i in range(3)
    ]
    return [torch.stack(same) for same in zip(*rows, strict=True)]


@NAMES
def test_opacus_finds_nothing_to_object_to(name: str) -> None:
    assert ModuleValidator.validate(made(name)[0], strict=False) == []


@NAMES
@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_per_record_gradients_are_those_of_single_records(name: str, mode: str) -> None:
    model, x = made(name)
    expected = gradients_one_by_one(model, x)
    wrapped = wrap_model(model, grad_sample_mode=mode, loss_reduction="sum")
    torch.autograd.backward(functional.cross_entropy(wrapped(x), LABELS, reduction="sum"))
    for parameter, gradients in zip(model.parameters(), expected, strict=True):
        found = parameter.grad_sample  # type: ignore[attr-defined]  # Opacus sets it
        torch.testing.assert_close(found, gradients, atol=1e-9, rtol=1e-7)


@NAMES
def test_ghost_norms_are_those_of_single_records(name: str) -> None:
    model, x = made(name)
    first, *others = (g.flatten(1).square().sum(dim=1) for g in gradients_one_by_one(model, x))
    squares = sum(others, first)
    wrapped = wrap_model(model, grad_sample_mode="ghost", max_grad_norm=1.0, loss_reduction="sum")
    torch.autograd.backward(functional.cross_entropy(wrapped(x), LABELS, reduction="sum"))
    torch.testing.assert_close(wrapped.get_norm_sample(), squares.sqrt(), rtol=1e-7, atol=0.0)


@NAMES
@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_one_step_of_dp_sgd_moves_every_array_and_keeps_its_name(name: str, mode: str) -> None:
    model, x = made(name)
    before = get_arrays(model)
    wrapped = wrap_model(model, grad_sample_mode=mode, loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=3,
        loss_reduction="sum",
        generator=torch.Generator().manual_seed(2),
    )
    torch.autograd.backward(functional.cross_entropy(wrapped(x), LABELS, reduction="sum"))
    optimizer.step()
    after = get_arrays(model)
    assert list(after) == list(before)
    assert not any(np.array_equal(after[key], values) for key, values in before.items())
