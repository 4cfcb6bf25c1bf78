"""A model in two bytes a number, and back in its own dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fl_dp.updates import VectorLayout
from fl_dp.updates.arrays import array_bytes, narrowed, values_of
from fl_dp.updates.compression_options import NARROW_FORMATS
from fl_dp.updates.narrow import narrow, widen

ERROR = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # of a number, relative
BITS16 = Array("bfloat16", (2,), "numpy.ndarray", Array(np.array([0x3F80, 0x4000], "<u2")).data)


def model() -> ArrayRecord:
    numbers = np.random.default_rng(0).normal(size=(30, 4)) + 3.0
    return ArrayRecord(
        {
            "f4": Array(numbers.astype(np.float32)),
            "f8": Array(numbers),
            "long": Array(numbers.astype(np.longdouble)),
            "fortran": Array(np.asfortranarray(numbers)),
            "big": Array(numbers.astype(">f4")),
            "scalar": Array(np.array(1.5, np.float32)),
            "empty": Array(np.zeros((3, 0), np.float32)),
            "f2": Array(np.array([1.0009765625], np.float16)),
            "bf": BITS16,
            "seen": Array(np.array(7)),
            "mask": Array(np.array([True, False])),
        }
    )


@pytest.mark.parametrize("name", NARROW_FORMATS)
def test_a_widened_model_has_its_own_dtypes_and_shapes_again(name: str) -> None:
    arrays = model()
    back = widen(narrow(arrays, name))
    layout = VectorLayout.of(arrays)
    assert list(back) == list(arrays)
    for key, array in arrays.items():
        assert (back[key].dtype, back[key].shape) == (array.dtype, array.shape)
    exact, rounded = layout.flatten(arrays), layout.flatten(back)
    np.testing.assert_allclose(rounded, exact, rtol=ERROR[name])
    assert (rounded != exact).any()


@pytest.mark.parametrize("name", NARROW_FORMATS)
def test_what_has_two_bytes_a_number_or_none_to_lose_stays_as_it_is(name: str) -> None:
    arrays = model()
    sent = narrow(arrays, name)
    for key in ("f2", "bf", "seen", "mask"):
        assert sent[key] == arrays[key]


@pytest.mark.parametrize("name", NARROW_FORMATS)
def test_a_narrow_model_is_half_as_long(name: str) -> None:
    arrays = ArrayRecord({"w": Array(np.ones(100_000, np.float32))})
    assert array_bytes(narrow(arrays, name)) == pytest.approx(array_bytes(arrays) / 2, abs=128)


@pytest.mark.parametrize("name", NARROW_FORMATS)
def test_a_client_that_knows_nothing_of_it_fails_instead_of_training_something_else(
    name: str,
) -> None:
    with pytest.raises(TypeError, match="serialization type"):
        narrow(model(), name).to_numpy_ndarrays()


def test_a_plain_model_is_widened_to_itself() -> None:
    arrays = model()
    assert widen(arrays) == arrays


def test_float16_is_cut_where_it_ends_and_bfloat16_is_not() -> None:
    arrays = ArrayRecord({"w": Array(np.array([1e6, -1e6, np.nan], np.float32))})
    cut, kept = (values_of(widen(narrow(arrays, name))["w"]) for name in NARROW_FORMATS)
    np.testing.assert_array_equal(cut, np.array([65504, -65504, np.nan], np.float32))
    np.testing.assert_allclose(kept, [1e6, -1e6, np.nan], rtol=ERROR["bfloat16"])


def stype(name: str, dtype: str = "float32", data: bytes | None = None) -> Any:
    data = Array(np.ones(2, np.float16)).data if data is None else data
    return ArrayRecord({"w": Array(dtype, (2,), f"fl-dp/{name}", data)})


@pytest.mark.parametrize(
    "unreadable",
    [stype("float8"), stype("float16", "int32"), stype("float16", data=b"nothing"), stype("")],
)
def test_a_narrow_array_that_is_none_is_an_error(unreadable: ArrayRecord) -> None:
    with pytest.raises(ValueError, match=r"none of this version|magic string"):
        widen(unreadable)


def test_bfloat16_is_rounded_as_everywhere_else() -> None:
    numbers = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    sent = narrow(ArrayRecord({"w": Array(numbers)}), "bfloat16")
    bits = np.frombuffer(sent["w"].data[-2000:], "<u2")
    np.testing.assert_array_equal(bits, narrowed(numbers))
