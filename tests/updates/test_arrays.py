"""Reading and writing the numbers of a Flower `Array`, whoever wrote its bytes."""

from __future__ import annotations

import io
import math
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st

from fl_dp.updates.arrays import (
    array_of,
    narrowed,
    own_copy,
    plain_array,
    read,
    values_of,
    widened,
)

FLOATS = [np.float16, np.float32, np.float64, np.longdouble, ">f4", ">f8"]
EVERY_BFLOAT16 = np.arange(2**16, dtype=np.uint16)


def npy(header: str, data: bytes = b"", *, version: bytes = b"\x01\x00") -> bytes:
    width = 2 if version == b"\x01\x00" else 4
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(width, "little") + text + data


def described(descr: str, shape: str, data: bytes = b"", order: str = "False") -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}", data)


def sent(data: bytes, declared: str = "float32", shape: tuple[int, ...] = (2,)) -> Array:
    return Array(declared, shape, "numpy.ndarray", data)


def void_items(bits: np.ndarray, descr: str = "<V2") -> Array:
    """Return what `Array(bits.view(ml_dtypes.bfloat16))` is."""
    return sent(described(f"'{descr}'", str(bits.shape), bits.tobytes()), "bfloat16", bits.shape)


def saved(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_floating_point_array_is_read_as_numpy_reads_it(
    dtype: Any, shape: tuple[int, ...], order: Any
) -> None:
    given_values = np.asarray(np.random.default_rng(0).normal(size=shape), order=order)
    array = Array(np.asarray(given_values.astype(dtype)))
    values = values_of(array)
    assert values.dtype == array.numpy().dtype
    assert values.shape == shape
    np.testing.assert_array_equal(values, array.numpy())
    form, _ = read(array)
    again = array_of(values.astype(np.float64), form)
    assert (again.dtype, again.shape, again.stype) == (array.dtype, array.shape, array.stype)
    np.testing.assert_array_equal(again.numpy().astype(np.float64), values.astype(np.float64))


@pytest.mark.parametrize("dtype", [*FLOATS, np.bool_, np.int64, ">i4"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_one_copy_is_what_flower_writes_and_reads(
    dtype: Any, shape: tuple[int, ...], order: Any
) -> None:
    given_values = np.asarray(np.arange(math.prod(shape)).reshape(shape).astype(dtype), order=order)
    theirs, ours = Array(given_values), plain_array(given_values)
    assert (ours.dtype, ours.shape, ours.stype) == (theirs.dtype, theirs.shape, theirs.stype)
    read_by_them, read_by_us = theirs.numpy(), own_copy(theirs)
    for values in (read_by_us, ours.numpy()):
        np.testing.assert_array_equal(values, read_by_them, strict=True)
    assert read_by_us.flags.f_contiguous == read_by_them.flags.f_contiguous
    read_by_us[...] = 1  # its own memory: nobody else sees this
    np.testing.assert_array_equal(theirs.numpy(), read_by_them)


def test_python_objects_are_neither_written_nor_copied() -> None:
    with pytest.raises(ValueError, match="an array of object holds Python objects: give numbers"):
        plain_array(np.array([object()]))
    with pytest.raises(ValueError, match="its serialization type is not"):
        own_copy(Array("float32", (1,), "pickle", b""))


def test_an_array_is_read_without_a_copy_and_can_not_be_written_to() -> None:
    array = Array(np.ones((300, 400), np.float32))
    values = values_of(array)
    assert np.shares_memory(values, np.frombuffer(array.data, np.uint8))
    assert not values.flags.writeable


def test_numbers_too_large_for_the_form_become_infinite() -> None:
    form, _ = read(Array(np.zeros(2, np.float16)))
    np.testing.assert_array_equal(
        array_of(np.array([1e9, -1e9]), form).numpy(), np.array([np.inf, -np.inf], np.float16)
    )


def test_integers_are_not_values() -> None:
    with pytest.raises(ValueError, match="not floating-point"):
        values_of(Array(np.arange(3)))


# bfloat16


def test_every_bfloat16_is_a_float32_and_comes_back() -> None:
    torch = pytest.importorskip("torch")
    wide = widened(EVERY_BFLOAT16)
    theirs = torch.from_numpy(EVERY_BFLOAT16.copy()).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(wide, theirs)
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(narrowed(wide)[number], EVERY_BFLOAT16[number])
    assert np.isnan(widened(narrowed(wide)[~number])).all()


@pytest.mark.parametrize("near", [-1, 0, 1])
def test_rounding_is_to_nearest_even_as_pytorch_rounds(near: int) -> None:
    """At every tie between neighbours, one float32 below it and one above it."""
    torch = pytest.importorskip("torch")
    finite = EVERY_BFLOAT16[np.isfinite(widened(EVERY_BFLOAT16))].astype(np.uint32)
    numbers = ((finite << np.uint32(16)) + np.uint32(0x8000 + near)).view(np.float32)
    theirs = torch.from_numpy(numbers).to(torch.bfloat16).view(torch.uint16).numpy()
    np.testing.assert_array_equal(narrowed(numbers), theirs)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (np.finfo(np.float32).max, np.inf),
        (-np.finfo(np.float32).max, -np.inf),
        (np.inf, np.inf),
        (-0.0, -0.0),
        (1e-45, 0.0),
    ],
)
def test_what_bfloat16_can_not_hold_becomes_infinite_or_zero(
    number: float, expected: float
) -> None:
    rounded = widened(narrowed(np.array(number, np.float32)))
    assert rounded == expected
    assert np.signbit(rounded) == np.signbit(expected)


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000])
def test_a_nan_stays_one_whatever_its_payload(bits: int) -> None:
    assert np.isnan(widened(narrowed(np.array(bits, np.uint32).view(np.float32))))


