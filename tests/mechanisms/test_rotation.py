"""The public rotation of narrow sums: exactly what keeps norms, and spreads whatever comes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fl_dp.mechanisms.rotation import ROTATED, largest_stretch, rotated, rotated_back

SIZES = (0, 1, 2, 3, 7, 8, 50, 64, 100, 20_000)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 19])
def test_it_is_orthogonal(size: int) -> None:
    matrix = np.array([rotated(row) for row in np.eye(size)])
    assert np.allclose(matrix @ matrix.T, np.eye(size), atol=1e-14)


# Squares of numbers below 1e-154 have few digits, and norms as few.
NUMBERS = st.floats(-1e9, 1e9).map(lambda number: round(number, 9))


@given(arrays(np.float64, st.sampled_from(SIZES), elements=NUMBERS))
def test_it_keeps_the_norm_and_is_taken_back(values: np.ndarray) -> None:
    before = values.copy()
    found = rotated(values)
    assert (values == before).all()  # a copy
    norm = np.linalg.norm(values)
    assert abs(np.linalg.norm(found) - norm) <= 1e-13 * norm
    assert np.linalg.norm(rotated_back(found) - values) <= 1e-13 * norm


def test_its_rounding_is_within_what_the_sensitivity_allows() -> None:
    """Against the same in integers: multiples of signs and of 2^m are exact."""
    random = np.random.default_rng(0)
    size = 1 << 16  # one transform, whose scale is 1 / 256
    values = random.integers(-(2**30), 2**30, size).astype(np.float64)
    exact = rotated(values)  # sums below 2^53: nothing is rounded
    for scale in (1.0 / 3.0, math.pi, 1e-7):
        error = np.linalg.norm(rotated(values * scale) - exact * scale)
        # The product rounds either side by 2^-53 of each entry at most.
        assert error <= (ROTATED + 2.0**-52) * np.linalg.norm(values * scale)


@pytest.mark.parametrize("size", [650, 7_850, 20_000])
def test_it_spreads_what_is_not_made_for_it(size: int) -> None:
    one, flat, steep = np.zeros(size), np.ones(size), 1.0 / np.arange(1.0, size + 1.0)
    one[size // 3] = 1.0
    for values in (one, flat, steep):
        bound = 8.0 * np.linalg.norm(values) / math.sqrt(largest_stretch(size))
        assert np.abs(rotated(values)).max() <= bound
    assert np.abs(one).max() > 8.0 / math.sqrt(largest_stretch(size))  # what it is for


def test_a_vector_that_is_made_for_it_becomes_one_entry() -> None:
    made = np.zeros(650)
    made[17] = 1.0
    found = rotated(rotated_back(made))
    assert found[17] == pytest.approx(1.0) and np.abs(np.delete(found, 17)).max() < 1e-14


def test_it_is_the_same_in_every_version() -> None:
    """Nodes and server of different versions must agree on it."""
    assert rotated(np.arange(1.0, 6.0)) == pytest.approx([-2.0, -0.5, -6.5, -2.5, 1.5])


def test_infinities_are_signs_and_nan_stays() -> None:
    values = np.zeros(100)
    values[0], values[99] = math.inf, -1e308
    assert np.isfinite(rotated(values)).all()
    values[5] = math.nan
    assert np.isnan(rotated(values)).any()
