"""Coefficients of correlated noise: which are best, and what they cost."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from fl_dp.accounting import (
    CyclicSampling,
    PoissonSampling,
    model_error,
    optimal_coefficients,
    squared_norm,
)
from fl_dp.accounting.banded import log_loss
from fl_dp.accounting.bounds import pld_epsilon
from fl_dp.accounting.calibration import calibrate_noise
from fl_dp.accounting.events import PoissonGaussianEvent
from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE

WHITE = (COEFFICIENT_ONE,)
EIGHTHS = (4096, 2048, 1536, 1280)  # 1, 1/2, 3/8, 5/16: every sum below is exact


def loss(coefficients: tuple[int, ...], rounds: int, **workload: Any) -> float:
    return model_error(coefficients, rounds, **workload) * squared_norm(coefficients)


def matrix(coefficients: tuple[int, ...], rounds: int) -> np.ndarray:
    out = np.zeros((rounds, rounds))
    for back, each in enumerate(coefficients[:rounds]):
        out += each / COEFFICIENT_ONE * np.eye(rounds, k=-back)
    return out


# --- Sensitivity ----------------------------------------------------------------------------------


def worst_pattern(coefficients: tuple[int, ...], rounds: int, cap: int, separation: int) -> float:
    """The largest sum of |C'C| over all sets of indices that a unit may have."""
    gram, worst = np.abs(matrix(coefficients, rounds).T @ matrix(coefficients, rounds)), 0.0
    for count in range(1, cap + 1):
        for at in itertools.combinations(range(rounds), count):
            if all(later - earlier >= separation for earlier, later in itertools.pairwise(at)):
                worst = max(worst, gram[np.ix_(at, at)].sum())
    return float(worst)


def test_three_participations_four_apart_cost_three_columns() -> None:
    assert worst_pattern(EIGHTHS, 12, 3, 4) == 3 * squared_norm(EIGHTHS) == 4.46484375


@pytest.mark.parametrize("rounds", [5, 9, 12])
@pytest.mark.parametrize("separation", [1, 2, 3, 4])
def test_no_pattern_costs_more_than_its_columns(rounds: int, separation: int) -> None:
    rng = np.random.default_rng(rounds + separation)
    for cap, bands in itertools.product((1, 2, 3, 4), range(1, separation + 1)):
        tail = rng.integers(1, COEFFICIENT_ONE, size=bands - 1)
        tail = tail * rng.choice([-1, 1], size=bands - 1)
        coefficients = (COEFFICIENT_ONE, *tail.tolist())
        charged = cap * squared_norm(coefficients)
        assert worst_pattern(coefficients, rounds, cap, separation) <= charged * (1.0 + 1e-12)


# --- The best coefficients ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bands", "best"),
    [
        (4, (4096, 2895, 2486, 2151)),
        (10, (4096, 2423, 1993, 1763, 1607, 1486, 1383, 1291, 1201, 1105)),
    ],
)
def test_coefficients_for_a_hundred_rounds(bands: int, best: tuple[int, ...]) -> None:
    found = optimal_coefficients(100, bands)
    assert all(type(each) is int for each in found)  # JSON and equality of plans
    # Another version of SciPy may end elsewhere in the last digit.
    np.testing.assert_allclose(found, best, atol=1)


# The first column of numbers is what jax_privacy 2.0.0's optimize_banded_toeplitz reaches.
@pytest.mark.parametrize(
    ("rounds", "bands", "published", "gain"),
    [
        (100, 10, 8.68187390, 2.412),
        (300, 30, 10.77003102, 3.738),
        (1000, 16, 39.41531727, 3.563),
        (1000, 100, 13.39267135, 6.113),
        (2000, 100, 20.41552224, 7.001),
    ],
)
def test_the_loss_is_that_of_another_optimiser(
    rounds: int, bands: int, published: float, gain: float
) -> None:
    best = optimal_coefficients(rounds, bands)
    assert loss(best, rounds) == pytest.approx(published, abs=1e-4)
    assert math.sqrt(loss(WHITE, rounds) / loss(best, rounds)) == pytest.approx(gain, abs=1e-3)
    assert all(earlier >= later > 0 for earlier, later in itertools.pairwise(best))


def test_independent_noise_adds_up() -> None:
    assert loss(WHITE, 100) == pytest.approx(101 / 2)


def test_the_error_is_that_of_the_matrices() -> None:
    momentum, rounds = 0.9, 30
    best = optimal_coefficients(rounds, 5, momentum)
    impulse = [sum(momentum**each for each in range(i + 1)) for i in range(rounds)]
    workload = sum(np.eye(rounds, k=-i) * each for i, each in enumerate(impulse))
    errors = np.square(workload @ np.linalg.inv(matrix(best, rounds))).sum(axis=1)
    assert model_error(best, rounds, momentum) == pytest.approx(errors.mean())


def test_the_square_roots_series_has_its_known_norm_and_error() -> None:
    places = np.arange(1, 1000)
    tail = np.cumprod((2 * places - 1) / (2 * places))
    value, _ = log_loss(tail.astype(np.float64), np.ones(1000), np.arange(1000, 0, -1) / 1000)
    assert 1.0 + tail @ tail == pytest.approx(3.26500308)
    assert math.exp(value) == pytest.approx(9.624, abs=1e-3)