ONE_AND_A_HALF = np.array([[0x3FC0, 0xBFC0]], np.uint16)
BFLOAT16_FORMS = {
    "ml_dtypes": void_items(ONE_AND_A_HALF),
    "ml_dtypes, read and sent again": Array(void_items(ONE_AND_A_HALF).numpy()),
    "torch.uint16 view": sent(saved(ONE_AND_A_HALF), "bfloat16", (1, 2)),
    "torch.int16 view": sent(saved(ONE_AND_A_HALF.view(np.int16)), "bfloat16", (1, 2)),
    "Fortran order": sent(
        described("'<V2'", "(1, 2)", ONE_AND_A_HALF.tobytes(), "True"), "bfloat16", (1, 2)
    ),
}


@pytest.mark.parametrize("kind", BFLOAT16_FORMS)
def test_bfloat16_is_read_and_written_in_the_form_it_came_in(kind: str) -> None:
    array = BFLOAT16_FORMS[kind]
    values = values_of(array)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, [[1.5, -1.5]])
    form, _ = read(array)
    again = array_of(values.astype(np.float64) * 2, form)
    assert (again.dtype, again.shape, again.stype) == (array.dtype, (1, 2), array.stype)
    assert again.numpy().dtype == array.numpy().dtype
    np.testing.assert_array_equal(values_of(again), [[3.0, -3.0]])


