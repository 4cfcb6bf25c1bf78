from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl_dp.mechanisms import GaussianMechanism, LaplaceMechanism, clip_by_norm
from fl_dp.mechanisms.clipping import Norm, joint_clipping_norm, l1_norm, l2_norm

pytestmark = pytest.mark.slow

ANY_FLOAT = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.float16]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    elements=st.floats(width=16, allow_nan=True, allow_infinity=True),
)


def exact_norm(values: np.ndarray) -> float:
    return math.hypot(*np.asarray(values, dtype=np.float64).reshape(-1).tolist(), 0.0)


def is_within(values: np.ndarray, bound: float, norm: Norm = Norm.L2) -> bool:
    """Whether the norm is at most the bound, in rational arithmetic: the check can't round."""
    exact = [Fraction(value) for value in np.asarray(values, dtype=np.float64).reshape(-1).tolist()]
    if norm is Norm.L1:
        return sum(map(abs, exact)) <= Fraction(bound)
    return sum(value**2 for value in exact) <= Fraction(bound) ** 2


@pytest.mark.parametrize("kind", list(Norm))
@given(update=ANY_FLOAT, norm=st.floats(1e-6, 1e6))
def test_no_contribution_is_longer_than_the_clipping_norm(
    kind: Norm, update: np.ndarray, norm: float
) -> None:
    clipped = clip_by_norm(update, norm, kind)
    assert is_within(clipped, norm, kind)
    assert clipped.shape == update.shape
    assert clipped.dtype == np.float64


@pytest.mark.parametrize("kind", list(Norm))
@given(
    update=hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4),
        elements=st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True),
    ),
    norm=st.floats(1e-249, 1e300),
)
def test_the_bound_holds_over_all_of_float64(kind: Norm, update: np.ndarray, norm: float) -> None:
    clipped = clip_by_norm(update, norm, kind)
    assert is_within(clipped, norm, kind)
    signs = np.sign(np.where(np.isfinite(update), update, 0.0))
    assert np.all(clipped * signs >= 0.0)  # nothing turns round


@pytest.mark.parametrize("kind", list(Norm))
@pytest.mark.parametrize("entry", [1 / 3, 1e30])
def test_the_bound_holds_for_long_vectors_whose_rounding_errors_add_up(
    kind: Norm, entry: float
) -> None:
    clipped = clip_by_norm(np.full(3_000_000, entry), 1e-3 * entry, kind)
    assert np.unique(clipped).size == 1
    share, bound = Fraction(float(clipped[0])), Fraction(1e-3 * entry)
    if kind is Norm.L1:
        assert clipped.size * share <= bound
    else:
        assert clipped.size * share**2 <= bound**2
    assert exact_norm(clipped[:1]) > 0.0


@pytest.mark.parametrize("kind", list(Norm))
def test_the_bound_holds_where_the_factor_itself_would_lose_digits(kind: Norm) -> None:
    for share in range(1, 100):
        clipped = clip_by_norm([1e308, 3e307], share * 1e-9, kind)
        assert is_within(clipped, share * 1e-9, kind)
        assert clipped.any()


def test_norms_agree_with_their_definitions() -> None:
    values = np.random.default_rng(0).normal(size=(100, 131))
    assert l1_norm(values) == pytest.approx(math.fsum(np.abs(values).reshape(-1)), rel=1e-14)
    assert l2_norm(values) == pytest.approx(exact_norm(values), rel=1e-14)
    assert l1_norm(np.zeros(0)) == l2_norm(np.zeros(0)) == 0.0
    assert l1_norm(np.array(-3.0)) == l2_norm(np.array(-3.0)) == 3.0
    assert l1_norm(np.full(2, 1.7e308)) == l2_norm(np.full(2, 1.7e308)) == math.inf
    assert math.isnan(l1_norm(np.array([np.nan, 1.0])))
    assert not math.isfinite(l2_norm(np.array([np.nan, np.inf])))


def test_an_l1_clipped_vector_is_scaled_and_keeps_its_direction() -> None:
    np.testing.assert_allclose(clip_by_norm([3.0, -1.0], 2.0, Norm.L1), [1.5, -0.5], rtol=1e-9)
    np.testing.assert_array_equal(clip_by_norm([0.5, -0.25], 1.0, Norm.L1), [0.5, -0.25])


