"""Independent, spaced and cyclic noise at one promise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fl_dp.accounting import (
    CyclicSampling,
    PoissonSampling,
    VisibleSampling,
    epsilon,
    model_error,
    optimal_coefficients,
    squared_norm,
)
from fl_dp.accounting.noise_comparison import (
    NoisePrice,
    NoiseRequest,
    best_noise,
    compare_noise,
    error_after,
)


def wanted(**changes: Any) -> NoiseRequest:
    fields: dict[str, Any] = dict(num_units=1000, cohort=100, rounds=100, epsilon=8.0, delta=1e-5)
    return NoiseRequest(**(fields | changes))


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def prices(told: list[str]) -> dict[str, NoisePrice]:
    return {price.name: price for price in compare_noise(wanted(), progress=told.append)}


def test_errors_are_those_of_the_published_table(prices: dict[str, NoisePrice]) -> None:
    poisson = prices["independent, Poisson"]
    assert poisson.noise_multiplier == pytest.approx(0.93593, rel=1e-3)
    relative = {name: price.error / poisson.error for name, price in prices.items()}
    assert relative["spaced, 10 rounds apart"] == pytest.approx(0.841, abs=2e-3)
    assert relative["cyclic, 8 groups"] == pytest.approx(0.858, abs=2e-3)
    assert relative["independent, cap"] == pytest.approx(2.03, abs=1e-2)


def test_all_keep_the_same_promise(prices: dict[str, NoisePrice]) -> None:
    for price in prices.values():
        event = price.sampling.event(price.noise_multiplier, 1000)
        spent = epsilon([(event, price.charged_rounds)], 1e-5).best
        assert 7.99 < spent <= 8.0
        assert price.promise


def test_the_error_is_the_noise_times_what_its_matrix_leaves(prices: dict[str, NoisePrice]) -> None:
    price = prices["spaced, 10 rounds apart"]
    assert price.coefficients == optimal_coefficients(100, 10)
    left = math.sqrt(model_error(price.coefficients, 100) * squared_norm(price.coefficients))
    assert price.error == pytest.approx(price.noise_multiplier * left / 100)
    assert (price.bands, price.remembered, price.charged_rounds) == (10, 9, 10)
    white = prices["independent, Poisson"]
    assert error_after(white, wanted(), 100) == pytest.approx(white.noise_multiplier * 0.1)


def test_each_law_is_the_one_that_is_charged(prices: dict[str, NoisePrice]) -> None:
    assert prices["independent, Poisson"].sampling == PoissonSampling(sampling_rate=0.1)
    assert prices["independent, cap"].sampling == VisibleSampling(cohort=100)
    assert prices["spaced, 10 rounds apart"].sampling == VisibleSampling(cohort=100, separation=10)
    cyclic = prices["cyclic, 8 groups"]
    assert cyclic.sampling == CyclicSampling(groups=8, inside=PoissonSampling(sampling_rate=0.8))
    assert cyclic.charged_rounds == 13  # not 12.5
    assert all(price.bands <= max(price.separation, 1) for price in prices.values())


def test_progress_is_told_before_each(prices: dict[str, NoisePrice], told: list[str]) -> None:
    assert len(told) == len(prices)


def test_the_simplest_within_two_percent_is_picked(prices: dict[str, NoisePrice]) -> None:
    assert best_noise(list(prices.values())).name == "cyclic, 4 groups"
    poisson, spaced = prices["independent, Poisson"], prices["spaced, 10 rounds apart"]
    near = replace(poisson, error=1.019 * spaced.error)
    assert best_noise([near, spaced]) is near
    assert best_noise([replace(near, error=1.03 * spaced.error), spaced]) is spaced


def test_without_secret_cohorts_nothing_is_amplified() -> None:
    seen = compare_noise(wanted(secret_cohorts=False))
    assert [price.noise for price in seen] == ["independent", "spaced"]
    assert all(price.sampling.visible for price in seen)


def test_clients_that_are_away_make_others_come_more_often() -> None:
    _, spaced = compare_noise(wanted(secret_cohorts=False, available=0.8))
    assert (spaced.separation, spaced.charged_rounds) == (8, 13)


def test_memory_bounds_the_bands() -> None:
    _, spaced = compare_noise(wanted(secret_cohorts=False, most_remembered=3))
    assert (spaced.separation, spaced.bands) == (10, 4)
    only = compare_noise(wanted(secret_cohorts=False, most_remembered=0))
    assert [price.noise for price in only] == ["independent"]


def test_where_everybody_takes_part_each_round_noise_is_independent() -> None:
    everybody = compare_noise(wanted(cohort=1000, rounds=5))
    assert {price.noise for price in everybody} == {"independent"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cohort": 1001}, "cohort must lie between 1 and the roster's 1000 units"),
        ({"cohort": 0.5}, "cohort must lie between 1"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"available": 0.0}, "available must lie in"),
        ({"most_remembered": -1}, "most_remembered must be at least 0"),
    ],
)
def test_a_training_that_can_not_be_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        wanted(**changes)
