"""The one-run audit of a trade-off curve: oracles, false alarms, and what it shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from fl_dp.accounting import PoissonGaussianEvent
from fl_dp.accounting.trade_off import epsilon_delta_trade_off, gaussian_trade_off, trade_off
from fl_dp.lab.audit.lower_bounds import gaussian_epsilon_of
from fl_dp.lab.audit.one_run import epsilon_of_guesses, finding_of_one_run, mu_of_guesses, refutes
from fl_dp.mechanisms.mechanism_events import GaussianEvent


# Mahloujifar et al. 2024, algorithm 3, computed at alpha 0.05 by PrivacyGuard's recursion.
@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "golden"),
    [
        (1000, 100, 100, 1.22553),
        (1000, 100, 95, 0.78681),
        (1000, 200, 180, 0.69819),
        (5000, 500, 500, 1.66270),
        (1000, 1000, 700, 0.35721),
    ],
)
def test_the_bound_matches_an_independent_recursion_from_below(
    canaries: int, guesses: int, right: int, golden: float
) -> None:
    found = mu_of_guesses(canaries=canaries, guesses=guesses, right=right, alpha=0.05)
    assert golden - 4e-3 < found <= golden  # places of the curve, and the bisection
    # More than (epsilon, delta) can show by the same guesses.
    of_epsilon = epsilon_of_guesses(
        canaries=canaries, guesses=guesses, right=right, alpha=0.05, delta=1e-5
    )
    assert gaussian_epsilon_of(found, delta=1e-5) > 1.5 * of_epsilon


@pytest.mark.parametrize("epsilon", [0.1, 1.5, 4.0])
def test_randomized_response_is_never_accused_beyond_its_exact_tail(epsilon: float) -> None:
    curve, canaries = epsilon_delta_trade_off(epsilon, 0.0), 50
    for right in range(26, canaries + 1, 3):
        tail = float(binom.sf(right - 1, canaries, expit(epsilon)))
        if 1e-12 < tail < 1.0:
            assert not refutes(
                curve, canaries=canaries, guesses=canaries, right=right, alpha=0.999 * tail
            )
    # And nearly as soon as it may: 48 of 50 at epsilon 1.5 have a probability of 0.00309.
    if epsilon == 1.5:
        assert refutes(curve, canaries=50, guesses=50, right=48, alpha=1.1 * 0.003095)


@pytest.mark.parametrize("guesses", [40, 200])
def test_a_gaussian_is_accused_no_more_often_than_alpha_and_one_of_five_times_its_mu_nearly_always(
    guesses: int,
) -> None:
    mu, canaries, alpha, runs = 0.5, 400, 0.05, 4000
    rng = np.random.default_rng(0)

    def rights(of: float) -> Any:
        there = rng.random((runs, canaries)) < 0.5
        scores = rng.normal(size=there.shape) + of * there
        order = np.argsort(scores, axis=1)
        ends = np.concatenate([order[:, : guesses // 2], order[:, -guesses // 2 :]], axis=1)
        said = np.arange(guesses) >= guesses // 2
        return (np.take_along_axis(there, ends, axis=1) == said).sum(axis=1)

    curve = gaussian_trade_off(mu)
    enough = next(
        right
        for right in range(guesses // 2, guesses + 1, 2)
        if refutes(curve, canaries=canaries, guesses=guesses, right=right, alpha=alpha)
    )
    assert (rights(mu) >= enough).mean() < alpha + 5 * (alpha / runs) ** 0.5
    assert (rights(5.0 * mu) >= enough).mean() > 0.9


def test_the_larger_of_both_ways_to_say_it_counts() -> None:
    """A Poisson sample is told from nothing by other rates than nothing from it."""
    curve = trade_off([PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.1)] * 2)
    rates = np.linspace(0.0, 1.0, 20_001)
    hits = curve(rates)

    def mirrored(rate: Any) -> Any:
        return np.interp(rate, (1.0 - hits)[::-1], (1.0 - rates)[::-1])

    counts: dict[str, Any] = {"canaries": 300, "guesses": 60, "alpha": 0.05}
    tried = range(36, 61, 3)
    first = [refutes(curve, right=right, **counts) for right in tried]
    second = [refutes(mirrored, right=right, **counts) for right in tried]
    assert first == second
    assert 1 <= sum(first) < len(tried)


def test_the_claimed_curve_judges_a_run_at_one_in_a_million() -> None:
    rng = np.random.default_rng(3)
    there = rng.random(1000) < 0.5
    curve = trade_off({GaussianEvent(noise_multiplier=2.0): 1})
    claim = gaussian_epsilon_of(0.5, delta=1e-5)
    told: dict[str, Any] = {"claim": claim, "delta": 1e-5, "alpha": 1e-6}
    honest = finding_of_one_run(rng.normal(size=1000) + 0.5 * there, there, curve=curve, **told)
    assert honest.stands
    broken = finding_of_one_run(rng.normal(size=1000) + 4.0 * there, there, curve=curve, **told)
    assert not broken.stands
    assert broken.bounds["one_run"] == 0.0  # delta explains anything at that confidence
    assert broken.bounds["one_run_gaussian"] > told["claim"]
