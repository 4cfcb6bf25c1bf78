"""What neighbouring relations and ways to sample cost, and where a wrong one breaks the promise."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from made_events import sampled

from fl_dp.accounting import (
    NeighboringRelation,
    PrivacyEvent,
    epsilon,
    tight_epsilon,
)
from fl_dp.accounting.bounds import pld_epsilon
from fl_dp.accounting.events import FixedSizeGaussianEvent, TruncatedPoissonGaussianEvent
from fl_dp.accounting.gaussian_formulas import gaussian_epsilon
from fl_dp.mechanisms.mechanism_events import GaussianEvent

ADD_OR_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation


def test_a_replaced_unit_moves_a_sum_twice_as_far() -> None:
    assert [relation.distance for relation in NeighboringRelation] == [1, 1, 2]


@pytest.mark.parametrize(
    ("multiplier", "poisson", "renyi", "replaced", "fixed", "everybody"),
    [
        (1.0, 3.502, 4.039, 4.890, 34.26, 91.8),
        (2.0, 1.097, 1.222, 2.004, 6.467, 33.1),
        (4.0, 0.462, 0.512, 0.926, 2.493, 13.2),
    ],
)
def test_fifty_of_a_thousand_clients_a_hundred_times(
    multiplier: float,
    poisson: float,
    renyi: float,
    replaced: float,
    fixed: float,
    everybody: float,
) -> None:
    """Delta 1e-5; recomputed with dp-accounting 0.6, fixed sizes as Wang et al. 2019."""
    poisson_rounds: dict[PrivacyEvent, int] = {sampled(multiplier, 0.05): 100}
    bounds = epsilon(poisson_rounds, 1e-5)
    assert bounds.pld == pytest.approx(poisson, abs=1e-3)
    assert bounds.rdp == pytest.approx(renyi, rel=2e-3)
    by_replacing = pld_epsilon(
        poisson_rounds, 1e-5, neighboring_relation=REPLACE_ONE, interval=1e-3
    )
    assert by_replacing == pytest.approx(replaced, rel=2e-3)

    fixed_size = FixedSizeGaussianEvent(noise_multiplier=multiplier, num_units=1000, cohort=50)
    for relation in (ZERO_OUT, REPLACE_ONE):
        bound = tight_epsilon({fixed_size: 100}, 1e-5, neighboring_relation=relation, interval=1e-3)
        assert bound == pytest.approx(fixed, rel=1e-3)
    unsampled = gaussian_epsilon(multiplier / 10.0, 1e-5)
    assert unsampled == pytest.approx(everybody, rel=2e-3)
    without_renyi = pld_epsilon({fixed_size: 100}, 1e-5, interval=1e-3)
    assert without_renyi == pytest.approx(unsampled, rel=1e-4)


@pytest.mark.parametrize(
    ("most", "expected"), [(60, 1.960), (70, 1.206), (80, 1.0985), (100, 1.0973)]
)
def test_a_truncated_poisson_cohort(most: int, expected: float) -> None:
    """A thousand clients, rate .05, multiplier 2, 100 rounds at 1e-5 (arXiv 2508.15089)."""
    event = TruncatedPoissonGaussianEvent(
        noise_multiplier=2.0, sampling_rate=0.05, num_units=1000, max_cohort=most
    )
    spent = pld_epsilon({event: 100}, 1e-5, interval=1e-3)
    assert spent == pytest.approx(expected, rel=1e-3)
    assert spent >= pld_epsilon({sampled(2.0, 0.05): 100}, 1e-5, interval=1e-3) * (1 - 1e-4)


def test_zero_out_and_add_or_remove_have_the_same_price() -> None:
    for event in (sampled(1.0, 0.05), GaussianEvent(noise_multiplier=3.0)):
        added = epsilon({event: 100}, 1e-5, neighboring_relation=ADD_OR_REMOVE)
        assert epsilon({event: 100}, 1e-5, neighboring_relation=ZERO_OUT) == added


def test_zero_out_is_what_dp_accounting_calls_replace_special() -> None:
    accountant = PLDAccountant(dpa.NeighboringRelation.REPLACE_SPECIAL, 1e-3)
    accountant.compose(dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0)), 50)
    ours = pld_epsilon({sampled(1.0, 0.1): 50}, 1e-5, interval=1e-3)
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)


def test_our_bounds_agree_where_dp_accountings_replace_one_means_two_things() -> None:
    """Its Renyi accountant takes the multiplier over the replace-one sensitivity, its PLD over C.

    Ten rounds at 2: one number, 8.08 or 17.86. Ours is relative to the clipping norm for all.
    """
    library = {}
    for accountant in (
        RdpAccountant(neighboring_relation=dpa.NeighboringRelation.REPLACE_ONE),
        PLDAccountant(dpa.NeighboringRelation.REPLACE_ONE, 1e-3),
    ):
        accountant.compose(dpa.GaussianDpEvent(2.0), 10)
        library[type(accountant).__name__] = accountant.get_epsilon(1e-5)
    assert library["RdpAccountant"] == pytest.approx(8.08, abs=0.01)
    assert library["PLDAccountant"] == pytest.approx(17.86, abs=0.01)

    ten: dict[PrivacyEvent, int] = {GaussianEvent(noise_multiplier=2.0): 10}
    removed = epsilon(ten, 1e-5)
    replaced = epsilon(ten, 1e-5, neighboring_relation=REPLACE_ONE)
    assert removed.gdp == pytest.approx(7.51, abs=0.01)
    assert replaced.gdp == replaced.best == pytest.approx(17.86, abs=0.01)
    assert replaced.pld == pytest.approx(replaced.gdp, rel=1e-4)
    assert replaced.gdp < replaced.zcdp <= replaced.rdp < 1.1 * replaced.gdp
    # Without sampling, replacing costs what half the noise does.
    assert replaced.gdp == pytest.approx(gaussian_epsilon(1.0 / math.sqrt(10), 1e-5), rel=1e-9)


# Exact laws of one release -------------------------------------------------------------------

GRID = np.linspace(-14.0, 14.0, 280_001)


def law(multiplier: float, **weights: float) -> np.ndarray:
    """Mixture of normals at 0, -1 and -2 (`at_0`, `at_1`, `at_2`), as masses on the grid."""
    means = {"at_0": 0.0, "at_1": -1.0, "at_2": -2.0}
    density = sum(
        weight * np.exp(-((GRID - means[name]) ** 2) / (2 * multiplier**2))
        for name, weight in weights.items()
    )
    return np.asarray(density * (GRID[1] - GRID[0]) / (multiplier * math.sqrt(2 * math.pi)))


def delta_between(p: np.ndarray, q: np.ndarray, at: float) -> float:
    """Hockey-stick divergence, the worse way round; the grid is good to 1e-7."""
    worth = math.exp(at)
    there, back = np.maximum(p - worth * q, 0.0), np.maximum(q - worth * p, 0.0)
    return max(float(there.sum()), float(back.sum()))


def charged_delta(event: PrivacyEvent, relation: NeighboringRelation, at: float) -> float:
    """The delta that our bound needs for epsilon `at`."""
    low, high = 1e-14, 1.0 - 1e-9
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        spent = tight_epsilon({event: 1}, middle, neighboring_relation=relation, interval=1e-3)
        low, high = (low, middle) if spent <= at else (middle, high)
    return high


@pytest.mark.parametrize(
    ("units", "cohort", "multiplier", "at", "least"),
    [(4, 2, 0.6, 0.5, 0.2447), (1000, 50, 1.0, 1.03, 2.6e-3)],
)
def test_a_fixed_size_cohort_breaks_the_poisson_bound(
    units: int, cohort: int, multiplier: float, at: float, least: float
) -> None:
    """Others all send 1, one unit -1 or, zeroed out, 0: where it enters, a 1 leaves.

    The sum moves by 2 from "out" to "in" and by 1 between the neighbours: mixtures at 0 and -2, and
    at 0 and -1. With 50 of 1000, the Poisson bound says 1.03 at delta 1e-5; the truth is 3.48.
    """
    rate = cohort / units
    present = law(multiplier, at_0=1 - rate, at_2=rate)
    zeroed = law(multiplier, at_0=1 - rate, at_1=rate)
    true = delta_between(present, zeroed, at)
    assert true == pytest.approx(least, rel=2e-2)

    poisson = delta_between(law(multiplier, at_0=1 - rate, at_1=rate), law(multiplier, at_0=1), at)
    charged = charged_delta(sampled(multiplier, rate), ZERO_OUT, at)
    assert charged == pytest.approx(poisson, rel=2e-2)  # so the Poisson charge is exact for Poisson
    assert true > 1.1 * charged  # and false for this
    fixed = FixedSizeGaussianEvent(noise_multiplier=multiplier, num_units=units, cohort=cohort)
    assert true <= charged_delta(fixed, ZERO_OUT, at)
    assert true <= charged_delta(fixed, REPLACE_ONE, at)


def test_the_pair_of_the_large_cohort_really_spends_three_and_a_half() -> None:
    present, zeroed = law(1.0, at_0=0.95, at_2=0.05), law(1.0, at_0=0.95, at_1=0.05)
    assert delta_between(present, zeroed, 3.47) > 1e-5 > delta_between(present, zeroed, 3.49)
    assert pld_epsilon({sampled(1.0, 0.05): 1}, 1e-5) == pytest.approx(1.033, abs=1e-3)


def test_in_one_direction_even_equal_values_are_above_the_poisson_profile() -> None:
    """Cohort 2 of 4, all values 1, multiplier .6 at epsilon .5: .2105 one way, .0490 the other.

    Zeroing out one of equal units is the Poisson pair turned around: its worse side covers it.
    """
    everyone, zeroed = law(0.6, at_0=1.0), law(0.6, at_0=0.5, at_1=0.5)
    sides = [
        np.maximum(p - math.exp(0.5) * q, 0.0).sum()
        for p, q in ((zeroed, everyone), (everyone, zeroed))
    ]
    assert sides == pytest.approx([0.2105, 0.0490], abs=1e-4)
    assert charged_delta(sampled(0.6, 0.5), ZERO_OUT, 0.5) == pytest.approx(0.2105, rel=2e-3)


@pytest.mark.parametrize("at", [0.5, 1.0, 2.0])
def test_a_unit_that_leaves_a_fixed_size_cohort_is_charged_as_replaced(at: float) -> None:
    """Others all send 1, one unit -1, or it is not there: cohort 99 of 100 moves by 2."""
    present, absent = law(2.0, at_0=0.01, at_2=0.99), law(2.0, at_0=1.0)
    true = delta_between(present, absent, at)
    event = FixedSizeGaussianEvent(noise_multiplier=2.0, num_units=100, cohort=99)
    as_zeroed = charged_delta(GaussianEvent(noise_multiplier=2.0), ZERO_OUT, at)
    assert as_zeroed < true <= charged_delta(event, ADD_OR_REMOVE, at)
    bounds = epsilon({event: 3}, 1e-5, neighboring_relation=ADD_OR_REMOVE)
    replaced = epsilon({GaussianEvent(noise_multiplier=1.0): 3}, 1e-5)
    for name in ("gdp", "pld", "zcdp"):
        assert bounds.by_name[name] == pytest.approx(replaced.by_name[name], rel=1e-6)
    assert bounds.rdp == pytest.approx(replaced.rdp, rel=1e-9)


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_replacing_under_poisson_sampling_covers_both_opposite_units(rate: float) -> None:
    """The unit sends 1 or -1: two mixtures about 0, 2 apart (here shifted by -1)."""
    multiplier = 1.5

    def about(mean: float) -> np.ndarray:
        density = np.exp(-((GRID - mean) ** 2) / (2 * multiplier**2))
        return np.asarray(density * (GRID[1] - GRID[0]) / (multiplier * math.sqrt(2 * math.pi)))

    p = (1 - rate) * about(0.0) + rate * about(1.0)
    q = (1 - rate) * about(0.0) + rate * about(-1.0)
    for at in (0.1, 0.5, 1.0):
        true = delta_between(p, q, at)
        if true > 1e-12:
            charged = charged_delta(sampled(multiplier, rate), REPLACE_ONE, at)
            assert true <= charged * (1 + 1e-6) <= true * 1.02
