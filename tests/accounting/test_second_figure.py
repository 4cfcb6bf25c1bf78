"""dp-accounting's own figure beside ours: they agree for each event, and a wrong one is seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_events import gaussian

from fl_dp.accounting import (
    EpsilonBounds,
    History,
    NeighboringRelation,
    PoissonGaussianEvent,
    PrivacyEvent,
    epsilon,
)
from fl_dp.accounting.events import (
    FixedSizeGaussianEvent,
    RandomStoppingEvent,
    TruncatedPoissonGaussianEvent,
    freeze,
)
from fl_dp.accounting.second_figure import TOLERANCE, SecondFigure, second_figure
from fl_dp.mechanisms.mechanism_events import ExponentialEvent, LaplaceEvent, ZcdpEvent

ADD_OR_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
ONE_RELATION = (ADD_OR_REMOVE, ZERO_OUT)
DELTA = 1e-5


def poisson(noise_multiplier: float, sampling_rate: float = 0.05) -> PoissonGaussianEvent:
    return PoissonGaussianEvent(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate)


def laplace(noise_multiplier: float) -> LaplaceEvent:
    return LaplaceEvent(noise_multiplier=noise_multiplier)


def truncated(noise_multiplier: float) -> TruncatedPoissonGaussianEvent:
    return TruncatedPoissonGaussianEvent(
        noise_multiplier=noise_multiplier, sampling_rate=0.05, num_units=1000, max_cohort=70
    )


def fixed_size(noise_multiplier: float) -> FixedSizeGaussianEvent:
    return FixedSizeGaussianEvent(noise_multiplier=noise_multiplier, num_units=1000, cohort=50)


def zcdp(noise_multiplier: float) -> ZcdpEvent:
    return ZcdpEvent(rho=0.5 / noise_multiplier**2)


def stopped(*releases: PrivacyEvent) -> RandomStoppingEvent:
    return RandomStoppingEvent(releases=freeze(releases), mean_runs=4.0)


HISTORIES: dict[str, Callable[[float], dict[PrivacyEvent, int]]] = {
    "Gaussian": lambda scale: {gaussian(2.0 * scale): 10},
    "Poisson": lambda scale: {poisson(scale): 100},
    "many faint rounds": lambda scale: {poisson(20.0 * scale, 0.01): 10_000},
    "rare units": lambda scale: {poisson(scale, 1e-3): 10_000},
    "faint samples of half": lambda scale: {poisson(100.0 * scale, 0.5): 100},
    "truncated Poisson": lambda scale: {truncated(2.0 * scale): 100},
    "fixed size": lambda scale: {fixed_size(2.0 * scale): 100},
    "Laplace": lambda scale: {laplace(20.0 * scale): 30},
    "zCDP": lambda scale: {zcdp(8.0 * scale): 3},
    "zCDP and Gaussian": lambda scale: {zcdp(8.0 * scale): 3, gaussian(10.0 * scale): 2},
    "best of a random number": lambda scale: {stopped(*[poisson(2.0 * scale)] * 50): 1},
    "training with a query": lambda scale: {poisson(scale): 100, laplace(30.0 * scale): 3},
    "scheduled": lambda scale: {poisson((1.0 + k / 50) * scale): 1 for k in range(50)},
}
CASES = [
    # Golden: dp-accounting 0.6 called by hand, distributions at an interval of 1e-3 to 1e-5.
    ("Gaussian", ONE_RELATION, "PLDAccountant", 7.5114),
    ("Gaussian", (REPLACE_ONE,), "PLDAccountant", 17.857),
    ("Poisson", ONE_RELATION, "PLDAccountant", 3.5021),
    ("Poisson", (REPLACE_ONE,), "PLDAccountant", 4.8895),
    ("many faint rounds", (ZERO_OUT,), "PLDAccountant", 0.1603),
    ("rare units", (ZERO_OUT,), "PLDAccountant", 0.4760),
    ("faint samples of half", (ZERO_OUT,), "PLDAccountant", 0.1602),
    ("truncated Poisson", (ZERO_OUT,), "PLDAccountant", 1.2057),
    ("truncated Poisson", (REPLACE_ONE,), "PLDAccountant", 2.0311),
    ("fixed size", (REPLACE_ONE,), "RdpAccountant", 6.4666),
    ("Laplace", ONE_RELATION, "PLDAccountant", 0.9751),
    ("Laplace", (REPLACE_ONE,), "RdpAccountant", 2.1930),
    ("zCDP", ONE_RELATION, "RdpAccountant", 0.8657),
    ("zCDP and Gaussian", ONE_RELATION, "RdpAccountant", 1.0503),
    ("best of a random number", ONE_RELATION, "RdpAccountant", 1.5869),
    ("training with a query", ONE_RELATION, "PLDAccountant", 3.5098),
    ("scheduled", (ZERO_OUT,), "PLDAccountant", 1.6409),
]


def beside(history: History, relation: NeighboringRelation) -> SecondFigure:
    bounds = epsilon(history, DELTA, neighboring_relation=relation)
    return second_figure(history, DELTA, ours=bounds, neighboring_relation=relation)


@pytest.mark.parametrize(
    ("name", "relation", "accountant", "golden"),
    [(name, relation, *rest) for name, relations, *rest in CASES for relation in relations],
)
def test_both_figures_agree_and_noise_that_is_a_tenth_off_is_convicted(
    name: str, relation: NeighboringRelation, accountant: str, golden: float
) -> None:
    history = HISTORIES[name](1.0)
    second = beside(history, relation)
    assert second.how.startswith(accountant)
    assert second.epsilon == pytest.approx(golden, rel=TOLERANCE / 2)
    assert abs(second.difference) < TOLERANCE
    # Ours is of noise that is larger by a tenth than what was added: it says too little.
    louder = epsilon(HISTORIES[name](1.1), DELTA, neighboring_relation=relation)
    assert second_figure(history, DELTA, ours=louder, neighboring_relation=relation).above_ours
    # And the other way round: ours is cautious, which is no alarm, but is no agreement.
    quieter = epsilon(HISTORIES[name](0.9), DELTA, neighboring_relation=relation)
    cautious = second_figure(history, DELTA, ours=quieter, neighboring_relation=relation)
    assert not cautious.above_ours
    assert cautious.difference < -TOLERANCE


def test_a_relation_that_is_mistaken_for_another_is_convicted() -> None:
    history = HISTORIES["Poisson"](1.0)
    removed = epsilon(history, DELTA, neighboring_relation=ADD_OR_REMOVE)
    second = second_figure(history, DELTA, ours=removed, neighboring_relation=REPLACE_ONE)
    assert second.difference > 0.3


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.builds(poisson, st.floats(0.5, 20.0), st.floats(0.01, 0.9)),
                st.builds(gaussian, st.floats(0.5, 50.0)),
                st.builds(laplace, st.floats(0.5, 50.0)),
            ),
            st.integers(1, 200),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_history_of_ours_is_below_their_figure_by_more_than_the_tolerance(
    releases: list[tuple[PrivacyEvent, int]],
) -> None:
    second = beside(releases, ZERO_OUT)
    assert second.epsilon is not None
    assert second.ours is not None
    assert not second.above_ours
    if second.ours < 50.0:  # above it ours has other bounds, which are cautious
        assert abs(second.difference) < TOLERANCE


@pytest.mark.parametrize(
    ("history", "relation", "why"),
    [
        ({ExponentialEvent(epsilon=0.1): 3}, ZERO_OUT, "no event for draws of the exponential"),
        ({fixed_size(2.0): 10}, ZERO_OUT, "fixed-size-gaussian together for zero-out neighbours"),
        ({fixed_size(2.0): 10}, ADD_OR_REMOVE, "for add-or-remove-one neighbours"),
        ({poisson(1.0): 10, zcdp(8.0): 1}, REPLACE_ONE, "for replace-one neighbours"),
        ({}, ZERO_OUT, "nothing was released"),
        ({poisson(0.5, 1e-4): 10}, ZERO_OUT, "much longer than a second"),
        ({zcdp(8.0 + k): 1 for k in range(21)}, ZERO_OUT, "21 different releases"),
    ],
)
def test_where_there_is_no_second_figure_it_says_why(
    history: dict[PrivacyEvent, int], relation: NeighboringRelation, why: str
) -> None:
    second = beside(history, relation)
    assert second.epsilon is None
    assert why in second.how
    assert not second.above_ours


def test_a_gate_s_guarantee_has_no_second_figure() -> None:
    second = second_figure({gaussian(2.0): 1}, DELTA, ours=EpsilonBounds(filter=4.0))
    assert second.epsilon is None
    assert "gate" in second.how


def test_the_slack_of_shares_is_added_as_it_is_to_ours() -> None:
    slack = 0.05
    history: dict[PrivacyEvent, int] = {gaussian(2.0): 10}
    plain = beside(history, ZERO_OUT)
    with_slack = second_figure(
        history, DELTA, ours=epsilon(history, DELTA).plus(2.0 * slack), slack=slack
    )
    assert plain.epsilon is not None
    assert with_slack.epsilon == pytest.approx(plain.epsilon + 0.1, rel=1e-12)
    assert not with_slack.above_ours
    assert "our own 0.1" in with_slack.how


def test_a_figure_beside_nothing_is_above_it() -> None:
    figure = SecondFigure(how="PLDAccountant", epsilon=1.0, ours=0.0)
    assert figure.above_ours
    assert math.isinf(figure.difference)
    assert not replace(figure, epsilon=0.0).above_ours
