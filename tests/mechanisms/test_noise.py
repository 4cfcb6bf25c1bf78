"""The laws of noise and coins. False alarms: below 1e-6 a test unless said otherwise."""

from __future__ import annotations

import multiprocessing
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fl_dp.mechanisms import DiscreteGaussian, GaussianMechanism, SecureRandom

DRAWS = 1_000_000
ALARM = 1e-6


def discrete_gaussian_pmf(scale: float) -> tuple[np.ndarray, np.ndarray]:
    reach = int(14 * scale) + 2
    support = np.arange(-reach, reach + 1)
    weights = np.exp(-(support.astype(float) ** 2) / (2 * scale**2))
    return support, weights / weights.sum()


def chi_square_p(draws: np.ndarray, scale: float) -> float:
    """P-value of the draws under the exact law, cells of at least five expected."""
    support, pmf = discrete_gaussian_pmf(scale)
    counts = np.array([np.count_nonzero(draws == x) for x in support])
    common = pmf * draws.size >= 5
    expected = np.append(pmf[common], pmf[~common].sum()) * draws.size
    observed = np.append(counts[common], draws.size - counts[common].sum())
    if expected[-1] < 5:  # a cell that is too rare on its own joins its neighbour
        expected = np.append(expected[:-2], expected[-2:].sum())
        observed = np.append(observed[:-2], observed[-2:].sum())
    return float(stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), expected.size - 1))


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 10.0, 15.9, 16.0, 100.3])
def test_the_sampler_follows_the_exact_law(scale: float) -> None:
    assert chi_square_p(DiscreteGaussian(scale).sample(DRAWS, SecureRandom()), scale) > ALARM


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 10.0])
def test_the_law_test_has_power(scale: float) -> None:
    draws = DiscreteGaussian(0.98 * scale).sample(DRAWS, SecureRandom())
    assert chi_square_p(draws, scale) < ALARM


@pytest.mark.parametrize(("scale", "variance"), [(0.5, 0.2150127), (1.0, 0.9999998)])
def test_the_variance_of_the_law_is_the_published_one(scale: float, variance: float) -> None:
    # theory: Canonne, Kamath and Steinke 2020; the numbers are the law's own sums.
    support, pmf = discrete_gaussian_pmf(scale)
    assert (pmf * support**2).sum() == pytest.approx(variance, abs=1e-6)
    draws = DiscreteGaussian(scale).sample(DRAWS, SecureRandom())
    assert draws.var() == pytest.approx(variance, rel=0.01)


def exact_accept_weights(law: DiscreteGaussian) -> float:
    """Largest relative error of the probability that the tables give any bucket's foot and peak."""
    keep, alias = law._keep, law._alias
    slots = keep.size
    mass = [0] * slots
    for slot in range(slots):
        kept = int(keep[slot])
        mass[slot] += kept
        mass[int(alias[slot])] += (1 << 54) - kept
    assert sum(mass) == 1 << 64
    proposed = np.array([m / 2**64 for m in mass[: law._cap.size]])
    ideal = np.exp(-(law._peak.astype(np.float64) ** 2) / (2 * law.scale**2))
    got = proposed * law._cap
    inner = np.abs(law._peak) < 9 * law.scale
    ratio = (got / ideal)[inner]
    return float(np.max(np.abs(ratio / np.median(ratio) - 1)))


@pytest.mark.parametrize("scale", [1.0, 37.0, 2.0**30 * 1.7])
def test_rounding_the_table_does_not_bend_the_tails(scale: float) -> None:
    assert exact_accept_weights(DiscreteGaussian(scale)) < 1e-12


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 2.0**40])
def test_a_scale_out_of_range_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        DiscreteGaussian(scale)


def standardised_release(mechanism: GaussianMechanism) -> np.ndarray:
    total = mechanism.encode(np.full(DRAWS, 1e-4))
    released = mechanism.release(total, SecureRandom())
    return (released - total * mechanism.grid) / mechanism.noise_std


def variance_p(sample: np.ndarray) -> float:
    """Two-sided p-value of the sample variance under a standard normal law."""
    statistic = float((sample**2).sum())
    tail = stats.chi2.sf(statistic, sample.size), stats.chi2.cdf(statistic, sample.size)
    return 2 * float(min(tail))


@pytest.mark.parametrize(("multiplier", "norm"), [(1.1, 1.0), (0.3, 5.0), (40.0, 1e-3)])
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
    released = mechanism.release(np.full(DRAWS, total[0]), SecureRandom())
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


@pytest.mark.parametrize("field", ["noise_multiplier", "clipping_norm"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_mechanism_without_noise_or_bound_is_refused(field: str, value: float) -> None:
    values = {"noise_multiplier": 1.0, "clipping_norm": 1.0} | {field: value}
    with pytest.raises(ValueError, match=field):
        GaussianMechanism(**values)


def test_coins_come_up_at_the_rate_and_independently() -> None:
    coins = SecureRandom().bernoulli(0.05, DRAWS)
    assert stats.binomtest(int(coins.sum()), DRAWS, 0.05).pvalue > ALARM
    centred = coins - 0.05
    assert abs(np.mean(centred[1:] * centred[:-1])) < 5 * 0.05 * 0.95 / np.sqrt(DRAWS)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_coin_outside_zero_and_one_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="probability"):
        SecureRandom().bernoulli(rate, 1)


def test_sure_coins_are_sure() -> None:
    rng = SecureRandom()
    assert rng.bernoulli(1.0, 10_000).all()
    assert not rng.bernoulli(0.0, 10_000).any()


def test_uniforms_are_uniform_and_inside_the_open_interval() -> None:
    sample = SecureRandom().uniforms(DRAWS)
    assert sample.min() > 0.0 and sample.max() < 1.0
    assert stats.kstest(sample, "uniform").pvalue > ALARM


def _first_word(rng: SecureRandom, into: multiprocessing.SimpleQueue) -> None:
    into.put(int(rng.words(1)[0]))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_processes_draw_different_noise() -> None:
    rng = SecureRandom()
    rng.words(1)  # keyed before the fork: the children must not go on with this key
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    children = [context.Process(target=_first_word, args=(rng, queue)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    words = {queue.get(), queue.get(), int(rng.words(1)[0])}
    assert len(words) == 3


def test_no_predictable_generator_is_used_where_privacy_depends_on_it() -> None:
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run(
        [
            "grep",
            "-rnE",
            r"np\.random|numpy\.random|random\.(random|sample|choice|shuffle|seed)\(|torch\.(randn|normal|manual_seed)",
            *("fl_dp/mechanisms", "fl_dp/accounting", "strategies"),
            "--include=*.py",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1, found.stdout
