"""The one-run audit: golden numbers, its false alarms, and records under DP-SGD."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from fl_dp.accounting.trade_off import TradeOff, gaussian_trade_off
from fl_dp.lab.audit.one_run import (
    epsilon_of_guesses,
    finding_of_one_run,
    guess,
    p_value_of_guesses,
)


# Steinke et al. 2023, recomputed with scipy 1.17, at alpha 0.05.
@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "delta", "expected"),
    [
        (1000, 100, 100, 0.0, 3.49297),
        (1000, 100, 100, 1e-5, 3.46535),
        (1000, 100, 95, 0.0, 2.17243),
        (1000, 100, 95, 1e-5, 2.16518),
        (1000, 200, 180, 0.0, 1.79887),
        (5000, 500, 500, 0.0, 5.1144),
        (5000, 500, 500, 1e-5, 4.97776),
    ],
)
def test_the_bound_matches_the_golden_numbers(
    canaries: int, guesses: int, right: int, delta: float, expected: float
) -> None:
    found = epsilon_of_guesses(
        canaries=canaries, guesses=guesses, right=right, alpha=0.05, delta=delta
    )
    assert found == pytest.approx(expected, abs=6e-5)


def test_a_larger_epsilon_or_delta_explains_more() -> None:
    values = [
        p_value_of_guesses(epsilon, 1e-4, canaries=1000, guesses=100, right=90)
        for epsilon in (0.0, 0.5, 1.0, 2.0, 3.0)
    ]
    assert values == sorted(values)
    plain, with_delta = (
        p_value_of_guesses(1.0, delta, canaries=1000, guesses=100, right=90)
        for delta in (0.0, 1e-4)
    )
    assert plain < with_delta


def test_randomized_response_is_accused_no_more_often_than_alpha_and_shown_nearly_whole() -> None:
    # The mechanism on which the bound is tight. 400 trials at alpha 0.1: 69 are five deviations.
    epsilon, canaries, trials = 1.5, 400, 400
    rng = np.random.default_rng(0)
    bounds = []
    for _ in range(trials):
        there = rng.random(canaries) < 0.5
        told = np.where(rng.random(canaries) < expit(epsilon), there, ~there)
        found = guess(told.astype(float), there, count=canaries)
        bounds.append(
            epsilon_of_guesses(
                canaries=canaries, guesses=found.count, right=found.right, alpha=0.1, delta=0.0
            )
        )
    assert (np.array(bounds) > epsilon).sum() <= 69
    assert np.mean(bounds) > 0.8 * epsilon


def test_the_surest_coins_are_guessed_at_both_ends() -> None:
    scores = np.array([5.0, -5.0, 0.0, 4.0, -4.0, 0.1])
    there = np.array([True, False, True, True, False, False])
    found = guess(scores, there, count=4)
    assert (found.count, found.right) == (4, 4)
    with pytest.raises(ValueError, match="between 2 and 6"):
        guess(scores, there, count=7)


@pytest.mark.parametrize("curve", [None, gaussian_trade_off(9.0)])
def test_each_number_of_guesses_has_its_share_of_alpha(curve: TradeOff | None) -> None:
    there = np.arange(1000) % 2 == 0
    known: dict[str, Any] = {"claim": 99.0, "delta": 1e-5, "alpha": 0.04}
    finding = finding_of_one_run(there.astype(float), there, curve=curve, **known)
    level = 0.04 / 4 / (1 if curve is None else 2)  # four numbers of guesses, by one or two bounds
    bound = epsilon_of_guesses(canaries=1000, guesses=400, right=400, alpha=level, delta=1e-5)
    assert finding.bounds["one_run"] == pytest.approx(bound, abs=1e-6)


def test_the_best_of_several_numbers_of_guesses_is_what_one_run_shows() -> None:
    rng = np.random.default_rng(1)
    there = rng.random(1000) < 0.5
    known: dict[str, Any] = {"claim": 0.5, "delta": 1e-5, "alpha": 0.01}
    assert not finding_of_one_run(rng.normal(size=1000) + 4.0 * there, there, **known).stands
    silent = finding_of_one_run(rng.normal(size=1000), there, **known)
    assert silent.stands
    assert silent.bound == 0.0
    with pytest.raises(ValueError, match="finite"):
        finding_of_one_run(np.full(1000, np.nan), there, **known)


def test_delta_alone_explains_what_is_to_be_surer_than_it_allows() -> None:
    # 2 canaries x delta / guesses is 2e-4: no number of right guesses refutes anything at 1e-6.
    everything: dict[str, Any] = {"canaries": 1000, "guesses": 100, "right": 100, "delta": 1e-5}
    assert epsilon_of_guesses(**everything, alpha=1e-6) == 0.0
    assert epsilon_of_guesses(**everything, alpha=1e-3) > 1.0
