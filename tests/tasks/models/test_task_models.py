"""Models: their shapes, their repeatable start, and their state as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fl_dp.model_arrays import get_arrays, set_arrays
from fl_dp.tasks.fit import MODELS, ON_TOKENS
from fl_dp.tasks.models import build_model

ON_IMAGES = tuple(name for name in MODELS if name not in ON_TOKENS)
VOCABULARY = 11
NAMES = pytest.mark.parametrize("name", MODELS)
NAMES_AND_SHAPES = pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name in ON_IMAGES for shape in [(1, 8, 8), (1, 28, 28), (3, 32, 32)]]
    + [(name, (length,)) for name in ON_TOKENS for length in (1, 12)],
)


def build(name: str = "mlp", shape: Any = None, **changes: Any) -> nn.Module:
    arguments: dict[str, Any] = {
        "num_classes": 10,
        "seed": 0,
        "hidden": 8,
        "input_shape": (1, 8, 8),
    }
    if name in ON_TOKENS:
        arguments |= {"input_shape": (12,), "vocabulary_size": VOCABULARY}
    if shape is not None:
        arguments["input_shape"] = shape
    return build_model(name, **arguments | changes)


def records(name: str, number: int, shape: Any = None) -> torch.Tensor:
    """Return random inputs of the kind that a model takes."""
    if name in ON_TOKENS:
        return torch.randint(0, VOCABULARY, (number, *(shape or (12,))))
    return torch.rand(number, *(shape or (1, 8, 8)))


def same(first: Iterable[np.ndarray], second: Iterable[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@NAMES_AND_SHAPES
def test_every_model_gives_one_logit_a_class(name: str, shape: Any) -> None:
    assert build(name, shape)(records(name, 5, shape)).shape == (5, 10)
    assert build(name, shape)(records(name, 0, shape)).shape == (0, 10)


@NAMES_AND_SHAPES
def test_a_record_is_scored_alike_alone_and_in_a_batch(name: str, shape: Any) -> None:
    x = records(name, 4, shape)
    model = build(name, shape)
    torch.testing.assert_close(model(x)[2:3], model(x[2:3]), atol=1e-5, rtol=1e-4)


@NAMES
def test_no_model_has_batch_statistics(name: str) -> None:
    model = build(name)
    assert not any(isinstance(m, nn.modules.batchnorm._NormBase) for m in model.modules())
    assert list(model.state_dict()) == [key for key, _ in model.named_parameters()]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "logistic"])
def test_the_seed_decides_the_weights(name: str) -> None:
    def weights(seed: int) -> Iterable[np.ndarray]:
        return get_arrays(build(name, seed=seed)).values()

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = weights(3)
    assert torch.equal(torch.random.get_rng_state(), before)  # nor is it used
    torch.manual_seed(2)
    assert same(first, weights(3))
    assert not same(first, weights(4))


def test_logistic_starts_at_zero() -> None:
    assert all(not array.any() for array in get_arrays(build("logistic")).values())


def test_resnet18_is_the_published_network() -> None:
    model = build("resnet18", (3, 32, 32), hidden=64)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    on_the_path = [m for m in layers if getattr(m, "kernel_size", None) != (1, 1)]
    assert len(on_the_path) == 18
    # As many as with BatchNorm: its scales and shifts are GroupNorm's.
    assert sum(values.size for values in get_arrays(model).values()) == 11_173_962
    reached = []
    blocks = model.get_submodule("blocks")
    blocks.register_forward_hook(lambda *args: reached.append(args[-1].shape))
    model(torch.rand(1, 3, 32, 32))
    assert reached == [(1, 512, 4, 4)]


@pytest.mark.parametrize(("name", "layer"), [("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_a_recurrent_model_is_torch_s_own_layer_between_embedding_and_head(
    name: str, layer: type[nn.GRU] | type[nn.LSTM]
) -> None:
    model: Any = build(name)  # its parts are called below
    tokens = records(name, 4)
    reference = layer(8, 8, batch_first=True)
    state = {
        f"{kind}_{part}_l0": getattr(getattr(model.cell, part), kind).detach()
        for kind in ("weight", "bias")
        for part in ("ih", "hh")
    }
    reference.load_state_dict(state)
    states, _ = reference(model.embedding(tokens))
    torch.testing.assert_close(model(tokens), model.head(states[:, -1]))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("resnet", {}),
        ("resnet18", {"input_shape": (1, 7, 8)}),
        ("mlp", {"vocabulary_size": 9}),
        ("lstm", {"vocabulary_size": None}),
        ("cnn", {"input_shape": (64,)}),
        ("mlp", {"input_shape": ()}),
        ("mlp", {"num_classes": 0}),
        ("transformer", {"hidden": 12}),
        ("mlp", {"hidden": 0}),
        ("mlp", {"seed": -1}),
    ],
)
def test_arguments_out_of_range_are_refused(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"write|needs|give"):
        build(name, **changes)


@NAMES
def test_arrays_round_trip_in_state_dict_order(name: str) -> None:
    source, target = build(name, seed=1), build(name, seed=2)
    arrays = get_arrays(source)
    assert list(arrays) == list(source.state_dict())
    set_arrays(target, list(arrays.values()))
    assert same(get_arrays(target).values(), arrays.values())
    assert all(parameter.requires_grad for parameter in target.parameters())


def test_arrays_share_no_memory_with_the_model() -> None:
    model = build()
    arrays = get_arrays(model)
    for array in arrays.values():
        array[...] = 7
    assert not any((array == 7).any() for array in get_arrays(model).values())
    set_arrays(model, list(arrays.values()))
    for array in arrays.values():
        array[...] = 8
    assert all((array == 7).all() for array in get_arrays(model).values())


def test_a_wrong_number_of_arrays_is_refused() -> None:
    arrays = list(get_arrays(build()).values())
    with pytest.raises(ValueError):
        set_arrays(build(), arrays[:-1])


@pytest.mark.parametrize(
    "wrong", [np.zeros((1, 10), np.float32), np.zeros(10, np.complex64)], ids=["shape", "kind"]
)
def test_an_array_that_does_not_fit_is_refused_and_nothing_is_written(wrong: np.ndarray) -> None:
    model = build()
    before = get_arrays(model)
    arrays = [array + 1 for array in before.values()]
    with pytest.raises(ValueError, match=r"'5\.bias'"):
        set_arrays(model, [*arrays[:-1], wrong])
    assert same(get_arrays(model).values(), before.values())