def test_half_and_extended_precision_are_clipped_like_any_other() -> None:
    bfloat16 = np.array([0x7F7F0000, 0xFF7F0000], dtype=np.uint32).view(np.float32)  # its largest
    for update in (np.full(2, 6e4, np.float16), np.full(2, 3e38, np.longdouble), bfloat16):
        clipped = clip_by_norm(update, 1.0)
        np.testing.assert_allclose(np.abs(clipped), math.sqrt(0.5), rtol=1e-6)
    assert not clip_by_norm(np.array([np.longdouble(10) ** 400, 1.0]), 1.0).any()


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
def test_an_update_that_is_not_finite_contributes_zero(hostile: Any) -> None:
    assert not clip_by_norm(hostile, 1.0).any()


@pytest.mark.parametrize("huge", [1e30, 1e155, 1e200, 1e308])
def test_a_huge_update_is_clipped_and_keeps_its_direction(huge: float) -> None:
    clipped = clip_by_norm([huge, -huge, 0.0], 2.0)
    assert exact_norm(clipped) <= 2.0
    np.testing.assert_allclose(clipped, [math.sqrt(2), -math.sqrt(2), 0.0], rtol=1e-9)


@pytest.mark.parametrize("tiny", [5e-324, 1e-200, 1e-160])
def test_a_tiny_update_is_left_alone(tiny: float) -> None:
    np.testing.assert_array_equal(clip_by_norm([tiny, 0.0], 1.0), [tiny, 0.0])
    assert l2_norm(np.array([tiny, 0.0])) == pytest.approx(tiny, rel=1e-12)


def test_the_input_is_not_changed() -> None:
    update = np.array([3.0, 4.0])
    clip_by_norm(update, 1.0)
    np.testing.assert_array_equal(update, [3.0, 4.0])


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf, 1e-300])
def test_a_clipping_norm_must_be_positive_and_finite(norm: float) -> None:
    with pytest.raises(ValueError, match="clipping_norm"):
        clip_by_norm([1.0], norm)


def test_the_joint_bound_of_layers_is_attained() -> None:
    assert joint_clipping_norm([3.0, 4.0]) == 5.0
    together = exact_norm(np.append(clip_by_norm([9.0, 0.0], 3.0), clip_by_norm(-9.0, 4.0)))
    assert 5.0 * (1 - 1e-9) < together <= 5.0


@pytest.mark.parametrize("bounds", [[1.0, 0.0], [1.0, math.nan], []])
def test_layers_without_bounds_have_no_joint_one(bounds: list[float]) -> None:
    with pytest.raises(ValueError, match="norm"):
        joint_clipping_norm(bounds)


@pytest.mark.parametrize("kind", [GaussianMechanism, LaplaceMechanism])
@given(
    update=ANY_FLOAT,
    norm=st.floats(1e-3, 1e3),
    multiplier=st.floats(0.1, 100.0),
)
def test_an_encoded_update_is_integer_and_no_longer_than_the_clipping_norm(
    kind: type, update: np.ndarray, norm: float, multiplier: float
) -> None:
    mechanism = kind(noise_multiplier=multiplier, clipping_norm=norm)
    steps = mechanism.encode(update)
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert steps.shape == update.shape
    assert is_within(steps, norm / mechanism.grid, mechanism.clipping)  # the grid divides exactly


HOSTILE = [np.eye(1, 8)[0] * 1e9, -np.ones(8), np.full(8, np.nan), np.zeros(8), np.full(8, 1e300)]


@pytest.mark.parametrize("kind", [GaussianMechanism, LaplaceMechanism])
def test_exchanging_one_unit_moves_the_encoded_sum_by_at_most_the_sensitivity(kind: type) -> None:
    rng = np.random.default_rng(0)
    mechanism = kind(noise_multiplier=1.0, clipping_norm=1.0)
    norm = l1_norm if mechanism.clipping is Norm.L1 else l2_norm
    worst = 0.0
    for _ in range(50):
        cohort = [mechanism.encode(rng.normal(size=8) * 10) for _ in range(5)]
        others = sum(cohort)
        for update in HOSTILE:
            moved = (others + mechanism.encode(update)) - others
            worst = max(worst, norm(moved) * mechanism.grid)
    assert worst <= 1.0
    assert worst > 1.0 - 1e-6  # the bound is attained, so the test would see a looser one
