"""Encoded updates: what comes back, how long they are, and what a hostile reply can't do."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from fl_dp.updates import Compression, RefusedUpdate, VectorLayout
from fl_dp.updates.arrays import array_bytes
from fl_dp.updates.compression import ENCODED_UPDATE

SIZE = 5000
EVERY = {
    "float16": Compression(up="float16"),
    "bfloat16": Compression(up="bfloat16"),
    "1 bit": Compression(up="quantize", bits=1),
    "3 bits": Compression(up="quantize", bits=3),
    "16 bits": Compression(up="quantize", bits=16),
    "top tenth": Compression(up="top_k"),
    "top hundredth": Compression(up="top_k", fraction=0.01, bits=16),
    "all of it": Compression(up="top_k", fraction=1.0, bits=16),
}
each = pytest.mark.parametrize("compression", EVERY.values(), ids=EVERY)


def update(size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(3).normal(size=size)


def encoded(compression: Compression, size: int = SIZE) -> ArrayRecord:
    return compression.encode(update(size), np.random.default_rng(0))


def model_of(size: int) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(size, np.float32)), "seen": Array(np.array(7))})


# What comes back.


@pytest.mark.parametrize(
    ("name", "largest"), [("float16", 0.002), ("bfloat16", 0.02), ("16 bits", 2e-4)]
)
def test_what_is_sent_in_sixteen_bits_is_close(name: str, largest: float) -> None:
    received = EVERY[name].decode(encoded(EVERY[name]), SIZE)
    assert received.dtype == np.float64
    assert 0.0 < np.abs(received - update()).max() <= largest


@pytest.mark.parametrize("name", ["top tenth", "top hundredth"])
def test_top_k_keeps_the_largest_magnitudes_and_nothing_else(name: str) -> None:
    received = EVERY[name].decode(encoded(EVERY[name]), SIZE)
    kept = round(SIZE * EVERY[name].fraction)
    largest = np.argsort(-np.abs(update()))[:kept]
    others = np.delete(np.arange(SIZE), largest)
    np.testing.assert_allclose(received[largest], update()[largest], atol=0.04)
    assert not received[others].any()


@each
@pytest.mark.parametrize("size", [0, 1, 2, 9, 2049])
def test_vectors_of_every_length_come_back_in_that_length(
    compression: Compression, size: int
) -> None:
    assert compression.decode(encoded(compression, size), size).shape == (size,)


@each
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e301])
def test_an_update_that_is_not_finite_is_not_encoded(compression: Compression, bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        compression.encode(np.array([0.0, bad]), np.random.default_rng(0))


def test_too_large_a_number_for_float16_becomes_its_largest() -> None:
    compression = EVERY["float16"]
    sent = compression.encode(np.array([1e9, -1e9]), np.random.default_rng(0))
    np.testing.assert_array_equal(compression.decode(sent, 2), [65504.0, -65504.0])


def test_without_an_encoding_there_is_nothing_to_encode() -> None:
    with pytest.raises(ValueError, match="send the model"):
        Compression().encode(update(), np.random.default_rng(0))


@pytest.mark.parametrize(
    "wrong",
    [{"up": "zip"}, {"down": "quantize"}, {"bits": 0}, {"bits": 17}, {"fraction": 0.0}],
    ids=str,
)
def test_a_wrong_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Compression(**wrong)


# How long it is.


@each
@pytest.mark.parametrize("size", [0, 1, 2049, 100_000])
def test_the_bytes_of_a_reply_are_known_before_and_are_those_of_any_update(
    compression: Compression, size: int
) -> None:
    model = model_of(size)
    known = compression.reply_bytes(model, VectorLayout.of(model))
    for vector in (np.zeros(size), update(size), np.full(size, 1e9)):
        assert array_bytes(compression.encode(vector, np.random.default_rng(0))) == known


@pytest.mark.parametrize(
    ("name", "bits"),
    [("float16", 16), ("1 bit", 1), ("3 bits", 3), ("top tenth", 1.8), ("top hundredth", 0.48)],
)
def test_an_encoding_is_as_short_as_its_bits(name: str, bits: float) -> None:
    # Beside the numbers: 128 bytes a header, 16 bytes for each 2,048 numbers that are sent.
    model = model_of(1_000_000)
    sent = EVERY[name].reply_bytes(model, VectorLayout.of(model))
    assert bits * 125_000 <= sent <= bits * 125_000 + 384 + 16 * 489


def test_a_sum_of_units_is_eight_bytes_a_coordinate() -> None:
    layout = VectorLayout.of(model_of(1000))
    steps = layout.in_float64().unflatten(np.zeros(1000))
    assert layout.sum_bytes == array_bytes(steps) == 8000 + 128


# What a hostile reply can't do.


def changed(record: ArrayRecord, **arrays: Any) -> ArrayRecord:
    replaced = dict(record) | {n: Array(np.asarray(a)) for n, a in arrays.items() if a is not None}
    return ArrayRecord({n: a for n, a in replaced.items() if arrays.get(n, a) is not None})


@each
def test_a_name_too_many_or_too_few_is_refused(compression: Compression) -> None:
    good = encoded(compression)
    for bad in (changed(good, more=np.zeros(1)), changed(good, **{next(iter(good)): None})):
        with pytest.raises(RefusedUpdate, match="not encoded as it was asked for"):
            compression.decode(bad, SIZE)


@each
def test_another_length_or_another_dtype_is_refused(compression: Compression) -> None:
    good = encoded(compression)
    for name, array in good.items():
        items = array.numpy()
        for bad in (items[:-1], np.append(items, items), items.astype(np.float32), items[None]):
            with pytest.raises(RefusedUpdate, match="not as long or not of the kind"):
                compression.decode(changed(good, **{name: bad}), SIZE)


@each
def test_an_array_that_can_not_be_read_is_refused(compression: Compression) -> None:
    good = encoded(compression)
    for name, array in good.items():
        bad = ArrayRecord(dict(good) | {name: Array(array.dtype, array.shape, "pickle", b"x")})
        with pytest.raises(RefusedUpdate, match="can't be read"):
            compression.decode(bad, SIZE)


@each
def test_an_encoding_of_another_vector_is_refused(compression: Compression) -> None:
    with pytest.raises(RefusedUpdate):
        compression.decode(encoded(compression, SIZE + 2048), SIZE)


@pytest.mark.parametrize("name", ["3 bits", "top tenth"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, 1e307])
def test_scales_that_are_none_are_refused(name: str, bad: float) -> None:
    good = encoded(EVERY[name])
    scales = good["scales"].numpy().copy()
    scales[0, 1] = bad
    with pytest.raises(RefusedUpdate, match="scales"):
        EVERY[name].decode(changed(good, scales=scales), SIZE)


@pytest.mark.parametrize(
    "places",
    [
        np.full(50, 7),  # one place again and again
        np.arange(50)[::-1],
        np.append(np.arange(49), SIZE),  # past the end
        np.append(np.arange(49), 2**32 - 1),
    ],
)
def test_places_that_are_none_of_the_vector_are_refused(places: np.ndarray) -> None:
    good = encoded(EVERY["top hundredth"])
    with pytest.raises(RefusedUpdate, match="no different places"):
        EVERY["top hundredth"].decode(changed(good, places=places.astype("<u4")), SIZE)


@pytest.mark.parametrize("byte", [0, 255])
def test_a_bitmap_of_another_number_of_places_is_refused(byte: int) -> None:
    bitmap = np.full(SIZE // 8, byte, np.uint8)
    with pytest.raises(RefusedUpdate, match="not as many coordinates"):
        EVERY["top tenth"].decode(changed(encoded(EVERY["top tenth"]), places=bitmap), SIZE)


@pytest.mark.parametrize("name", EVERY)
def test_decoding_takes_memory_by_the_vector_and_not_by_what_a_reply_claims(name: str) -> None:
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776,), }\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\x01" * 64
    claim = Array("uint8", (2**40,), "numpy.ndarray", data)
    good = encoded(EVERY[name])
    tracemalloc.start()
    try:
        for array in good:
            with pytest.raises(RefusedUpdate):
                EVERY[name].decode(ArrayRecord(dict(good) | {array: claim}), SIZE)
        assert tracemalloc.get_traced_memory()[1] < 100 * SIZE
    finally:
        tracemalloc.stop()


# What a reply holds.


def test_a_plain_reply_is_read_as_a_model_whatever_was_asked_for() -> None:
    model = model_of(3)
    reply = RecordDict({"arrays": model, "metrics": MetricRecord()})
    for asked in (Compression(), Compression(down="float16"), *EVERY.values()):
        assert asked.update_in(reply, 3) is model


def test_an_encoded_update_that_nobody_asked_for_is_refused() -> None:
    reply = RecordDict({ENCODED_UPDATE: encoded(EVERY["3 bits"])})
    for asked in (Compression(), Compression(down="float16")):
        with pytest.raises(RefusedUpdate, match="nobody asked"):
            asked.update_in(reply, SIZE)


def test_a_model_beside_an_encoded_update_is_refused() -> None:
    reply = RecordDict({"arrays": model_of(3), ENCODED_UPDATE: encoded(EVERY["3 bits"], 3)})
    with pytest.raises(RefusedUpdate, match="exactly one"):
        EVERY["3 bits"].update_in(reply, 3)
