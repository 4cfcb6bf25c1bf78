"""The Laplace mechanism and its law. False alarms: below 1e-6 a test."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from bucket_masses import table_masses
from laws import ALARM, DRAWS, discrete_laplace_pmf, law_p
from scipy import stats

from fl_dp.mechanisms import LaplaceMechanism, SecureRandom, laplace
from fl_dp.mechanisms.clipping import Norm
from fl_dp.mechanisms.laplace import DiscreteLaplace

pytestmark = pytest.mark.slow


def chi_square_p(draws: np.ndarray, scale: float) -> float:
    return law_p(draws, *discrete_laplace_pmf(scale))


@pytest.mark.parametrize("scale", [0.1, 1.0, 2 / math.log(2), 100.3])
def test_the_sampler_follows_the_exact_law(scale: float) -> None:
    assert chi_square_p(DiscreteLaplace(scale).sample(DRAWS, SecureRandom()), scale) > ALARM


@pytest.mark.parametrize("wrong", [0.9, 1.1])
@pytest.mark.parametrize("scale", [0.5, 10.0])
def test_the_law_test_rejects_a_tenth_less_and_more(scale: float, wrong: float) -> None:
    draws = DiscreteLaplace(wrong * scale).sample(DRAWS, SecureRandom())
    assert chi_square_p(draws, scale) < ALARM


@pytest.mark.parametrize("scale", [1.5 * 2.0**30, 2.0**34])
def test_a_wide_law_is_the_continuous_one_down_to_the_last_bit(scale: float) -> None:
    draws = DiscreteLaplace(scale).sample(DRAWS, SecureRandom())
    assert stats.kstest(draws / scale, "laplace").pvalue > ALARM
    for wrong in (0.9, 1.1):
        assert stats.kstest(wrong * draws / scale, "laplace").pvalue < ALARM
    assert law_p(draws & 0xFF, np.arange(256), np.full(256, 1 / 256)) > ALARM


@pytest.mark.parametrize("scale", [0.05, 1.0, 37.0, 2.0**30 * 1.7, 2.0**34])
def test_what_is_proposed_times_what_is_accepted_is_the_target_out_to_60_scales(
    scale: float,
) -> None:
    # Inside the table a value's log-probability is its bucket's share of what was proposed, plus
    # the log of its acceptance. Beyond an end it is the end's, plus that of the rest on 0, 1, 2, ..
    law = DiscreteLaplace(scale)
    table = law._buckets
    share = np.log(table_masses(table).astype(np.longdouble) * table.cap)
    width = int(table.low[1] - table.low[0])
    middle = share.size // 2
    assert table.low[middle] == 0
    on_its_side = -np.log(-np.expm1(np.longdouble(-1.0 / scale)))  # of all from 0 on

    def log_probability(value: int) -> Any:
        if value >= law._end or value < -law._end:  # its end, then the rest from 0 on
            end, first = (-1, law._end) if value > 0 else (0, -law._end - 1)
            rest = abs(value - first)
            return share[end] + log_probability(rest) - share[middle] - on_its_side + log_width
        (odds,) = law._odds(*(np.array([each]) for each in (value, bucket_of(value), 0)))
        return share[bucket_of(value)] + np.log(np.longdouble(odds))

    def bucket_of(value: int) -> int:
        return value // width + int(middle)

    log_width = np.log(np.longdouble(width))
    at_zero = log_probability(0)
    for magnitude in {int(scale * part) for part in (0.1, 0.7, 1, 3.3, 11, 20, 60)} - {0}:
        for value in (magnitude, -magnitude):
            error = log_probability(value) - at_zero + magnitude / np.longdouble(scale)
            assert abs(error) <= (4 + magnitude / scale) * 2.0**-51, value


@pytest.mark.parametrize("scale", [0.3, 5.0, 2.0**30])
def test_the_law_goes_on_beyond_the_end_of_its_table(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laplace, "_REACH", 2.0)  # a tenth is beyond, and a hundredth twice
    draws = DiscreteLaplace(scale).sample(DRAWS, SecureRandom())
    if scale > 1000.0:
        assert stats.kstest(draws / scale, "laplace").pvalue > ALARM
    else:
        assert chi_square_p(draws, scale) > ALARM


@pytest.mark.parametrize(("multiplier", "norm"), [(0.3, 5.0), (40.0, 1e-3)])
def test_the_released_noise_is_laplace_with_the_charged_scale(
    multiplier: float, norm: float
) -> None:
    mechanism = LaplaceMechanism(noise_multiplier=multiplier, clipping_norm=norm)
    total = mechanism.encode(np.full(DRAWS, 1e-4))
    drawn = mechanism.noise(total.size, SecureRandom())
    noise = mechanism.release(total, drawn) - total * mechanism.grid
    assert mechanism.noise_scale == multiplier * norm
    assert mechanism.noise_std == pytest.approx(math.sqrt(2) * multiplier * norm)
    assert stats.kstest(noise / mechanism.noise_scale, "laplace").pvalue > ALARM
    for wrong in (0.9, 1.1):
        off = wrong * noise / mechanism.noise_scale
        assert stats.kstest(off, "laplace").pvalue < ALARM


def test_moving_one_unit_changes_no_log_probability_by_more_than_epsilon() -> None:
    # In rational arithmetic: the law's log-probabilities are -|x| / s up to a constant.
    mechanism = LaplaceMechanism(noise_multiplier=0.4, clipping_norm=3.0)
    assert mechanism.epsilon == 2.5
    scale = Fraction(mechanism.noise_scale) / Fraction(mechanism.grid)
    worst = Fraction(0)
    for update in ([3.0], [-1e9], [1.0, -1.0, 1.0], np.full(1000, -7.0), [np.nan], [0.0]):
        shift = [int(step) for step in mechanism.encode(update)]
        worst = max(worst, sum(map(abs, shift)) / scale)
    assert worst <= 2.5
    assert worst > 2.5 * (1 - 1e-6)  # attained


def test_an_l2_bound_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sqrt\(d\).*'l2'.*write clipping='l1'"):
        LaplaceMechanism(noise_multiplier=1.0, clipping_norm=1.0, clipping=Norm.L2)
