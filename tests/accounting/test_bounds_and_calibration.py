"""Golden numbers. Sources: the rows were recomputed with dp-accounting 0.6; McMahan et al. 2018
(table 1, tightened); Mironov, Talwar and Zhang 2019 (closed form at integer orders)."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dp import PrivacyBudget, PrivacyPlan
from fl_dp.accounting import (
    NeighboringRelation,
    PoissonGaussianEvent,
    affordable_rounds,
    calibrate_noise_multiplier,
    default_delta,
    epsilon,
    pld_epsilon,
)


def event(multiplier: float, rate: float) -> PoissonGaussianEvent:
    return PoissonGaussianEvent(noise_multiplier=multiplier, sampling_rate=rate)


@pytest.mark.parametrize(
    ("clients", "rate", "rounds", "multiplier", "pld", "rdp", "naive"),
    [
        (1e3, 0.05, 100, 1.0, 2.402, 2.904, 116),
        (1e3, 0.1, 200, 1.0, 7.569, 8.715, 397),
        (1e3, 0.1, 200, 2.0, 2.481, 2.821, 88.4),
        (1e3, 1.0, 100, 8.0, 4.408, 4.900, 45.6),
        (1e5, 0.001, 1000, 0.6, 1.761, 2.846, 1.7e3),
        (1e5, 0.01, 2000, 0.8, 4.623, 5.201, 4.6e3),
        (1e5, 0.05, 500, 2.0, 2.706, 2.939, 216),
        (1e6, 0.001, 2000, 0.8, 0.700, 1.689, 1.3e3),
        (1e6, 0.01, 2000, 1.0, 3.166, 3.466, 2.8e3),
    ],
)
def test_bounds_match_the_golden_table(
    clients: float,
    rate: float,
    rounds: int,
    multiplier: float,
    pld: float,
    rdp: float,
    naive: float,
) -> None:
    bounds = epsilon({event(multiplier, rate): rounds}, clients**-1.1)
    assert bounds.pld == pytest.approx(pld, rel=5e-3)
    # Their Renyi numbers bound orders between integers by a looser series: ours may be smaller.
    assert rdp * 0.99 <= bounds.rdp <= rdp * (1 + 1e-3)
    assert bounds.naive == pytest.approx(naive, rel=0.05)
    assert bounds.pld <= bounds.rdp * (1 + 1e-3)
    assert bounds.best == min(bounds.by_name.values()) <= bounds.pld


@pytest.mark.parametrize(
    ("clients", "cohort", "rounds", "expected"),
    [
        (1e5, 100, 1, 0.697),
        (1e5, 100, 100, 0.725),
        (1e5, 100, 10_000, 0.884),
        (1e6, 1000, 10, 0.895),
        (1e6, 1000, 100_000, 2.130),
    ],
)
def test_bounds_match_mcmahan_2018_tightened(
    clients: float, cohort: int, rounds: int, expected: float
) -> None:
    bounds = epsilon({event(1.0, cohort / clients): rounds}, clients**-1.1)
    assert bounds.rdp == pytest.approx(expected, abs=1e-3)
    assert bounds.pld < bounds.rdp


def test_an_unsampled_gaussian_matches_the_analytic_formula() -> None:
    # Balle and Wang 2018; ten rounds at multiplier 2 are one at 2 / sqrt(10).
    exact = dp_accounting.get_epsilon_gaussian(2.0 / math.sqrt(10), 1e-5)
    assert pld_epsilon({event(2.0, 1.0): 10}, 1e-5) == pytest.approx(exact, rel=1e-3)
    assert exact == pytest.approx(7.51, abs=0.01)


def test_zero_out_and_add_or_remove_have_the_same_price() -> None:
    history = {event(1.0, 0.05): 100}
    prices = {
        relation: pld_epsilon(history, 1e-5, neighboring_relation=relation)
        for relation in (NeighboringRelation.ZERO_OUT, NeighboringRelation.ADD_OR_REMOVE_ONE)
    }
    assert prices[NeighboringRelation.ZERO_OUT] == pytest.approx(
        prices[NeighboringRelation.ADD_OR_REMOVE_ONE], rel=1e-9
    )


@settings(max_examples=8, deadline=None)
@given(multiplier=st.floats(0.7, 5.0), rate=st.floats(0.01, 0.5), rounds=st.integers(1, 200))
def test_epsilon_grows_with_rounds_and_rate_and_falls_with_noise(
    multiplier: float, rate: float, rounds: int
) -> None:
    def spent(multiplier: float, rate: float, rounds: int) -> float:
        return pld_epsilon({event(multiplier, rate): rounds}, 1e-5, interval=1e-3)

    base = spent(multiplier, rate, rounds)
    assert spent(multiplier, rate, rounds + 1) >= base
    assert spent(multiplier, min(1.0, rate * 1.1), rounds) >= base
    assert spent(multiplier * 1.1, rate, rounds) <= base
    assert base <= epsilon({event(multiplier, rate): rounds}, 1e-5).rdp * (1 + 1e-3)


def test_the_order_of_releases_does_not_matter() -> None:
    first, second = event(1.0, 0.1), event(2.0, 0.2)
    one = pld_epsilon({first: 3, second: 4}, 1e-5)
    other = pld_epsilon({second: 4, first: 3}, 1e-5)
    assert one == other


@pytest.mark.parametrize(
    ("clients", "rate", "rounds", "target", "expected"),
    [
        (1e3, 0.05, 100, 8.0, 0.60297),
        (1e3, 0.1, 200, 8.0, 0.97162),
        (1e5, 0.01, 1000, 2.0, 0.99485),
        (1e5, 0.001, 1000, 1.0, 0.66956),
    ],
)
def test_calibration_matches_the_golden_table_and_returns_the_safe_end(
    clients: float, rate: float, rounds: int, target: float, expected: float
) -> None:
    delta = clients**-1.1
    multiplier = calibrate_noise_multiplier(target, delta, sampling_rate=rate, rounds=rounds)
    assert multiplier == pytest.approx(expected, rel=5e-3)
    assert pld_epsilon({event(multiplier, rate): rounds}, delta) <= target
    assert pld_epsilon({event(multiplier * 0.995, rate): rounds}, delta) > target


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_a_target_that_is_no_budget_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        calibrate_noise_multiplier(target, 1e-5, sampling_rate=0.1, rounds=10)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_outside_zero_and_one_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon({event(1.0, 0.1): 1}, delta)
    with pytest.raises(ValueError, match="delta"):
        PrivacyBudget(epsilon=1.0, delta=delta)


@pytest.mark.parametrize(
    ("multiplier", "rate"), [(0.0, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.1)]
)
def test_an_impossible_event_is_refused(multiplier: float, rate: float) -> None:
    with pytest.raises(ValueError):
        event(multiplier, rate)


def test_the_default_delta_is_below_one_over_the_roster() -> None:
    assert default_delta(200) == pytest.approx(200**-1.1)
    assert all(default_delta(n) < 1 / n for n in (2, 10, 1000, 10**6))


def plan(**changes: object) -> PrivacyPlan:
    fields = dict(
        budget=PrivacyBudget(epsilon=8.0, delta=200**-1.1),
        rounds=20,
        sampling_rate=0.25,
        noise_multiplier=1.0,
        clipping_norm=1.0,
        num_clients=200,
    )
    return PrivacyPlan(**(fields | changes))  # type: ignore[arg-type]  # built from a plain dict


def test_a_plan_hands_out_the_mechanism_and_the_event_from_the_same_numbers() -> None:
    made = plan(noise_multiplier=1.7, clipping_norm=0.3)
    charged = made.event_of(1)
    assert isinstance(charged, PoissonGaussianEvent)
    mechanism = made.mechanism(charged.noise_multiplier)
    assert mechanism.noise_multiplier == charged.noise_multiplier == 1.7
    assert mechanism.noise_std == pytest.approx(0.51)
    assert made.denominator == 50.0
    assert PrivacyPlan.from_dict(made.to_dict()) == made


def test_a_plan_from_a_noise_multiplier_that_overspends_says_how_many_rounds_fit() -> None:
    arguments = dict(delta=200**-1.1, sampling_rate=0.25, clipping_norm=1.0, num_clients=200)
    with pytest.raises(ValueError, match=r"plan at most (\d+) rounds") as refused:
        PrivacyPlan.from_noise_multiplier(1.0, rounds=60, max_epsilon=2.0, **arguments)
    fits = int(str(refused.value).split("at most ")[1].split()[0])
    PrivacyPlan.from_noise_multiplier(1.0, rounds=fits, max_epsilon=2.0, **arguments)
    with pytest.raises(ValueError, match="plan at most"):
        PrivacyPlan.from_noise_multiplier(1.0, rounds=fits + 1, max_epsilon=2.0, **arguments)


def test_a_delta_that_allows_publishing_a_client_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="not below 1/num_clients"):
        plan(budget=PrivacyBudget(epsilon=1.0, delta=0.01))


@pytest.mark.parametrize("field", ["rounds", "num_clients"])
def test_a_plan_for_nobody_or_nothing_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        replace(plan(), **{field: 0})


def test_affordable_rounds_is_exact() -> None:
    one = event(1.0, 0.05)
    most = affordable_rounds({}, one, 2.0, 1e-5, at_most=1000)
    assert pld_epsilon({one: most}, 1e-5) <= 2.0 < pld_epsilon({one: most + 1}, 1e-5)
    assert affordable_rounds({one: most - 3}, one, 2.0, 1e-5, at_most=1000) == 3
    assert affordable_rounds({one: most}, one, 2.0, 1e-5, at_most=1000) == 0


def test_our_events_mean_to_dp_accounting_what_they_say() -> None:
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL, 1e-4)
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0)), 50
    )
    assert pld_epsilon({event(1.0, 0.1): 50}, 1e-5) == pytest.approx(
        accountant.get_epsilon(1e-5), rel=1e-6
    )
