"""From a model to one flat vector and back, whatever the model's dtypes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fl_dp.strategies.server_optimizer import ServerOptimizer
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp.strategy import FedAdam
from local_grid import LocalGrid

from fl_dp.updates import RefusedUpdate, VectorLayout, only_array_record
from fl_dp.updates.arrays import narrowed, plain_array, values_of


def bfloat16(values: Any) -> Array:
    """Return what `Array` makes of an `ml_dtypes` array, in the form that NumPy reads it again."""
    bits = narrowed(np.asarray(values, np.float32))
    return Array("bfloat16", bits.shape, "numpy.ndarray", Array(bits.view("V2")).data)


def model() -> ArrayRecord:
    rng = np.random.default_rng(0)
    return ArrayRecord(
        {
            "half": Array(rng.normal(size=(2, 3)).astype(np.float16)),
            "count": Array(np.array([3, 4])),
            "brain": bfloat16(rng.normal(size=(3, 2))),
            "scalar": Array(np.array(0.5, np.float32)),
            "empty": Array(np.zeros((0, 5), np.float64)),
            "mask": Array(np.array([True])),
            "long": Array(rng.normal(size=4).astype(np.longdouble)),
            "double": Array(np.asfortranarray(rng.normal(size=(2, 2)))),
        }
    )


def test_the_vector_has_every_floating_point_array_in_order() -> None:
    arrays = model()
    layout = VectorLayout.of(arrays)
    assert [spec.name for spec in layout.released] == [
        "half", "brain", "scalar", "empty", "long", "double",
    ]  # fmt: skip
    assert layout.server_only == {"count", "mask"}
    assert layout.size == 6 + 6 + 1 + 0 + 4 + 4
    vector = layout.flatten(arrays)
    assert vector.dtype == np.float64
    for spec in layout.released:
        np.testing.assert_array_equal(
            vector[spec.start : spec.stop], values_of(arrays[spec.name]).reshape(-1)
        )


def test_the_merged_model_has_the_forms_of_the_old_one() -> None:
    arrays = model()
    layout = VectorLayout.of(arrays)
    vector = layout.flatten(arrays)
    merged = layout.merge(layout.unflatten(vector + 1), arrays)
    assert list(merged) == list(arrays)
    for name, array in arrays.items():
        new = merged[name]
        assert (new.dtype, new.shape, new.stype) == (array.dtype, array.shape, array.stype)
        assert new.numpy().dtype == array.numpy().dtype
    np.testing.assert_array_equal(merged["count"].numpy(), [3, 4])
    np.testing.assert_allclose(layout.flatten(merged), vector + 1, rtol=2**-8)
    assert VectorLayout.of(merged) == layout


def test_float64_results_of_a_server_optimizer_are_written_in_the_models_forms() -> None:
    arrays = model()
    layout = VectorLayout.of(arrays)
    wide = layout.in_float64().unflatten(layout.flatten(arrays))
    assert {array.dtype for array in wide.values()} == {"float64"}
    merged = layout.merge(wide, arrays)
    assert [array.dtype for array in merged.values()] == [a.dtype for a in arrays.values()]
    np.testing.assert_array_equal(layout.flatten(merged), layout.flatten(arrays))


def test_a_server_optimizer_steps_a_model_with_bfloat16() -> None:
    arrays = ArrayRecord({"w": bfloat16([1.0, 2.0]), "b": Array(np.zeros(1, np.float32))})
    layout = VectorLayout.of(arrays)
    released = layout.only_released(arrays)
    vector = layout.flatten(released)
    LocalGrid(lambda message, partition: None, 2)  # messages need the identity of a task
    optimizer = ServerOptimizer(FedAdam())
    instruction = optimizer.instruct(1, released, ConfigRecord(), [1, 2])
    stepped, _ = optimizer.step(1, layout.unflatten(vector + 0.25), instruction)
    assert stepped is not None
    new = layout.merge(stepped, arrays)
    assert (new["w"].dtype, new["w"].numpy().dtype) == ("bfloat16", np.dtype("V2"))
    assert (layout.flatten(new) > vector).all()


def test_a_model_is_written_once_where_it_travels() -> None:
    """Its numbers take the memory of its bytes, and no array beside them."""
    layout = VectorLayout.of(ArrayRecord({"w": Array(np.zeros(1_000_000, np.float32))}))
    vector = np.linspace(-1.0, 1.0, layout.size)
    tracemalloc.start()
    try:
        model = layout.unflatten(vector, vector)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(model["w"].numpy(), (2 * vector).astype(np.float32))
    assert peak < 1.5 * 4 * layout.size


def changed(**arrays: Array) -> ArrayRecord:
    return ArrayRecord(dict(model()) | arrays)


REFUSED = {
    "foreign name": changed(other=Array(np.zeros(1))),
    "missing": ArrayRecord({name: array for name, array in model().items() if name != "half"}),
    "transposed": changed(half=Array(np.zeros((3, 2), np.float16))),
    "scalar as a vector": changed(scalar=Array(np.zeros(1, np.float32))),
    "empty the other way": changed(empty=Array(np.zeros((5, 0)))),
    "integers for bfloat16": changed(brain=Array(np.zeros((3, 2), np.uint16))),
    "integers": changed(double=Array(np.zeros((2, 2), np.int64))),
    "truth values": changed(double=Array(np.zeros((2, 2), np.bool_))),
    "complex": changed(double=Array(np.zeros((2, 2), complex))),
    "torn": changed(scalar=Array("float32", (), "numpy.ndarray", b"\x93NUMPY")),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_update_of_another_form_is_refused(kind: str) -> None:
    with pytest.raises(RefusedUpdate):
        VectorLayout.of(model()).flatten(REFUSED[kind])


FLOATING: dict[str, Callable[[Any], Array]] = {
    "bfloat16": bfloat16,
    "bfloat16 bits": lambda v: plain_array(
        narrowed(np.asarray(v, np.float32)), declared="bfloat16"
    ),
} | {
    code: lambda v, code=code: Array(np.asarray(v, code))
    for code in ("f2", "f4", "f8", "g", ">f2", ">f4", ">f8", ">g")
}
"""Every way to write floating-point numbers, by its name."""


@pytest.mark.parametrize("name", ["half", "brain", "scalar", "long", "double"])
@pytest.mark.parametrize("kind", FLOATING)
def test_every_floating_point_dtype_is_read_by_value_for_every_dtype_of_the_model(
    kind: str, name: str
) -> None:
    layout = VectorLayout.of(model())
    [spec] = [spec for spec in layout.released if spec.name == name]
    # Seven bits of significand hold them exactly.
    values = (np.arange(np.prod(spec.shape)) / 8 - 0.25).reshape(spec.shape)
    sent = changed(**{name: FLOATING[kind](values)})
    read = layout.flatten(sent)[spec.start : spec.stop]
    np.testing.assert_array_equal(read, values.ravel())
    own = sent[name].dtype in (spec.form.declared, spec.dtype.name)
    assert layout.converts(RecordDict({"arrays": sent})) != own


def test_what_a_client_sends_for_a_kept_array_is_not_even_read() -> None:
    arrays = model()
    layout = VectorLayout.of(arrays)
    torn = changed(count=Array("int64", (2,), "numpy.ndarray", b"junk"))
    np.testing.assert_array_equal(layout.flatten(torn), layout.flatten(arrays))


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (Array(np.zeros(1, complex)), "complex"),
        (Array(np.array(["text"])), "only floating-point"),
        (Array("float32", (1,), "numpy.ndarray", b"junk"), "can't be read"),
    ],
)
def test_a_model_that_can_not_be_trained_is_an_error(array: Array, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        VectorLayout.of(ArrayRecord({"w": array}))


def test_a_model_of_integers_alone_is_an_error() -> None:
    with pytest.raises(ValueError, match="no floating-point array"):
        VectorLayout.of(ArrayRecord({"n": Array(np.arange(3))}))


def test_a_reply_has_exactly_one_array_record() -> None:
    assert only_array_record(RecordDict({"a": model()})).keys() == model().keys()
    for content in (RecordDict(), RecordDict({"a": model(), "b": model()})):
        with pytest.raises(RefusedUpdate, match="exactly one"):
            only_array_record(content)
