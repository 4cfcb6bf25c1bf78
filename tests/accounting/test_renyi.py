"""Renyi divergences of single events, and their conversion."""

from __future__ import annotations

import logging
import math
from itertools import pairwise

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from made_events import sampled
from scipy.integrate import quad
from scipy.stats import norm

from fl_dp.accounting import NeighboringRelation
from fl_dp.accounting.events import FixedSizeGaussianEvent, TruncatedPoissonGaussianEvent
from fl_dp.accounting.renyi import (
    ORDERS,
    divergence_at_order,
    epsilon_at_order,
    renyi_divergences,
)
from fl_dp.mechanisms.mechanism_events import GaussianEvent, LaplaceEvent, ZcdpEvent

ZERO_OUT = NeighboringRelation.ZERO_OUT
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
SETTINGS = [(0.6, 0.001), (1.0, 0.01), (1.0, 0.5), (2.0, 0.1), (0.3, 0.05), (8.0, 0.2)]


def libraries(multiplier: float, rate: float, orders: tuple[float, ...]) -> np.ndarray:
    accountant = RdpAccountant(orders)
    logging.disable(logging.WARNING)  # orders that its series leaves out
    accountant.compose(dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(multiplier)))
    logging.disable(logging.NOTSET)
    return np.asarray(accountant.rdp)


@pytest.mark.parametrize(
    ("multiplier", "rate", "order", "expected"),
    [
        (1.0, 0.01, 2, 1.7181342e-4),
        (1.0, 0.01, 8, 8.9364391e-4),
        (2.0, 0.1, 16, 4.52918391e-2),
    ],
)
def test_integer_orders_match_the_closed_form(
    multiplier: float, rate: float, order: int, expected: float
) -> None:
    """Mironov, Talwar and Zhang 2019, equation 4; to the quoted digits."""
    series = math.fsum(
        math.comb(order, k)
        * (1 - rate) ** (order - k)
        * rate**k
        * math.exp((k * k - k) / (2 * multiplier**2))
        for k in range(order + 1)
    )
    assert math.log(series) / (order - 1) == pytest.approx(expected, rel=1e-7)
    ours = renyi_divergences(sampled(multiplier, rate), ZERO_OUT, (float(order),))
    assert ours[0] == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(("multiplier", "rate"), SETTINGS)
def test_integer_orders_match_dp_accounting(multiplier: float, rate: float) -> None:
    orders = tuple(float(order) for order in [*range(2, 65), 128, 256, 512, 1024])
    ours = renyi_divergences(sampled(multiplier, rate), ZERO_OUT, orders)
    assert ours == pytest.approx(libraries(multiplier, rate, orders), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("multiplier", "rate"), SETTINGS)
def test_no_order_is_above_dp_accounting(multiplier: float, rate: float) -> None:
    ours = renyi_divergences(sampled(multiplier, rate), ZERO_OUT)
    theirs = libraries(multiplier, rate, ORDERS)
    assert np.all(ours <= theirs * (1 + 1e-9) + 1e-12)


