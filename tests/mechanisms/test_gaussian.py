"""The Gaussian mechanism and its law. False alarms: below 1e-6 a test unless said otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from bucket_masses import table_masses
from laws import ALARM, DRAWS, discrete_gaussian_pmf, law_p
from scipy import stats

from fl_dp.mechanisms import GaussianMechanism, SecureRandom
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian, Proposals


def chi_square_p(draws: np.ndarray, scale: float) -> float:
    return law_p(draws, *discrete_gaussian_pmf(scale))


@pytest.mark.parametrize("scale", [0.5, 2.0, 15.9, 16.0, 100.3])
def test_the_sampler_follows_the_exact_law(scale: float) -> None:
    assert chi_square_p(DiscreteGaussian(scale).sample(DRAWS, SecureRandom()), scale) > ALARM


@pytest.mark.parametrize("scale", [0.5, 10.0])
def test_the_law_test_has_power(scale: float) -> None:
    draws = DiscreteGaussian(0.95 * scale).sample(DRAWS, SecureRandom())
    assert chi_square_p(draws, scale) < ALARM


@pytest.mark.parametrize(("scale", "variance"), [(0.5, 0.2150127), (1.0, 0.9999998)])
def test_the_variance_of_the_law_is_the_published_one(scale: float, variance: float) -> None:
    # theory: Canonne, Kamath and Steinke 2020; the numbers are the law's own sums.
    support, pmf = discrete_gaussian_pmf(scale)
    assert (pmf * support**2).sum() == pytest.approx(variance, abs=1e-6)
    draws = DiscreteGaussian(scale).sample(DRAWS, SecureRandom())
    assert draws.var() == pytest.approx(variance, rel=0.02)  # six standard errors


def table_error(proposals: Proposals, centre: float) -> float:
    """Largest relative error of the tables' probability of any bucket's first value.

    Tables give the proposal's probability exactly and the acceptance to float64; the law's own
    density is in extended precision.
    """
    buckets = proposals.buckets
    value = buckets.low
    log_ratio = proposals.log_ratio(value, np.full(value.size, centre), proposals.envelope)
    assert log_ratio.max() <= 0.0  # no acceptance above 1, or the law is bent at its peak
    got = (table_masses(buckets) * buckets.cap * np.exp(log_ratio)).astype(np.longdouble)
    apart = value.astype(np.longdouble) - np.longdouble(centre)
    ideal = np.exp(-(apart**2) / (2 * np.longdouble(proposals.scale) ** 2))
    ratio = (got / ideal)[np.abs(value) < 9 * proposals.scale]
    return float(np.max(np.abs(ratio / np.median(ratio) - 1)))


@pytest.mark.parametrize("scale", [1.0, 37.0, 2.0**30 * 1.7])
def test_rounding_the_table_does_not_bend_the_tails(scale: float) -> None:
    law = DiscreteGaussian(scale)
    assert table_error(law.centred, 0.0) < 2.0**-49
    for centre in (-0.5, -0.123, 0.0, 0.4999, 0.5):
        assert table_error(law._off_centre, centre) < 2.0**-49


@pytest.mark.parametrize("scale", [0.0, float("nan"), 2.0**40])
def test_a_scale_out_of_range_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        DiscreteGaussian(scale)


def standardised_release(mechanism: GaussianMechanism) -> np.ndarray:
    total = mechanism.encode(np.full(DRAWS, 1e-4))
    released = mechanism.release(total, mechanism.noise(DRAWS, SecureRandom()))
    return (released - total * mechanism.grid) / mechanism.noise_std


def variance_p(sample: np.ndarray) -> float:
    """Two-sided p-value of the sample variance under a standard normal law."""
    statistic = float((sample**2).sum())
    tail = stats.chi2.sf(statistic, sample.size), stats.chi2.cdf(statistic, sample.size)
    return 2 * float(min(tail))


@pytest.mark.parametrize(("multiplier", "norm"), [(0.3, 5.0), (40.0, 1e-3)])
def test_the_released_noise_is_gaussian_with_the_charged_deviation(
    multiplier: float, norm: float
) -> None:
    sample = standardised_release(
        GaussianMechanism(noise_multiplier=multiplier, clipping_norm=norm)
    )
    assert variance_p(sample) > ALARM
    assert stats.kstest(sample, "norm").pvalue > ALARM


def test_the_noise_tests_reject_a_tenth_less_and_more() -> None:
    sample = standardised_release(GaussianMechanism(noise_multiplier=1.1, clipping_norm=1.0))
    for wrong in (0.9, 1.1):
        assert variance_p(wrong * sample) < ALARM
        assert stats.kstest(wrong * sample, "norm").pvalue < ALARM


def test_noise_is_independent_across_coordinates_and_releases() -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.0, clipping_norm=1.0)
    first, second = standardised_release(mechanism), standardised_release(mechanism)
    bound = 5.0 / np.sqrt(DRAWS)  # five standard errors: 6e-7
    assert abs(np.mean(first * second)) < bound
    for lag in (1, 2, 64):
        assert abs(np.mean(first[lag:] * first[:-lag])) < bound


@pytest.mark.parametrize("true_value", [0.0, 1.0])
def test_no_released_value_is_off_the_grid_whatever_it_hides(true_value: float) -> None:
    # Mironov 2012: the spacing of floats gives the hidden value away; here there is one spacing.
    mechanism = GaussianMechanism(noise_multiplier=1.0, clipping_norm=2.0)
    vector = np.zeros(DRAWS)
    vector[0] = true_value
    total = mechanism.encode(vector)
    noise = mechanism.noise(DRAWS, SecureRandom())
    released = mechanism.release(np.full(DRAWS, total[0]), noise)
    steps = released / mechanism.grid
    assert np.count_nonzero(steps != np.rint(steps)) == 0


def test_the_grid_comes_from_the_configuration_and_is_a_power_of_two() -> None:
    for multiplier, norm in ((0.5, 1.0), (1.0, 0.1), (123.4, 7.0)):
        mechanism = GaussianMechanism(noise_multiplier=multiplier, clipping_norm=norm)
        assert np.frexp(mechanism.grid)[0] == 0.5
        assert 2**30 <= mechanism.noise_std / mechanism.grid < 2**31


def test_sums_on_the_grid_do_not_depend_on_their_order() -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.0, clipping_norm=1.0)
    rng = np.random.default_rng(1)
    encoded = [mechanism.encode(rng.normal(size=100)) for _ in range(500)]
    forward = sum(encoded)
    np.testing.assert_array_equal(forward, sum(reversed(encoded)))
