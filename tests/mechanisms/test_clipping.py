from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl_dp.mechanisms import GaussianMechanism, clip_by_norm, l2_norm

ANY_FLOAT = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.float16]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    elements=st.floats(width=16, allow_nan=True, allow_infinity=True),
)


def exact_norm(values: np.ndarray) -> float:
    return math.hypot(*np.asarray(values, dtype=np.float64).reshape(-1).tolist(), 0.0)


@given(ANY_FLOAT, st.floats(1e-6, 1e6))
def test_no_contribution_is_longer_than_the_clipping_norm(update: np.ndarray, norm: float) -> None:
    clipped = clip_by_norm(update, norm)
    assert exact_norm(clipped) <= norm
    assert clipped.shape == update.shape
    assert clipped.dtype == np.float64


@pytest.mark.parametrize(
    "hostile",
    [
        [np.nan, 1.0],
        [np.inf, 1.0],
        [-np.inf, 0.0],
        [np.inf, np.nan],
        [1.7e308, 1.7e308],
        np.float64("nan"),
    ],
)
def test_an_update_that_is_not_finite_contributes_zero(hostile: object) -> None:
    assert not clip_by_norm(hostile, 1.0).any()


@pytest.mark.parametrize("huge", [1e30, 1e155, 1e200, 1e308])
def test_a_huge_update_is_clipped_and_keeps_its_direction(huge: float) -> None:
    clipped = clip_by_norm([huge, -huge, 0.0], 2.0)
    assert exact_norm(clipped) <= 2.0
    np.testing.assert_allclose(clipped, [math.sqrt(2), -math.sqrt(2), 0.0], rtol=1e-9)


def test_a_zero_update_stays_zero() -> None:
    assert not clip_by_norm(np.zeros(3), 1.0).any()


@pytest.mark.parametrize("tiny", [5e-324, 1e-200, 1e-160])
def test_a_tiny_update_is_left_alone(tiny: float) -> None:
    np.testing.assert_array_equal(clip_by_norm([tiny, 0.0], 1.0), [tiny, 0.0])
    assert l2_norm(np.array([tiny, 0.0])) == pytest.approx(tiny, rel=1e-12)


def test_a_short_update_is_unchanged() -> None:
    np.testing.assert_array_equal(clip_by_norm([0.3, -0.4], 1.0), [0.3, -0.4])


def test_zero_dimensional_and_integer_arrays_are_clipped_like_any_other() -> None:
    assert clip_by_norm(np.float32(-7.0), 2.0) == pytest.approx(-2.0, rel=1e-9)
    np.testing.assert_allclose(clip_by_norm(np.array([30, 40]), 5.0), [3.0, 4.0], rtol=1e-9)


def test_the_norm_does_not_overflow_in_float32() -> None:
    assert l2_norm(np.full(4, 1e25, np.float32).astype(np.float64)) == pytest.approx(2e25)


def test_the_input_is_not_changed() -> None:
    update = np.array([3.0, 4.0])
    clip_by_norm(update, 1.0)
    np.testing.assert_array_equal(update, [3.0, 4.0])


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf])
def test_a_clipping_norm_must_be_positive_and_finite(norm: float) -> None:
    with pytest.raises(ValueError, match="clipping_norm"):
        clip_by_norm([1.0], norm)


@given(ANY_FLOAT, st.floats(1e-3, 1e3), st.floats(0.1, 100.0))
def test_an_encoded_update_is_integer_and_no_longer_than_the_clipping_norm(
    update: np.ndarray, norm: float, multiplier: float
) -> None:
    mechanism = GaussianMechanism(noise_multiplier=multiplier, clipping_norm=norm)
    steps = mechanism.encode(update)
    np.testing.assert_array_equal(steps, np.rint(steps))
    # In integers, so that the check itself can't round.
    squared = sum(int(step) ** 2 for step in steps.reshape(-1))
    bound = norm / mechanism.grid
    assert squared <= int(bound) ** 2 + 2 * int(bound) + 1


def test_exchanging_one_unit_moves_the_encoded_sum_by_at_most_the_sensitivity() -> None:
    rng = np.random.default_rng(0)
    mechanism = GaussianMechanism(noise_multiplier=1.0, clipping_norm=1.0)
    worst = 0.0
    hostile = [np.eye(1, 8)[0] * 1e9, -np.ones(8), np.full(8, np.nan), np.zeros(8)]
    for _ in range(50):
        cohort = [mechanism.encode(rng.normal(size=8) * 10) for _ in range(5)]
        others = sum(cohort)
        for update in hostile:
            moved = (others + mechanism.encode(update)) - others
            worst = max(worst, exact_norm(moved) * mechanism.grid)
    assert worst <= 1.0
    assert worst > 1.0 - 1e-6  # the bound is attained, so the test would see a looser one
