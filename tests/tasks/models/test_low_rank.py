"""LoRA: A is the same everywhere, and what is frozen stays so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fl_dp.tasks.models import LowRankLinear, add_low_rank


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def trained(model: nn.Module) -> list[str]:
    return [name for name, each in model.named_parameters() if each.requires_grad]


def test_the_model_starts_as_it_was_and_a_is_the_same_for_one_seed() -> None:
    x = torch.randn(4, 6)
    first, second = (add_low_rank(network(), rank=2, seed=3) for _ in range(2))
    torch.testing.assert_close(first(x), network()(x))
    state, other = first.state_dict(), second.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)
    another = add_low_rank(network(), rank=2, seed=4).state_dict()
    assert not torch.equal(state["0.a.weight"], another["0.a.weight"])


def test_a_layer_computes_its_weight_plus_b_times_a() -> None:
    layer = LowRankLinear(nn.Linear(6, 5), 2)
    nn.init.normal_(layer.b.weight)
    x = torch.randn(4, 6)
    weight = layer.base.weight + layer.b.weight @ layer.a.weight
    torch.testing.assert_close(layer(x), x @ weight.T + layer.base.bias)


@pytest.mark.parametrize(
    ("train", "names"),
    [
        ("b", ["0.b.weight", "2.b.weight"]),
        ("both", ["0.a.weight", "0.b.weight", "2.a.weight", "2.b.weight"]),
    ],
)
def test_the_factors_that_are_asked_for_are_trained_and_nothing_else(
    train: str, names: list[str]
) -> None:
    assert trained(add_low_rank(network(), rank=2, seed=0, train=train)) == names


def test_a_has_no_gradient_while_b_is_zero() -> None:
    model = add_low_rank(network(), rank=2, seed=0, train="both")
    model(torch.randn(4, 6)).square().sum().backward()
    [a, b] = [model.get_parameter(f"2.{each}.weight").grad for each in "ab"]
    assert a is not None and not a.any()
    assert b is not None and b.any()


def test_what_can_not_be_meant_is_refused() -> None:
    with pytest.raises(ValueError):
        add_low_rank(network(), rank=0, seed=0)
    with pytest.raises(ValueError):
        add_low_rank(network(), rank=1, seed=0, train="a")
    with pytest.raises(ValueError):
        add_low_rank(nn.Sequential(nn.ReLU()), rank=1, seed=0)
