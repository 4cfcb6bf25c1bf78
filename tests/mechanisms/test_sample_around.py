"""The discrete Gaussian around real centres. False alarms: below 1e-6 a test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from laws import ALARM, DRAWS, law_p

from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian


def around_p(draws: np.ndarray, centre: float, scale: float) -> float:
    """P-value of draws under N_Z(centre, scale^2)."""
    nearest, reach = round(centre), int(14 * scale) + 2
    support = np.arange(nearest - reach, nearest + reach + 1)
    weights = np.exp(-((support - centre) ** 2) / (2 * scale**2))
    return law_p(draws, support, weights / weights.sum())


def drawn(centre: float, scale: float) -> np.ndarray:
    return DiscreteGaussian(scale).sample_around(np.full(DRAWS, centre), SecureRandom())


@pytest.mark.parametrize("centre", [0.0, 0.25, -0.5, 4095.75])
@pytest.mark.parametrize("scale", [0.5, 1.0, 33.0])
def test_draws_around_a_real_centre_follow_the_exact_law(centre: float, scale: float) -> None:
    assert around_p(drawn(centre, scale), centre, scale) > ALARM


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 33.0])
def test_the_law_test_rejects_another_scale_and_another_centre(scale: float) -> None:
    for factor in (2 / 3, 0.95, 3 / 2):
        assert around_p(drawn(0.25, factor * scale), 0.25, scale) < ALARM
    assert around_p(drawn(0.25 + 0.05 * scale, scale), 0.25, scale) < ALARM


def test_the_mean_is_the_centre_whatever_its_fraction() -> None:
    centres = np.repeat(np.linspace(-3.0, 3.0, 25), 50_000)
    apart = DiscreteGaussian(1.5).sample_around(centres, SecureRandom()) - centres
    means = apart.reshape(25, -1).mean(axis=1)
    # 6 standard errors: 25 means, 5e-8 in all. Rounding to the nearest would be off by a quarter.
    assert np.abs(means).max() < 6 * 1.5 / math.sqrt(50_000)


def test_each_draw_belongs_to_its_own_centre_beyond_one_chunk() -> None:
    centres = np.arange(100_000, dtype=np.float64) * 1000.0 + 0.5
    drawn = DiscreteGaussian(2.0).sample_around(centres, SecureRandom())
    assert np.abs(drawn - centres).max() < 25.0  # 12.5 deviations


@pytest.mark.parametrize("centre", [math.nan, math.inf, 2.0**53])
def test_a_centre_without_fractions_is_refused(centre: float) -> None:
    with pytest.raises(ValueError, match="centres must be finite"):
        DiscreteGaussian(2.0).sample_around(np.array([0.0, centre]), SecureRandom())


def test_a_scale_that_would_accept_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scale must be at least 0\.5"):
        DiscreteGaussian(0.2).sample_around(np.zeros(3), SecureRandom())