@pytest.mark.parametrize("order", [1.1, 1.5, 2.7, 6.4, 10.9, 33.3])
@pytest.mark.parametrize(("multiplier", "rate"), SETTINGS)
def test_fractional_orders_match_numeric_integration(
    multiplier: float, rate: float, order: float
) -> None:
    """Adaptive quadrature of E[(mixture / other)^order], scaled by its largest value."""

    def log_integrand(x: float) -> float:
        odds = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * multiplier**2))
        return float(order * odds + norm.logpdf(x, scale=multiplier))

    low, high = -12 * multiplier, order + 12 * multiplier
    peak = max(log_integrand(x) for x in np.linspace(low, high, 1001))
    cuts = np.linspace(low, high, 41)
    total = math.fsum(
        quad(lambda x: math.exp(log_integrand(x) - peak), a, b, epsabs=0, epsrel=1e-12)[0]
        for a, b in pairwise(cuts)
    )
    expected = (math.log(total) + peak) / (order - 1)
    ours = renyi_divergences(sampled(multiplier, rate), ZERO_OUT, (order,))[0]
    # What float64 leaves of a divergence near 1e-6 comes on top.
    assert ours == pytest.approx(expected, rel=1e-8, abs=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rate", [1e-8, 0.1, 1.0 - 1e-9])
@pytest.mark.parametrize("multiplier", [1e-6, 1e-3, 0.05, 0.5, 1e4])
def test_a_sample_lies_between_nothing_and_everybody(multiplier: float, rate: float) -> None:
    ours = renyi_divergences(sampled(multiplier, rate), ZERO_OUT)
    everybody = renyi_divergences(GaussianEvent(noise_multiplier=multiplier), ZERO_OUT)
    assert np.all(ours > 0.0)
    assert np.all(ours <= everybody * (1 + 1e-9) + 1e-12)
    assert np.all(np.diff(ours) >= -1e-12)  # divergences grow with the order


def test_gaussians_and_zcdp_are_straight_lines() -> None:
    orders = np.array(ORDERS)
    gaussian = renyi_divergences(GaussianEvent(noise_multiplier=3.0), ZERO_OUT)
    assert gaussian == pytest.approx(orders / 18.0, rel=1e-12)
    assert renyi_divergences(ZcdpEvent(rho=1 / 18.0), ZERO_OUT) == pytest.approx(gaussian)
    replaced = renyi_divergences(GaussianEvent(noise_multiplier=3.0), REPLACE_ONE)
    assert replaced == pytest.approx(4 * gaussian, rel=1e-12)


def test_laplace_matches_mironov() -> None:
    """Mironov 2017, proposition 6; at most epsilon at any order."""
    ours = renyi_divergences(LaplaceEvent(noise_multiplier=2.0), ZERO_OUT)
    for order, divergence in zip(ORDERS, ours, strict=True):
        exact = math.log(
            order / (2 * order - 1) * math.exp((order - 1) / 2.0)
            + (order - 1) / (2 * order - 1) * math.exp(-order / 2.0)
        ) / (order - 1)
        assert divergence == pytest.approx(exact, rel=1e-9)
        assert divergence <= 0.5


def test_events_without_a_bound_are_infinite() -> None:
    truncated = TruncatedPoissonGaussianEvent(
        noise_multiplier=1.0, sampling_rate=0.1, num_units=100, max_cohort=30
    )
    assert np.all(np.isinf(renyi_divergences(truncated, ZERO_OUT)))
    assert np.all(np.isinf(renyi_divergences(sampled(1.0, 0.1), REPLACE_ONE)))


def test_a_fixed_size_sample_is_never_above_everybody() -> None:
    event = FixedSizeGaussianEvent(noise_multiplier=1.0, num_units=20, cohort=19)
    for relation in NeighboringRelation:
        distance = 1 if relation is ZERO_OUT else 2
        everybody = np.array(ORDERS) * distance**2 / 2
        assert np.all(renyi_divergences(event, relation) <= everybody * (1 + 1e-12))


def test_the_newer_conversion_is_tighter_than_mironovs() -> None:
    """The tutorial's 3.01 (rate 256/60000, multiplier 1.1, 14062 steps, 1e-5) was Mironov's."""
    total = 14_062 * renyi_divergences(sampled(1.1, 256 / 60_000), ZERO_OUT)
    mironov = min(d + math.log(1e5) / (a - 1) for a, d in zip(ORDERS, total, strict=True))
    newer = min(epsilon_at_order(d, a, 1e-5) for a, d in zip(ORDERS, total, strict=True))
    assert mironov == pytest.approx(3.008, abs=1e-3)
    assert newer == pytest.approx(2.597, abs=1e-3)


@pytest.mark.parametrize("order", [1.1, 3.9, 64.0])
def test_conversions_are_inverse(order: float) -> None:
    divergence = divergence_at_order(8.0, order, 1e-5)
    if divergence > 0:
        assert epsilon_at_order(divergence, order, 1e-5) == pytest.approx(8.0, rel=1e-12)
    assert epsilon_at_order(0.0, order, 0.99) >= 0.0
