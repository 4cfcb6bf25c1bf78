"""Models: their shapes, their repeatable start, and their state as arrays."""

import numpy as np
import pytest
import torch
from torch import nn

from fl_dp.tasks import MODELS, build_model, get_arrays, set_arrays

NAMES = pytest.mark.parametrize("name", MODELS)
SHAPES = pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])


def build(name="mlp", shape=(1, 8, 8), **changes):
    arguments = {"input_shape": shape, "num_classes": 10, "seed": 0} | changes
    return build_model(name, **arguments)


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@NAMES
@SHAPES
def test_every_model_gives_one_logit_a_class(name, shape):
    assert build(name, shape)(torch.rand(5, *shape)).shape == (5, 10)
    assert build(name, shape)(torch.rand(0, *shape)).shape == (0, 10)


@NAMES
@SHAPES
def test_an_example_is_scored_alike_alone_and_in_a_batch(name, shape):
    x = torch.rand(4, *shape)
    model = build(name, shape)
    torch.testing.assert_close(model(x)[2:3], model(x[2:3]), atol=1e-5, rtol=1e-4)


@NAMES
def test_no_model_has_batch_statistics(name):
    model = build(name)
    assert not any(isinstance(m, nn.modules.batchnorm._NormBase) for m in model.modules())
    assert list(model.buffers()) == []


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_seed_decides_the_weights(name):
    def weights(seed):
        return get_arrays(build(name, seed=seed)).values()

    torch.manual_seed(1)
    first = weights(3)
    torch.manual_seed(2)
    assert same(first, weights(3))
    assert not same(first, weights(4))


@NAMES
def test_building_leaves_the_global_random_state_alone(name):
    before = torch.random.get_rng_state()
    build(name)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_building_ignores_the_default_device():
    expected = get_arrays(build()).values()
    with torch.device("meta"):
        assert same(expected, get_arrays(build()).values())


def test_logistic_starts_at_zero():
    assert all(not array.any() for array in get_arrays(build("logistic")).values())


def test_hidden_sets_the_width():
    assert get_arrays(build("mlp", hidden=17))["1.weight"].shape == (17, 64)
    assert get_arrays(build("cnn", hidden=17))["9.weight"].shape == (17, 64)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("resnet", {}, "'resnet'; write one of logistic, mlp, cnn"),
        ("cnn", {"input_shape": (1, 7, 8)}, "sides of at least 8"),
        ("cnn", {"input_shape": (64,)}, r"input_shape is \(64,\)"),
        ("mlp", {"input_shape": ()}, r"input_shape is \(\)"),
        ("mlp", {"num_classes": 1}, "num_classes is 1; write at least 2"),
        ("mlp", {"hidden": 0}, "hidden is 0; write at least 1"),
        ("mlp", {"seed": -1}, "seed is -1; write at least 0"),
    ],
)
def test_arguments_out_of_range_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        build(name, **changes)


@NAMES
def test_arrays_round_trip_in_state_dict_order(name):
    source, target = build(name, seed=1), build(name, seed=2)
    arrays = get_arrays(source)
    assert list(arrays) == list(source.state_dict())
    set_arrays(target, list(arrays.values()))
    assert same(get_arrays(target).values(), arrays.values())


def test_arrays_share_no_memory_with_the_model():
    model = build()
    arrays = get_arrays(model)
    for array in arrays.values():
        array[...] = 7
    assert not any((array == 7).any() for array in get_arrays(model).values())
    set_arrays(model, list(arrays.values()))
    for array in arrays.values():
        array[...] = 8
    assert all((array == 7).all() for array in get_arrays(model).values())


@pytest.mark.filterwarnings("error")
def test_read_only_strided_and_double_arrays_are_taken():
    model = build()
    arrays = []
    for array in get_arrays(model).values():
        array = np.asfortranarray(np.ones_like(array, dtype=np.float64))[..., ::-1]
        array.setflags(write=False)
        arrays.append(array)
    set_arrays(model, arrays)
    assert all(
        array.dtype == np.float32 and (array == 1).all() for array in get_arrays(model).values()
    )


def test_a_wrong_number_of_arrays_is_refused():
    arrays = list(get_arrays(build()).values())
    with pytest.raises(ValueError, match="got 5 arrays for 6 entries"):
        set_arrays(build(), arrays[:-1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros(11, np.float32), r"'5.bias' has shape \(11,\); give shape \(10,\)"),
        (np.zeros((1, 10), np.float32), r"'5.bias' has shape \(1, 10\)"),
        (np.zeros(10, np.complex64), "'5.bias' is complex64; give float32"),
    ],
)
def test_an_array_that_does_not_fit_is_refused_and_nothing_is_written(wrong, message):
    model = build()
    before = get_arrays(model)
    arrays = [array + 1 for array in before.values()]
    with pytest.raises(ValueError, match=message):
        set_arrays(model, [*arrays[:-1], wrong])
    assert same(get_arrays(model).values(), before.values())


def test_set_arrays_keeps_the_parameters_trainable():
    model = build()
    set_arrays(model, list(get_arrays(model).values()))
    assert all(parameter.requires_grad for parameter in model.parameters())
