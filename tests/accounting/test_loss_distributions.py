"""Privacy-loss distributions: our own of sampled Gaussians, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from fl_dp.accounting import NeighboringRelation, PoissonGaussianEvent, PrivacyEvent
from fl_dp.accounting.bounds import pld_epsilon
from fl_dp.accounting.convolutions import composed_pair, composed_with_itself, epsilon_at
from fl_dp.accounting.events import freeze
from fl_dp.accounting.loss_distributions import (
    Distribution,
    NoDistribution,
    distribution_epsilon,
    poisson_gaussian,
    reporting_interval,
)
from fl_dp.mechanisms.mechanism_events import ExponentialEvent, GaussianEvent, ZcdpEvent

SETTINGS = [(0.5, 0.01), (1.0, 0.1), (1.0, 1.0), (3.0, 0.5), (0.2, 1e-3), (20.0, 0.9)]


def exact_deltas(z: float, q: float, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hockey-stick divergences of one release: mixture against plain, and the other way."""

    def where(loss: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            x = z * z * np.log((np.exp(loss) - (1 - q)) / q) + 0.5
        return np.where(np.isnan(x), -np.inf, x)

    x = where(at)
    remove = (1 - q) * ndtr(-x / z) + q * ndtr((1 - x) / z) - np.exp(at) * ndtr(-x / z)
    x = where(-at)
    mixture = (1 - q) * ndtr(x / z) + q * ndtr((x - 1) / z)
    add = ndtr(x / z) - np.exp(at) * mixture
    return remove, add


@pytest.mark.parametrize("interval", [1e-3, 1e-4])
@pytest.mark.parametrize(("z", "q"), SETTINGS)
def test_one_release_connects_the_dots_of_the_exact_profile(
    z: float, q: float, interval: float
) -> None:
    """Exact on the grid; between two points a straight line in e^epsilon, which lies above."""
    distribution = poisson_gaussian(z, q, interval)
    steps = np.arange(0, int(8 / interval), int(0.2 / interval))
    low, between, high = (interval * (steps + part) for part in (0.0, 0.3, 1.0))
    weight = np.expm1(between - low) / np.expm1(high - low)
    below, true, above = (exact_deltas(z, q, at) for at in (low, between, high))
    for side, pmf in enumerate((distribution._pmf_remove, distribution._pmf_add)):
        ours = np.array([pmf.get_delta_for_epsilon(float(e)) for e in (*low, *between)])
        on_grid, inside = np.split(ours, 2)
        assert np.all(on_grid >= below[side] - 1e-14)
        assert np.all(inside >= true[side] - 1e-14)
        assert on_grid == pytest.approx(below[side], rel=1e-7, abs=1e-14)
        line = (1 - weight) * below[side] + weight * above[side]
        assert inside == pytest.approx(line, rel=1e-7, abs=1e-14)


@pytest.mark.parametrize(("z", "q"), SETTINGS)
def test_masses_add_up_to_one(z: float, q: float) -> None:
    distribution = poisson_gaussian(z, q, 1e-3)
    for pmf in (distribution._pmf_remove, distribution._pmf_add):
        assert np.all(pmf._probs >= 0.0)
        assert pmf._probs.sum() + pmf._infinity_mass == pytest.approx(1.0, abs=1e-13)
        assert pmf._infinity_mass < 1e-21


@settings(max_examples=10)
@given(
    st.floats(0.4, 20.0),
    st.floats(1e-4, 1.0, exclude_max=True),
    st.integers(1, 2000),
    st.sampled_from([1e-3, 1e-5, 1e-8]),
)
def test_compositions_match_dp_accountings_own_distribution(
    z: float, q: float, rounds: int, delta: float
) -> None:
    theirs = library.from_gaussian_mechanism(
        z, value_discretization_interval=1e-3, sampling_prob=q
    ).self_compose(rounds)
    history: dict[PrivacyEvent, int] = {
        PoissonGaussianEvent(noise_multiplier=z, sampling_rate=q): rounds
    }
    ours = pld_epsilon(history, delta, interval=1e-3)
    # Both round pessimistically to the same grid; 1e-8 is what their cancellation leaves near 0.
    # Ours pays for the transform's rounding out of delta, which shows at small ones.
    exact = theirs.get_epsilon_for_delta(delta)
    above = 1e-5 if delta > 1e-6 else 2e-3
    assert exact * (1 - 1e-5) - 1e-8 <= ours <= exact * (1 + above) + 1e-8


PAIRS = {
    "two samples": (poisson_gaussian(1.0, 0.1, 1e-3), poisson_gaussian(0.5, 1.0, 1e-3)),
    "little noise": (poisson_gaussian(0.2, 1.0, 1e-3), poisson_gaussian(0.2, 0.5, 1e-3)),
    "next to nothing": (poisson_gaussian(1e4, 0.1, 1e-3), poisson_gaussian(1e4, 1.0, 1e-3)),
    "symmetric": (
        library.from_laplace_mechanism(2.0, value_discretization_interval=1e-3),
        library.from_laplace_mechanism(1.0, value_discretization_interval=1e-3),
    ),
    "one is symmetric": (
        library.from_laplace_mechanism(2.0, value_discretization_interval=1e-3),
        poisson_gaussian(1.0, 0.1, 1e-3),
    ),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_steps_on_arrays_are_the_library_s_entry_by_entry(
    pair: tuple[Distribution, Distribution],
) -> None:
    ours, theirs = composed_pair(*pair), pair[0].compose(pair[1])
    assert ours._symmetric == theirs._symmetric
    for side in ("_pmf_remove", "_pmf_add"):
        own, other = getattr(ours, side), getattr(theirs, side)
        assert (own._lower_loss, own._discretization) == (other._lower_loss, other._discretization)
        np.testing.assert_array_equal(own._probs, other._probs)
        assert own._infinity_mass == pytest.approx(other._infinity_mass, rel=1e-12, abs=1e-30)
    with np.errstate(over="ignore"):
        for delta in (0.999, 0.5, 1e-2, 1e-5, 1e-9, 1e-14, 1e-17):
            for distribution in (*pair, theirs):
                expected = distribution.get_epsilon_for_delta(delta)
                assert epsilon_at(distribution, delta) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("count", [2, 300])
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_equal_releases_compose_as_in_the_library(
    pair: tuple[Distribution, Distribution], count: int
) -> None:
    single = pair[0]
    ours, theirs = composed_with_itself(single, count), single.self_compose(count)
    assert ours._symmetric == theirs._symmetric
    for side in ("_pmf_remove", "_pmf_add"):
        own, other = getattr(ours, side), getattr(theirs, side)
        assert (own._lower_loss, own.size) == (other._lower_loss, other.size)
        # Powers of the transform round `count` times, in the library as well.
        np.testing.assert_allclose(own._probs, other._probs, atol=count * 2.0**-52, rtol=0)
        assert own._infinity_mass == pytest.approx(other._infinity_mass, rel=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("q", [1e-8, 0.3, 1.0 - 1e-9, 1.0])
@pytest.mark.parametrize("z", [0.03, 0.05, 1e4, 1e8])
def test_extreme_distributions_hold_numbers_only(z: float, q: float) -> None:
    """Losses beyond e^709 once made them NaN."""
    distribution = poisson_gaussian(z, q, 1e-3)
    for pmf in (distribution._pmf_remove, distribution._pmf_add):
        assert np.all(np.isfinite(pmf._probs)) and np.all(pmf._probs >= 0.0)
        assert pmf._probs.sum() + pmf._infinity_mass == pytest.approx(1.0, abs=1e-9)


def test_a_distribution_that_is_too_long_is_refused_and_its_epsilon_infinite() -> None:
    with pytest.raises(NoDistribution, match="too long"):
        poisson_gaussian(1e-3, 0.1, 1e-4)
    history = freeze([(PoissonGaussianEvent(noise_multiplier=0.05, sampling_rate=0.1), 1000)])
    assert distribution_epsilon(history, 1e-5, NeighboringRelation.ZERO_OUT, 1e-4) == math.inf


def test_zcdp_alone_has_no_distribution() -> None:
    assert pld_epsilon({ZcdpEvent(rho=0.1): 1}, 1e-5) == math.inf
    mixed: dict[PrivacyEvent, int] = {ZcdpEvent(rho=0.1): 1, GaussianEvent(noise_multiplier=5.0): 1}
    assert pld_epsilon(mixed, 1e-5) == math.inf


def test_many_different_events_are_reported_at_the_coarse_interval() -> None:
    few = freeze([(ExponentialEvent(epsilon=0.1 * k), 1) for k in range(1, 9)])
    many = freeze([(ExponentialEvent(epsilon=0.1 * k), 1) for k in range(1, 10)])
    assert (reporting_interval(few), reporting_interval(many)) == (1e-4, 1e-3)


def test_unsampled_gaussians_of_any_noise_are_one() -> None:
    """1/3^2 + 1/4^2 = 1/2.4^2."""
    two: dict[PrivacyEvent, int] = {
        GaussianEvent(noise_multiplier=3.0): 1,
        GaussianEvent(noise_multiplier=4.0): 1,
    }
    one: dict[PrivacyEvent, int] = {GaussianEvent(noise_multiplier=2.4): 1}
    assert pld_epsilon(two, 1e-5) == pytest.approx(pld_epsilon(one, 1e-5), rel=1e-9)
