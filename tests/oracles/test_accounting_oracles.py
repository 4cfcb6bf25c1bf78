"""Our bounds against other people's accountants: prv-accountant, Opacus and autodp."""

from __future__ import annotations

import math
import warnings
from types import ModuleType

import pytest
from made_events import sampled

from fl_dp.accounting import NeighboringRelation, epsilon
from fl_dp.accounting.bounds import pld_epsilon
from fl_dp.accounting.renyi import renyi_divergences
from fl_dp.mechanisms.mechanism_events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    ZcdpEvent,
)

DELTA = 1e-5
SETTINGS = [(1.0, 0.05, 100), (1.0, 0.01, 1000), (0.6, 0.001, 1000), (1.5, 0.04, 2250)]
ORDERS = (1.5, 2.0, 4.0, 16.0, 64.0)
ZERO_OUT = NeighboringRelation.ZERO_OUT


def oracle(module: str, package: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, at import
        loaded: ModuleType = pytest.importorskip(
            module, reason=f"{package} not installed: pip install 'fl-dp[oracles]'"
        )
    return loaded


@pytest.mark.parametrize(("multiplier", "rate", "rounds"), SETTINGS)
def test_prv_accountant_brackets_our_distribution(
    multiplier: float, rate: float, rounds: int
) -> None:
    """Gopi, Lee and Wutschitz 2021: (lower, estimate, upper), 0.01 apart; the estimate to 1e-4."""
    dpsgd = oracle("prv_accountant.dpsgd", "prv-accountant")
    accountant = dpsgd.DPSGDAccountant(
        noise_multiplier=multiplier,
        sampling_probability=rate,
        max_steps=rounds,
        eps_error=0.01,
        delta_error=DELTA * 1e-5,
    )
    lower, estimate, upper = accountant.compute_epsilon(delta=DELTA, num_steps=rounds)
    ours = pld_epsilon({sampled(multiplier, rate): rounds}, DELTA)
    assert lower <= ours <= upper
    assert ours == pytest.approx(estimate, rel=1e-4)
    assert ours == pytest.approx(upper, rel=0.02)


@pytest.mark.parametrize(("multiplier", "rate", "rounds"), SETTINGS)
def test_opacus_accountants_are_just_above_ours(
    multiplier: float, rate: float, rounds: int
) -> None:
    """Its PRV adds an error of 0.01; its Renyi orders are a part of ours."""
    accountants = oracle("opacus.accountants", "opacus")
    theirs = {}
    for name in ("PRVAccountant", "RDPAccountant"):
        accountant = getattr(accountants, name)()
        accountant.history = [(multiplier, rate, rounds)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the best order is the last, or overflows
            theirs[name] = accountant.get_epsilon(DELTA)
    ours = epsilon({sampled(multiplier, rate): rounds}, DELTA)
    assert theirs["PRVAccountant"] - 0.011 <= ours.pld <= theirs["PRVAccountant"]
    assert theirs["RDPAccountant"] * 0.98 <= ours.rdp <= theirs["RDPAccountant"] * (1 + 1e-6)


def test_opacus_composes_different_rounds_to_the_same() -> None:
    accountants = oracle("opacus.accountants", "opacus")
    accountant = accountants.PRVAccountant()
    accountant.history = [(1.0, 0.05, 30), (2.0, 0.1, 50), (0.8, 0.01, 200)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = accountant.get_epsilon(DELTA)
    ours = pld_epsilon([(sampled(z, q), count) for z, q, count in accountant.history], DELTA)
    assert theirs - 0.011 <= ours <= theirs


@pytest.mark.parametrize("multiplier", [0.8, 1.5, 4.0])
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3])
def test_autodp_has_the_same_divergences_of_poisson_samples(multiplier: float, rate: float) -> None:
    """Integer orders, where its tight Poisson bound (Zhu and Wang 2019) is exact for Gaussians."""
    zoo = oracle("autodp.mechanism_zoo", "autodp")
    transformers = oracle("autodp.transformer_zoo", "autodp")
    gaussian = zoo.GaussianMechanism(sigma=multiplier)
    gaussian.replace_one = False
    sample = transformers.AmplificationBySampling(PoissonSampling=True)
    mechanism = sample(gaussian, rate, improved_bound_flag=True)
    orders = (2.0, 4.0, 8.0, 16.0)
    theirs = [mechanism.RenyiDP(int(order)) for order in orders]
    ours = renyi_divergences(sampled(multiplier, rate), ZERO_OUT, orders)
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_autodp_has_the_same_divergences_of_laplace() -> None:
    zoo = oracle("autodp.mechanism_zoo", "autodp")
    for scale in (0.5, 2.0, 20.0):
        theirs = [zoo.LaplaceMechanism(b=scale).RenyiDP(order) for order in ORDERS]
        ours = renyi_divergences(LaplaceEvent(noise_multiplier=scale), ZERO_OUT, ORDERS)
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_autodps_exponential_mechanism_is_above_our_tight_curve() -> None:
    """Bounded range, as ours; it takes epsilon^2 / 8-zCDP or a pure bound, whichever is less."""
    zoo = oracle("autodp.mechanism_zoo", "autodp")
    for spread in (0.1, 0.8, 3.0):
        theirs = [zoo.ExponentialMechanism(eps=spread).RenyiDP(order) for order in ORDERS]
        ours = renyi_divergences(ExponentialEvent(epsilon=spread), ZERO_OUT, ORDERS)
        by_zcdp = renyi_divergences(ZcdpEvent(rho=spread**2 / 8), ZERO_OUT, ORDERS)
        for tight, other, line in zip(ours, theirs, by_zcdp, strict=True):
            assert tight <= other * (1 + 1e-9)
            assert other <= line * (1 + 1e-9)


def test_autodps_exact_gaussian_is_ours() -> None:
    zoo = oracle("autodp.mechanism_zoo", "autodp")
    theirs = zoo.ExactGaussianMechanism(sigma=2.0 / math.sqrt(10)).get_approxDP(DELTA)
    bounds = epsilon({GaussianEvent(noise_multiplier=2.0): 10}, DELTA)
    assert bounds.gdp == pytest.approx(theirs, rel=1e-7)
