"""Epsilon of several units together, beside published and independent numbers."""

from __future__ import annotations

import math
import tracemalloc

import dp_accounting
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import binom

from fl_dp.accounting import (
    History,
    NeighboringRelation,
    PoissonGaussianEvent,
    PrivacyEvent,
    epsilon,
)
from fl_dp.accounting.events import FixedSizeGaussianEvent, freeze
from fl_dp.accounting.groups import epsilon_of_group
from fl_dp.mechanisms.mechanism_events import ExponentialEvent, GaussianEvent

SAMPLED: History = {PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.01): 1000}
DELTA = 1e-5
# By dp-accounting's `from_mixture_gaussian_mechanism`, with sensitivities 0, ..., k and binomial
# probabilities, at a discretisation of 1e-3 with connected dots, 1,000 times with itself.
BY_MIXTURES = {1: 1.828934, 2: 3.979485, 5: 11.638187, 10: 27.899707}


@pytest.mark.parametrize("size", BY_MIXTURES)
def test_a_group_in_poisson_samples_is_bounded_closely(size: int) -> None:
    bound = epsilon_of_group(SAMPLED, DELTA, size)
    assert BY_MIXTURES[size] <= bound <= 1.16 * BY_MIXTURES[size]


@pytest.mark.parametrize("size", [5, 10])
def test_only_less_noise_is_no_bound_for_samples(size: int) -> None:
    """A group is sampled more often, too: at `z / k` and the same rate too little is counted."""
    less, as_it_is = (
        freeze({PoissonGaussianEvent(noise_multiplier=z, sampling_rate=0.01): 1})
        for z in (1.0 / size, 1.0)
    )
    truth = mixture(size, 0.01)
    assert epsilon(less, 0.01).best < truth
    assert truth <= epsilon_of_group(as_it_is, 0.01, size)


def mixture(size: int, delta: float) -> float:
    """Return epsilon of one release of a group, by dp-accounting."""
    loss = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.0,
        range(size + 1),
        [float(binom.pmf(drawn, size, 0.01)) for drawn in range(size + 1)],
        value_discretization_interval=1e-2,
    )
    return float(loss.get_epsilon_for_delta(delta))


def test_a_group_of_one_is_the_unit_itself() -> None:
    """Opacus and dp-accounting have 2.101 by Renyi DP for it."""
    assert epsilon_of_group(SAMPLED, DELTA, 1) == pytest.approx(epsilon(SAMPLED, DELTA).rdp)
    assert epsilon_of_group(SAMPLED, DELTA, 1) == pytest.approx(2.101, abs=1e-3)


@pytest.mark.parametrize("relation", NeighboringRelation)
def test_without_samples_a_group_moves_a_sum_as_many_times_as_far(
    relation: NeighboringRelation,
) -> None:
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(20.0 / (5.0 * relation.distance)), 7)
    bound = epsilon_of_group(
        {GaussianEvent(noise_multiplier=20.0): 7}, DELTA, 5, neighboring_relation=relation
    )
    assert bound == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)


@pytest.mark.parametrize(
    "event",
    [
        ExponentialEvent(epsilon=0.05),
        FixedSizeGaussianEvent(noise_multiplier=4.0, cohort=3, num_units=100),
        PoissonGaussianEvent(noise_multiplier=4.0, sampling_rate=0.1),
    ],
)
def test_what_is_known_of_one_unit_alone_is_chained(event: PrivacyEvent) -> None:
    """k epsilon, at a delta that grows by `(e^(k epsilon) - 1) / (e^epsilon - 1)`."""
    relation = NeighboringRelation.REPLACE_ONE
    history: History = {event: 1}
    bound = epsilon_of_group(history, 1e-3, 2, neighboring_relation=relation)
    if not math.isfinite(epsilon(history, 1e-3, neighboring_relation=relation).rdp):
        assert bound == math.inf  # no number rather than a wrong one
        return
    one = bound / 2.0
    assert epsilon(history, 1e-3 / (1.0 + math.exp(one)), neighboring_relation=relation).rdp <= (
        one * (1.0 + 1e-9)
    )


def test_slack_is_paid_by_every_neighbour_of_the_chain() -> None:
    without, with_slack = (epsilon_of_group(SAMPLED, DELTA, 2, slack=s) for s in (1e-12, 0.1))
    assert with_slack >= without + 2.0 * 2.0 * 0.1
    assert without > epsilon_of_group(SAMPLED, DELTA, 2)  # which is taken directly


def test_nothing_released_spends_nothing() -> None:
    assert epsilon_of_group({}, DELTA, 10) == 0.0


def test_noise_that_promises_nothing_takes_no_more_memory_than_other_noise() -> None:
    history: History = {PoissonGaussianEvent(noise_multiplier=0.005, sampling_rate=0.1): 100}
    tracemalloc.start()
    try:
        assert epsilon_of_group(history, 1e-5, 2) > 1e6
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**24
