"""Lower bounds from an adversary's successes: golden numbers, and how often they are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, norm

from fl_dp.lab.audit.lower_bounds import (
    Confusion,
    clopper_pearson,
    epsilon_lower_bound,
    gaussian_epsilon_of,
    gdp_lower_bound,
    most_that_clopper_pearson_shows,
)

DELTA = 1e-5


def confusion(hits: int, alarms: int, trials: int = 1000) -> Confusion:
    return Confusion(
        true_positives=hits, positives=trials, false_positives=alarms, negatives=trials
    )


# Recomputed with scipy 1.17 and dp-accounting 0.6, at alpha 0.05.
@pytest.mark.parametrize(
    ("found", "by_intervals", "by_gdp"),
    [(confusion(500, 50), 1.96924, 6.672131), (confusion(100, 0), 3.10440, 5.888)],
)
def test_bounds_match_the_golden_numbers(
    found: Confusion, by_intervals: float, by_gdp: float
) -> None:
    assert epsilon_lower_bound(found, alpha=0.05, delta=DELTA) == pytest.approx(
        by_intervals, abs=5e-6
    )
    mu = gdp_lower_bound(found, alpha=0.05)
    assert gaussian_epsilon_of(mu, delta=DELTA) == pytest.approx(by_gdp, abs=5e-4)


@pytest.mark.parametrize(("trials", "most"), [(100, 3.281), (1000, 5.6006), (10_000, 7.905)])
def test_an_adversary_that_is_always_right_shows_no_more_than_its_trials_allow(
    trials: int, most: float
) -> None:
    shown = most_that_clopper_pearson_shows(trials, trials, alpha=0.05, delta=DELTA)
    assert shown == pytest.approx(most, abs=5e-4)


@pytest.mark.parametrize("trials", [1, 7, 60])
@pytest.mark.parametrize("alpha", [0.3, 0.05])
def test_the_interval_of_a_rate_misses_it_no_more_often_than_alpha(
    trials: int, alpha: float
) -> None:
    # Summed over all outcomes, at 199 rates: each end alone misses at most half of alpha.
    ends = np.array([clopper_pearson(k, trials, alpha=alpha) for k in range(trials + 1)])
    for rate in np.linspace(0.005, 0.995, 199):
        law = binom.pmf(np.arange(trials + 1), trials, rate)
        assert law[ends[:, 0] > rate].sum() <= alpha / 2 + 1e-12
        assert law[ends[:, 1] < rate].sum() <= alpha / 2 + 1e-12


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_a_bound_on_a_gaussian_exceeds_the_truth_no_more_often_than_alpha(mu: float) -> None:
    # Over all pairs of counts of 20 trials each, by their exact law.
    trials, alpha, threshold = 20, 0.1, 0.4
    hits = binom.pmf(np.arange(trials + 1), trials, norm.sf(threshold - mu))
    alarms = binom.pmf(np.arange(trials + 1), trials, norm.sf(threshold))
    truth = gaussian_epsilon_of(mu, delta=0.01)
    wrong_mu = wrong_epsilon = 0.0
    for hit in range(trials + 1):
        for alarm in range(trials + 1):
            found = confusion(hit, alarm, trials)
            probability = hits[hit] * alarms[alarm]
            wrong_mu += probability * (gdp_lower_bound(found, alpha=alpha) > mu)
            wrong_epsilon += probability * (
                epsilon_lower_bound(found, alpha=alpha, delta=0.01) > truth
            )
    assert wrong_mu <= alpha
    assert wrong_epsilon <= alpha


def test_who_is_sure_that_the_secret_is_absent_shows_as_much_as_who_is_sure_of_it() -> None:
    sure_of_it = epsilon_lower_bound(confusion(400, 3), alpha=0.05, delta=0.0)
    sure_of_none = epsilon_lower_bound(confusion(997, 600), alpha=0.05, delta=0.0)
    assert sure_of_none == pytest.approx(sure_of_it, rel=1e-9)


@pytest.mark.parametrize("found", [confusion(500, 500), confusion(0, 1000), confusion(0, 0)])
def test_an_adversary_that_knows_nothing_shows_nothing(found: Confusion) -> None:
    assert epsilon_lower_bound(found, alpha=0.05, delta=DELTA) == 0.0
    assert gdp_lower_bound(found, alpha=0.05) == 0.0
    assert gaussian_epsilon_of(0.0, delta=DELTA) == 0.0