def test_bfloat16_of_ml_dtypes_is_what_these_tests_build_by_hand() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    real = Array(ONE_AND_A_HALF.view(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(values_of(real), [[1.5, -1.5]])
    again = array_of(values_of(real), read(real)[0])
    np.testing.assert_array_equal(
        again.numpy().view(ml_dtypes.bfloat16).astype(np.float32), [[1.5, -1.5]]
    )


def test_undeclared_integers_are_integers() -> None:
    form, values = read(Array(ONE_AND_A_HALF))
    assert not form.bfloat16
    assert values.dtype == np.uint16


# Bytes from someone who wants to do harm

EIGHT = b"\x00" * 8
HOSTILE = {
    "nothing": b"",
    "not npy": b"hello",
    "a zip file": b"PK\x03\x04" + b"\x00" * 60,
    "half a magic": b"\x93NUM",
    "magic alone": b"\x93NUMPY\x01\x00",
    "version 3": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", EIGHT).replace(
        b"\x01\x00", b"\x03\x00", 1
    ),
    "version 9": npy("{}").replace(b"\x01\x00", b"\x09\x00", 1),
    "header longer than the file": b"\x93NUMPY\x01\x00\xff\x20" + b"{" * 20,
    "header of gigabytes": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"{" * 20,
    "a long header": npy("{" + " " * 5000 + "}"),
    "no dictionary": npy("[1, 2]"),
    "no keys": npy("{}"),
    "code": npy("__import__('os').system('false')"),
    "deep nesting": npy("(" * 2000),
    "deep signs": npy("-" * 2000 + "1"),
    "not text": npy("\xff\xfe\x00"),
    "object dtype": described("'|O'", "(1,)", pickle.dumps([1, 2])),
    "objects in a record": described("[('a', '<f4'), ('b', '|O')]", "(1,)", EIGHT),
    "a record": described("[('a', '<f4'), ('b', '<f4')]", "(1,)", EIGHT),
    "a subarray": described("('<f4', (2,))", "(1,)", EIGHT),
    "unknown dtype": described("'<f1'", "(8,)", EIGHT),
    "nonsense dtype": described("'nonsense'", "(8,)", EIGHT),
    "dtype of another type": described("3.5", "(8,)", EIGHT),
    "huge shape": described("'<f4'", f"({2**40},)", EIGHT),
    "product beyond 64 bits": described("'<f4'", f"({2**40}, {2**40})", EIGHT),
    "product that wraps to two": described("'<f4'", f"({2**63 + 1}, 2)", EIGHT),
    "empty and huge": described("'<f4'", f"(0, {2**70})"),
    "too many axes": described("'<f4'", f"({'1, ' * 100})", EIGHT[:4]),
    "negative shape": described("'<f4'", "(-1, -2)", EIGHT),
    "shape of floats": described("'<f4'", "(2.0,)", EIGHT),
    "shape of None": described("'<f4'", "None", EIGHT),
    "truncated": described("'<f4'", "(2,)", EIGHT[:7]),
    "no data": described("'<f4'", "(2,)"),
    "too much data": described("'<f4'", "(2,)", EIGHT + b"\x00"),
    "order is a number": described("'<f4'", "(2,)", EIGHT, "1"),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.filterwarnings("ignore:Reading `.npy`")  # NumPy suspects a file of Python 2
def test_hostile_bytes_are_a_value_error_and_take_no_memory(kind: str) -> None:
    array = sent(HOSTILE[kind])
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            values_of(array)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


class _Trap:
    sprung = False

    def __reduce__(self) -> Any:
        return (setattr, (_Trap, "sprung", True))


def test_nothing_is_unpickled() -> None:
    data = described("'|O'", "(1,)", pickle.dumps(np.array([_Trap()], dtype=object)))
    with pytest.raises(ValueError, match="plain numbers"):
        values_of(sent(data, "object", (1,)))
    assert not _Trap.sprung


def test_another_serialization_type_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="serialization"):
        values_of(Array("float32", (1,), "pickle", b"1234"))


GOOD = saved(np.arange(4, dtype=np.float32))


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
@pytest.mark.filterwarnings("ignore")
def test_a_changed_byte_is_read_or_a_value_error(place: int, value: int) -> None:
    data = GOOD[:place] + bytes([value]) + GOOD[place + 1 :]
    try:
        values = values_of(sent(data))
    except ValueError:
        return
    assert values.nbytes == 16


@given(st.binary(max_size=200))
@pytest.mark.filterwarnings("ignore")
def test_random_bytes_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        values_of(sent(b"\x93NUMPY\x01\x00" + data))