def test_the_gradient_is_that_of_differences() -> None:
    rng = np.random.default_rng(3)
    tail = np.array(sorted(rng.uniform(0.1, 0.9, 6), reverse=True))
    workload, weights = np.cumsum(0.5 ** np.arange(40)), np.arange(40, 0, -1) / 40
    _, gradient = log_loss(tail, workload, weights)
    step = 1e-6
    for place in range(tail.size):
        moved = step * np.eye(tail.size)[place]
        above, below = (log_loss(tail + sign * moved, workload, weights)[0] for sign in (1, -1))
        assert gradient[place] == pytest.approx((above - below) / (2 * step), abs=1e-6)


def test_momentum_changes_what_is_best() -> None:
    best = optimal_coefficients(1000, 100, 0.9)
    white = loss(WHITE, 1000, momentum=0.9)
    plain = optimal_coefficients(1000, 100)
    assert math.sqrt(white / loss(best, 1000, momentum=0.9)) == pytest.approx(8.052, abs=2e-3)
    assert math.sqrt(white / loss(plain, 1000, momentum=0.9)) == pytest.approx(7.29, abs=5e-3)


def test_no_more_coefficients_than_rounds() -> None:
    assert len(optimal_coefficients(3, 10)) == 3
    assert optimal_coefficients(1, 10) == WHITE
    assert optimal_coefficients(100, 1) == WHITE


@pytest.mark.parametrize("arguments", [{"rounds": 0}, {"bands": 1001}, {"momentum": 1.0}])
def test_a_workload_out_of_range_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        optimal_coefficients(**({"rounds": 10, "bands": 2} | arguments))


# --- Amplification --------------------------------------------------------------------------------

RATE, SECOND = 0.3, 0.6


def two_rounds(*participations: tuple[float, float, float]) -> np.ndarray:
    """Masses of a mixture of unit Gaussians on a grid of the plane: weight and the two centres."""
    edges = np.linspace(-9.0, 11.0, 2001)
    step = edges[1] - edges[0]
    masses = [
        np.outer(weight * step * norm.pdf(edges - first), step * norm.pdf(edges - second))
        for weight, first, second in participations
    ]
    return np.asarray(np.sum(masses, axis=0))


def delta_of(one: np.ndarray, none: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * none, 0.0).sum())


def charged(delta: float, rounds: int, multiplier: float) -> float:
    """The epsilon of so many Poisson-sampled Gaussians."""
    event = PoissonGaussianEvent(noise_multiplier=multiplier, sampling_rate=RATE)
    return pld_epsilon([(event, rounds)], delta)


def test_one_coin_for_a_whole_column_is_one_event() -> None:
    # Two groups and two bands: a unit's block is both rounds, its coin that of the first.
    none = two_rounds((1.0, 0.0, 0.0))
    one = two_rounds((1 - RATE, 0.0, 0.0), (RATE, 1.0, SECOND))
    for epsilon, delta in ((0.5, 0.047730), (1.0, 0.017135), (2.0, 0.001717)):
        assert delta_of(one, none, epsilon) == pytest.approx(delta, abs=1e-6)
        # Rounded up, by the discretisation of distributions.
        spent = charged(delta, 1, 1 / math.hypot(1.0, SECOND))
        assert epsilon - 1e-4 < spent < epsilon + 2e-3


def test_a_coin_in_each_round_of_a_column_would_cost_more_than_its_events() -> None:
    # One group and two bands: why bands above the groups are refused.
    none = two_rounds((1.0, 0.0, 0.0))
    coins = two_rounds(
        ((1 - RATE) ** 2, 0.0, 0.0),
        (RATE * (1 - RATE), 1.0, SECOND),
        ((1 - RATE) * RATE, 0.0, 1.0),
        (RATE * RATE, 1.0, 1.0 + SECOND),
    )
    for epsilon, delta, claimed in (
        (0.5, 0.106966, 0.090621),
        (1.0, 0.053556, 0.039408),
        (2.0, 0.012512, 0.006111),
    ):
        assert delta_of(coins, none, epsilon) == pytest.approx(delta, abs=1e-6)
        assert charged(claimed, 2, 1 / math.hypot(1.0, SECOND)) == pytest.approx(epsilon, abs=2e-3)
        assert claimed < 0.9 * delta


@pytest.mark.parametrize(
    ("epsilon", "groups", "multiplier"), [(8.0, 32, 1.35013), (1.0, 4, 2.55982), (2.0, 1, 0.95910)]
)
def test_noise_of_a_thousand_rounds_in_groups(
    epsilon: float, groups: int, multiplier: float
) -> None:
    law = CyclicSampling(groups=groups, inside=PoissonSampling(sampling_rate=0.01 * groups))
    assert law.expected_cohort(10_000) == pytest.approx(100)
    found = calibrate_noise(lambda z: [(law.event(z, 10_000), law.turns(1000))], epsilon, 1e-5)
    assert found == pytest.approx(multiplier, rel=1e-3)
