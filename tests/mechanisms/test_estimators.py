"""Estimators of a weighted mean: brute force never beats the sensitivity, and comes near it."""

from __future__ import annotations

import numpy as np
import pytest

from fl_dp.mechanisms.clipping import capped_denominator_sensitivity

pytestmark = pytest.mark.slow

LEAST = 2.0
FIXED = 1.0 / LEAST  # a clipping norm of 1 over a public constant


def mean(weights: np.ndarray, updates: np.ndarray, *, capped: bool) -> np.ndarray:
    denominator = max(LEAST, float(weights.sum())) if capped else LEAST
    return np.asarray(weights @ updates / denominator)


def largest_change(*, capped: bool, trials: int = 20_000) -> float:
    """Remove one unit from random cohorts of units on the unit sphere, opposites among them."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(trials):
        size = int(rng.integers(1, 7))
        directions = np.sign(rng.standard_normal(size))[:, None] * np.array([[1.0, 0.0]])
        weights = rng.choice([1.0, 1.0, rng.random()], size)
        whole = mean(weights, directions, capped=capped)
        rest = mean(weights[1:], directions[1:], capped=capped)
        worst = max(worst, float(np.linalg.norm(whole - rest)))
    return worst


def test_a_fixed_denominator_moves_by_its_sensitivity_and_no_more() -> None:
    assert largest_change(capped=False) == pytest.approx(FIXED, rel=1e-12)


def test_a_capped_denominator_moves_by_more_than_once_and_at_most_twice_that() -> None:
    bound = capped_denominator_sensitivity(1.0, LEAST)
    assert bound == 2 * FIXED
    assert FIXED * 1.2 < largest_change(capped=True) <= bound


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_a_denominator_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="denominator"):
        capped_denominator_sensitivity(1.0, bad)
