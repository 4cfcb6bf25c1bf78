"""Published numbers that a reader would compare ours with."""

from __future__ import annotations

import math

import pytest
from made_events import sampled

from fl_dp.accounting import NeighboringRelation, epsilon, tight_epsilon
from fl_dp.accounting.bounds import pld_epsilon
from fl_dp.accounting.events import FixedSizeGaussianEvent, freeze
from fl_dp.accounting.renyi import renyi_epsilon
from fl_dp.mechanisms.mechanism_events import GaussianEvent


@pytest.mark.parametrize(
    ("clients", "cohort", "row"),
    [
        (1e5, 100, (0.697, 0.700, 0.725, 0.774, 0.884, 1.899, 6.830)),
        (1e6, 1000, (0.892, 0.895, 0.919, 0.985, 1.095, 2.130, 7.505)),
    ],
)
def test_mcmahan_2018_table_1_at_todays_conversion(
    clients: float, cohort: int, row: tuple[float, ...]
) -> None:
    """Noise multiplier 1, 1 to 1e6 rounds, delta = clients^-1.1; Renyi, at three decimals.

    "Learning Differentially Private Recurrent Language Models"; the settings are the paper's, the
    numbers were recomputed with the conversion of Canonne, Kamath and Steinke 2020.
    """
    delta = clients**-1.1
    for power, expected in enumerate(row):
        history = freeze({sampled(1.0, cohort / clients): 10**power})
        by_renyi = renyi_epsilon(history, delta, NeighboringRelation.ZERO_OUT)
        # Half a digit, and per mille of the last column (ours integrates fractional orders).
        assert by_renyi == pytest.approx(expected, abs=6e-4, rel=2e-4)
        assert tight_epsilon(history, delta, interval=1e-3) <= by_renyi


@pytest.mark.parametrize(
    ("multiplier", "cohort", "rounds"),
    [
        (0.669, 2231, 4000),
        (0.513, 513, 1500),
        (0.659, 2197, 3000),
        (0.510, 510, 1200),
        (1.396, 13958, 1500),
    ],
)
def test_andrew_2021_table_1(multiplier: float, cohort: int, rounds: int) -> None:
    """Adaptive clipping's tasks, a million clients, delta = N^-1.1: all 5.0 at fixed-size cohorts.

    The paper's multiplier is relative to what *replacing* a client moves the sum by; ours to the
    clipping norm, half of that.
    """
    delta = 1e6**-1.1
    event = FixedSizeGaussianEvent(
        noise_multiplier=2.0 * multiplier, num_units=10**6, cohort=cohort
    )
    relation = NeighboringRelation.REPLACE_ONE
    by_renyi = renyi_epsilon(freeze({event: rounds}), delta, relation)
    gated = tight_epsilon({event: rounds}, delta, neighboring_relation=relation, interval=1e-2)
    assert by_renyi == pytest.approx(5.0, abs=0.02)
    # Distributions have no amplification for it: the gate takes this one.
    assert gated == by_renyi


def test_the_tensorflow_federated_tutorial() -> None:
    """120 of 3383 clients, multiplier 1.2, 100 rounds; its target is (2, 1e-5)."""
    bounds = epsilon({sampled(1.2, 120 / 3383): 100}, 1e-5)
    assert bounds.rdp == pytest.approx(1.986, abs=1e-3)
    assert bounds.pld == pytest.approx(1.708, abs=1e-3)


def test_opacus_own_accountant_tests() -> None:
    """Multiplier 1.5, rate .04, delta 1e-5: Renyi at 2250 steps and PRV at 2249 (90 // .04)."""
    event = sampled(1.5, 0.04)
    by_renyi = epsilon({event: 2250}, 1e-5).rdp
    # They list orders 1.1, ..., 63; ours hold those, integrated.
    assert 7.32911117143 * (1 - 1e-4) <= by_renyi <= 7.32911117143 * (1 + 1e-6)
    # Their PRV bound adds its error of 0.01 to the estimate.
    by_pld = pld_epsilon({event: 2249}, 1e-5)
    assert 6.777395712150674 - 0.011 <= by_pld <= 6.777395712150674


def test_four_accountants_on_one_setting() -> None:
    """Rate .01, multiplier 1, 1000 steps, 1e-5: PLD 1.828, prv-accountant 1.829, Renyi 2.101."""
    bounds = epsilon({sampled(1.0, 0.01): 1000}, 1e-5)
    assert bounds.pld == pytest.approx(1.828, abs=1e-3)
    assert bounds.rdp == pytest.approx(2.101, abs=1e-3)


@pytest.mark.parametrize(("rho", "expected"), [(0.15, 3.42), (0.0144, 0.994)])
def test_gboards_zcdp_in_epsilon(rho: float, expected: float) -> None:
    """Xu et al. 2023, Gboard: zCDP of a Gaussian, at delta 1e-10; exact, to their digits."""
    event = GaussianEvent(noise_multiplier=1.0 / math.sqrt(2.0 * rho))
    assert epsilon({event: 1}, 1e-10).gdp == pytest.approx(expected, rel=2e-3)
    assert pld_epsilon({event: 1}, 1e-10) == pytest.approx(expected, rel=2e-3)
