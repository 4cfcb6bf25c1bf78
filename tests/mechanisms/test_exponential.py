"""The exponential mechanism. False alarms: below 1e-6 a test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import ALARM, counts_p, plackett_luce
from scipy.special import log_softmax

from fl_dp.mechanisms import ExponentialMechanism, SecureRandom

pytestmark = pytest.mark.slow

UTILITIES = np.array([0.3, 1.0, -0.5, 2.0, 1.2])
PICKS = 10_000


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(logits))


def test_log_probabilities_are_the_softmax_at_the_rate() -> None:
    mechanism = ExponentialMechanism(epsilon=1.5, sensitivity=2.0)
    assert mechanism.rate == 1.5 / 4.0
    expected = log_softmax(UTILITIES * 1.5 / 4.0)
    np.testing.assert_allclose(mechanism.log_probabilities(UTILITIES), expected, atol=1e-12)


def test_with_one_coordinate_the_rate_is_twice_as_high() -> None:
    general = ExponentialMechanism(epsilon=1.0, sensitivity=0.5)
    alone = ExponentialMechanism(epsilon=1.0, sensitivity=0.5, one_coordinate=True)
    assert alone.rate == 2.0 * general.rate == 2.0


def test_select_picks_like_the_softmax() -> None:
    mechanism = ExponentialMechanism(epsilon=2.0, sensitivity=1.0, one_coordinate=True)
    rng = SecureRandom()
    picks = [mechanism.select(UTILITIES, rng) for _ in range(PICKS)]
    counts = np.bincount(picks, minlength=5)
    assert counts_p(counts, softmax(2.0 * UTILITIES)) > ALARM
    for wrong in (0.9, 1.1):
        assert counts_p(counts, softmax(wrong * 2.0 * UTILITIES)) < ALARM


def test_the_top_two_of_five_are_two_draws_without_replacement() -> None:
    mechanism = ExponentialMechanism(epsilon=2.0, sensitivity=1.0, one_coordinate=True)
    rng = SecureRandom()
    law = plackett_luce(softmax(2.0 * UTILITIES), 2)
    assert sum(law.values()) == pytest.approx(1.0)
    counts = dict.fromkeys(law, 0)
    for _ in range(PICKS):
        first, second = mechanism.select_top(UTILITIES, 2, rng)
        counts[int(first), int(second)] += 1
    observed = np.array([counts[choice] for choice in law])
    assert counts_p(observed, np.array(list(law.values()))) > ALARM
    for wrong in (0.9, 1.1):
        other = plackett_luce(softmax(wrong * 2.0 * UTILITIES), 2)
        assert counts_p(observed, np.array([other[choice] for choice in law])) < ALARM


VECTORS = st.lists(st.floats(-5, 5), min_size=2, max_size=8)


@given(VECTORS, st.floats(-1, 1), st.floats(0.01, 8.0), st.floats(0.1, 10.0), st.data())
def test_moving_one_utility_keeps_the_range_of_the_log_ratios_within_epsilon(
    utilities: list[float], move: float, epsilon: float, sensitivity: float, data: st.DataObject
) -> None:
    mechanism = ExponentialMechanism(epsilon=epsilon, sensitivity=sensitivity, one_coordinate=True)
    moved = np.array(utilities)
    moved[data.draw(st.integers(0, moved.size - 1))] += move * sensitivity
    ratios = mechanism.log_probabilities(moved) - mechanism.log_probabilities(utilities)
    assert np.ptp(ratios) <= epsilon * (1 + 1e-9) + 1e-9
    assert np.abs(ratios).max() <= epsilon * (1 + 1e-9) + 1e-9


@given(VECTORS, st.floats(0.01, 8.0), st.floats(0.1, 10.0), st.data())
def test_moving_all_utilities_keeps_the_range_of_the_log_ratios_within_epsilon(
    utilities: list[float], epsilon: float, sensitivity: float, data: st.DataObject
) -> None:
    mechanism = ExponentialMechanism(epsilon=epsilon, sensitivity=sensitivity)
    moves = data.draw(st.lists(st.floats(-1, 1), min_size=len(utilities), max_size=len(utilities)))
    moved = np.array(utilities) + sensitivity * np.array(moves)
    ratios = mechanism.log_probabilities(moved) - mechanism.log_probabilities(utilities)
    assert np.ptp(ratios) <= epsilon * (1 + 1e-9) + 1e-9


def test_both_ranges_are_attained() -> None:
    alone = ExponentialMechanism(epsilon=1.0, sensitivity=2.0, one_coordinate=True)
    ratios = alone.log_probabilities([2.0, 0.0]) - alone.log_probabilities([0.0, 0.0])
    assert np.ptp(ratios) == pytest.approx(1.0)
    general = ExponentialMechanism(epsilon=1.0, sensitivity=2.0)
    ratios = general.log_probabilities([2.0, -2.0]) - general.log_probabilities([0.0, 0.0])
    assert np.ptp(ratios) == pytest.approx(1.0)


@given(st.lists(st.floats(-2, 2), min_size=4, max_size=4), st.floats(-1, 1), st.integers(0, 3))
def test_k_draws_have_at_most_k_ranges(utilities: list[float], move: float, place: int) -> None:
    mechanism = ExponentialMechanism(epsilon=0.5, sensitivity=1.0, one_coordinate=True)
    moved = list(utilities)
    moved[place] += move
    laws = [
        plackett_luce(np.exp(mechanism.log_probabilities(scores)), 2)
        for scores in (utilities, moved)
    ]
    ratios = [math.log(laws[0][choice] / laws[1][choice]) for choice in laws[0]]
    assert max(ratios) - min(ratios) <= 2 * 0.5 + 1e-9


def test_a_draw_costs_an_eighth_of_epsilon_squared() -> None:
    assert ExponentialMechanism(epsilon=2.0, sensitivity=1.0).zcdp_rho == 0.5


def test_extreme_and_equal_logits_are_fine() -> None:
    mechanism = ExponentialMechanism(epsilon=1.0, sensitivity=1.0, one_coordinate=True)
    logs = mechanism.log_probabilities([1e6, 0.0, -1e6])
    np.testing.assert_allclose(logs, [0.0, -1e6, -2e6])
    assert mechanism.select([-1e6, 1e6, 0.0], SecureRandom()) == 1
    np.testing.assert_array_equal(
        mechanism.select_top([-1e6, 1e6, 0.0], 3, SecureRandom()), [1, 2, 0]
    )
    for level in (0.0, 1e6, -1e6):
        np.testing.assert_allclose(mechanism.log_probabilities(np.full(4, level)), -math.log(4))
    rng = SecureRandom()
    counts = np.bincount([mechanism.select(np.full(4, 1e6), rng) for _ in range(4000)])
    assert counts_p(counts, np.full(4, 0.25)) > ALARM


def test_a_huge_utility_does_not_blur_the_choice_among_the_others() -> None:
    mechanism = ExponentialMechanism(epsilon=2.0, sensitivity=1.0, one_coordinate=True)
    rng = SecureRandom()
    seconds = [int(mechanism.select_top([1e300, 0.0, 0.5], 2, rng)[1]) for _ in range(4000)]
    counts = np.bincount(seconds, minlength=3)[1:]
    assert counts_p(counts, softmax(np.array([0.0, 1.0]))) > ALARM


def test_utilities_that_are_not_finite_become_the_null_utility() -> None:
    mechanism = ExponentialMechanism(epsilon=1.0, sensitivity=1.0, null_utility=0.25)
    hostile = mechanism.log_probabilities([np.nan, np.inf, -np.inf, 1.0])
    np.testing.assert_array_equal(hostile, mechanism.log_probabilities([0.25, 0.25, 0.25, 1.0]))


def test_with_a_range_infinities_are_clipped_to_it_and_nan_is_null() -> None:
    mechanism = ExponentialMechanism(
        epsilon=1.0, sensitivity=1.0, null_utility=0.5, utility_range=(0.0, 1.0)
    )
    hostile = mechanism.log_probabilities([np.nan, np.inf, -np.inf, 7.0])
    np.testing.assert_array_equal(hostile, mechanism.log_probabilities([0.5, 1.0, 0.0, 1.0]))


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=5), st.data())
def test_whatever_one_unit_reports_within_a_range_the_log_ratios_stay_within_epsilon(
    utilities: list[float], data: st.DataObject
) -> None:
    mechanism = ExponentialMechanism(
        epsilon=0.7,
        sensitivity=2.0,
        one_coordinate=True,
        null_utility=1.0,
        utility_range=(0.0, 3.0),
    )
    left_out = list(utilities)
    left_out[data.draw(st.integers(0, len(utilities) - 1))] = mechanism.null_utility
    ratios = mechanism.log_probabilities(utilities) - mechanism.log_probabilities(left_out)
    assert np.ptp(ratios) <= 0.7 + 1e-9


@pytest.mark.parametrize("null_utility", [0.0, 0.5, 2.0])
def test_a_sensitivity_below_what_the_range_allows_is_refused(null_utility: float) -> None:
    reach = max(2.0 - null_utility, null_utility)
    settings: dict[str, Any] = {
        "one_coordinate": True,
        "utility_range": (0.0, 2.0),
        "null_utility": null_utility,
    }
    ExponentialMechanism(epsilon=1.0, sensitivity=reach, **settings)
    with pytest.raises(ValueError, match=f"write sensitivity={reach}"):
        ExponentialMechanism(epsilon=1.0, sensitivity=0.99 * reach, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"sensitivity": math.nan}, "sensitivity"),
        ({"epsilon": 1e200, "sensitivity": 1e-200}, "rate"),
        ({"null_utility": math.nan}, "null_utility"),
        ({"utility_range": (1.0, 0.0)}, "utility_range"),
        ({"utility_range": (1.0, 2.0)}, "null_utility must lie in"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExponentialMechanism(**({"epsilon": 1.0, "sensitivity": 1.0} | settings))


@pytest.mark.parametrize("utilities", [[], [[1.0, 2.0]]])
def test_utilities_have_to_be_a_vector(utilities: Any) -> None:
    with pytest.raises(ValueError, match="utilities"):
        ExponentialMechanism(epsilon=1.0, sensitivity=1.0).select(utilities, SecureRandom())


@pytest.mark.parametrize("k", [0, 6])
def test_no_more_can_be_chosen_than_there_are(k: int) -> None:
    with pytest.raises(ValueError, match="k must lie"):
        ExponentialMechanism(epsilon=1.0, sensitivity=1.0).select_top(UTILITIES, k, SecureRandom())
