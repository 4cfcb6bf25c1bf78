"""Closed forms of the Gaussian mechanism, and the formulas that people still use."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from fl_dp.accounting.gaussian_formulas import (
    classic_noise_multiplier,
    exposures_noise_multiplier,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    udp_sigma,
)

# Balle and Wang 2018, theorem 8, recomputed with dp-accounting 0.6.
ANALYTIC = {
    0.1: 30.7495661320,
    0.5: 7.0318266756,
    1.0: 3.7306316348,
    2.0: 1.9938124456,
    4.0: 1.0811618495,
    8.0: 0.6002290722,
    10.0: 0.4998886197,
    20.0: 0.2900414180,
    50.0: 0.1497606076,
}


@pytest.mark.parametrize(("epsilon", "expected"), ANALYTIC.items())
def test_the_analytic_multiplier_matches_the_golden_table(epsilon: float, expected: float) -> None:
    assert gaussian_noise_multiplier(epsilon, 1e-5) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8, 1e-12])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 8.0, 50.0])
def test_epsilon_inverts_the_multiplier_and_solves_the_closed_form(
    epsilon: float, delta: float
) -> None:
    z = gaussian_noise_multiplier(epsilon, delta)
    assert gaussian_epsilon(z, delta) == pytest.approx(epsilon, rel=1e-8)
    # delta = Phi(1/(2z) - eps z) - e^eps Phi(-1/(2z) - eps z)
    worse = norm.logcdf(-0.5 / z - epsilon * z) + epsilon
    solved = norm.cdf(0.5 / z - epsilon * z) - math.exp(worse)
    assert solved == pytest.approx(delta, rel=1e-6, abs=1e-16)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("multiplier", [1e-4, 0.05, 1.0, 1e6, math.inf])
def test_extreme_multipliers_have_an_epsilon(multiplier: float) -> None:
    assert 0.0 <= gaussian_epsilon(multiplier, 1e-12) < math.inf
    assert gaussian_epsilon(1e6, 1e-5) == 0.0


@pytest.mark.parametrize(
    ("epsilon", "expected", "true"),
    [(0.1, 48.4480526, None), (0.5, 9.6896105, None), (1.0, 4.8448052626, 0.7510)],
)
def test_the_classic_formula_matches_and_wastes_noise(
    epsilon: float, expected: float, true: float | None
) -> None:
    """Dwork and Roth 2014, theorem A.1."""
    multiplier = classic_noise_multiplier(epsilon, 1e-5)
    assert multiplier == pytest.approx(expected, rel=1e-8)
    assert 1.29 < multiplier / gaussian_noise_multiplier(epsilon, 1e-5) < 1.58
    if true is not None:
        assert gaussian_epsilon(multiplier, 1e-5) == pytest.approx(true, abs=1e-4)


@pytest.mark.parametrize(
    ("claimed", "true"),
    [(2.0, 1.6103), (4.0, 3.5112), (8.0, 7.9144), (10.0, 10.394), (20.0, 25.44), (50.0, 96.4)],
)
def test_the_classic_formula_breaks_its_promise_above_about_eight(
    claimed: float, true: float
) -> None:
    wrong = math.sqrt(2.0 * math.log(1.25e5)) / claimed
    assert gaussian_epsilon(wrong, 1e-5) == pytest.approx(true, rel=5e-4)
    with pytest.raises(ValueError, match=r"up to 1, got .*: use gaussian_noise_multiplier"):
        classic_noise_multiplier(claimed, 1e-5)


def test_the_udp_formula_matches_wei_and_shows_the_true_price() -> None:
    """Wei et al. 2020: sigma = sqrt(2 q T ln(1/delta)) / eps; q = .1, T = 100, eps = 8."""
    noise = udp_sigma(8.0, 1e-5, participation_rate=0.1, rounds=100)
    assert noise == pytest.approx(1.8968, abs=5e-5)
    for participations, true in ((10, 8.007), (20, 12.27), (100, 35.7)):
        spent = gaussian_epsilon(noise / math.sqrt(participations), 1e-5)
        assert spent == pytest.approx(true, rel=2e-3)


@pytest.mark.parametrize(
    ("claimed", "true"), [(0.5, 0.356), (1.0, 0.759), (4.0, 3.55), (8.0, 8.007), (10.0, 10.52)]
)
def test_the_udp_formula_for_one_participation(claimed: float, true: float) -> None:
    noise = udp_sigma(claimed, 1e-5, participation_rate=1.0, rounds=1)
    assert gaussian_epsilon(noise, 1e-5) == pytest.approx(true, rel=2e-3)


def test_a_participation_cap_replaces_the_udp_formula() -> None:
    """Ten participations at eps 8: sqrt(10) times the analytic multiplier, exact by Gaussian DP."""
    capped = math.sqrt(10) * gaussian_noise_multiplier(8.0, 1e-5)
    assert capped == pytest.approx(1.898091, abs=1e-6)
    assert gaussian_epsilon(capped / math.sqrt(10), 1e-5) == pytest.approx(8.0, rel=1e-9)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_an_epsilon_that_is_no_budget_is_refused(bad: float) -> None:
    for formula in (gaussian_noise_multiplier, classic_noise_multiplier):
        with pytest.raises(ValueError, match="epsilon must be positive"):
            formula(bad, 1e-5)


def test_the_formula_of_exposures_splits_the_classic_noise_evenly() -> None:
    for uploads in (1, 5, 25):
        noise = exposures_noise_multiplier(0.5, 1e-5, exposures=uploads)
        assert noise == pytest.approx(uploads * classic_noise_multiplier(0.5, 1e-5))
        # Exact composition grows with the root of the uploads: the formula wastes the rest.
        assert gaussian_epsilon(noise / math.sqrt(uploads), 1e-5) < 0.5 / math.sqrt(uploads)


@pytest.mark.parametrize(
    ("claimed", "spent"),
    [(1.0, (0.759, 0.666, 0.649)), (8.0, (8.007, 6.927, 6.738)), (64.0, (145.0, 119.5, 115.2))],
)
def test_discounting_rounds_spends_less_than_not_to(
    claimed: float, spent: tuple[float, ...]
) -> None:
    """Noise of the formula for T rounds, then for fewer."""

    def noise(rounds: int) -> float:
        return udp_sigma(claimed, 1e-5, participation_rate=1.0, rounds=rounds)

    def after(begun: int, total: int) -> float:
        mu_squared = begun * noise(20) ** -2.0 + (total - begun) * noise(total) ** -2.0
        return gaussian_epsilon(mu_squared**-0.5, 1e-5)

    assert (after(0, 20), after(10, 14), after(5, 10)) == pytest.approx(spent, rel=2e-3)
