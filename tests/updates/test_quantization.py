"""Stochastic rounding: right on average, off by less than a level, and as long as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl_dp.updates.quantization import (
    LARGEST,
    Quantized,
    codes_shape,
    dequantize,
    quantize,
    scales_shape,
)

BITS = range(1, 17)
SIX_SIGMA = 6.0  # two in a billion draws lie further out
CHUNK = 2048
SIZES = (0, 1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 32 * CHUNK, 32 * CHUNK + 1, 200_001)


def sent(values: np.ndarray, bits: int, seed: int = 0) -> np.ndarray:
    quantized = quantize(values, bits, np.random.default_rng(seed))
    return dequantize(quantized, values.size, bits)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bits", BITS)
def test_every_number_is_off_by_less_than_a_level_of_its_chunk(bits: int, size: int) -> None:
    values = np.random.default_rng(1).normal(size=size) * np.logspace(-3, 3, size)
    quantized = quantize(values, bits, np.random.default_rng(0))
    assert quantized.scales.shape == scales_shape(size)
    assert quantized.codes.shape == codes_shape(size, bits)
    received = dequantize(quantized, size, bits)
    for start in range(0, size, CHUNK):
        part, decoded = values[start : start + CHUNK], received[start : start + CHUNK]
        level = np.ptp(part) / (2**bits - 1)
        assert np.abs(decoded - part).max() <= level * (1.0 + 1e-9)


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_number_between_two_levels_is_right_on_average(bits: int, place: float) -> None:
    # 100 chunks of one number between the first two levels, and one at either end. Rounding to
    # nearest would be 0.1 levels off at least; six sigma of the mean are 0.007 levels.
    top = 2**bits - 1
    values = np.full((100, CHUNK), place)
    values[:, 0], values[:, 1] = 0.0, top
    decoded = sent(values.ravel(), bits).reshape(values.shape)[:, 2:]
    spread = math.sqrt(place * (1.0 - place) / decoded.size)
    assert decoded.mean() == pytest.approx(place, abs=SIX_SIGMA * spread)
    assert set(np.unique(decoded)) == {0.0, 1.0}


def test_two_numbers_are_rounded_independently_of_each_other() -> None:
    values = np.tile([0.0, *[0.5] * (CHUNK - 2), 1.0], 100)
    decoded = sent(values, 1).reshape(100, CHUNK)[:, 1:-1]
    left, right = decoded[:, :-1].ravel() - 0.5, decoded[:, 1:].ravel() - 0.5
    correlation = (left * right).mean() / 0.25
    assert abs(correlation) < SIX_SIGMA / math.sqrt(left.size)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_vector_that_lies_on_the_levels_loses_nothing(bits: int) -> None:
    places = np.random.default_rng(2).integers(0, 2**bits, 3 * CHUNK)
    places[::CHUNK], places[1::CHUNK] = 0, 2**bits - 1
    points = np.linspace(-1.5, 1.5, 2**bits)[places]
    np.testing.assert_allclose(sent(points, bits), points, atol=1e-14)


@pytest.mark.parametrize("constant", [0.0, -3.5, 1e-300, LARGEST])
def test_a_constant_chunk_loses_nothing(constant: float) -> None:
    np.testing.assert_array_equal(sent(np.full(5, constant), 1), np.full(5, constant))


@given(
    values=hnp.arrays(
        np.float64, st.integers(0, 50), elements=st.floats(-LARGEST, LARGEST, allow_nan=False)
    ),
    bits=st.integers(1, 16),
)
def test_every_vector_of_finite_numbers_stays_in_its_range(values: np.ndarray, bits: int) -> None:
    received = sent(values, bits)
    assert received.shape == values.shape
    if values.size:
        low, high = values.min(), values.max()
        slack = 1e-12 * max(abs(low), abs(high))
        assert (received >= low - slack).all()
        assert (received <= high + slack).all()


@pytest.mark.parametrize(
    "scale",
    [(np.nan, 1.0), (0.0, np.nan), (np.inf, 1.0), (0.0, np.inf), (0.0, -1.0), (1e301, 0.0)],
)
def test_scales_that_no_encoder_writes_are_refused(scale: tuple[float, float]) -> None:
    quantized = quantize(np.arange(5.0), 4, np.random.default_rng(0))
    with pytest.raises(ValueError, match="scales"):
        dequantize(Quantized(np.array([scale]), quantized.codes), 5, 4)
