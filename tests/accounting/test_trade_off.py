"""Trade-off curves: exact where they have a closed form, above every adversary elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from fl_dp.accounting import (
    NeighboringRelation,
    PoissonGaussianEvent,
    PrivacyEvent,
    epsilon,
    epsilon_delta_trade_off,
    gaussian_trade_off,
)
from fl_dp.accounting.trade_off import trade_off
from fl_dp.mechanisms.mechanism_events import GaussianEvent, ZcdpEvent

RATES = np.array([0.0, 1e-6, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.999, 1.0])


def test_gaussians_without_sampling_have_their_closed_form() -> None:
    history: dict[PrivacyEvent, int] = {
        GaussianEvent(noise_multiplier=2.0): 9,
        GaussianEvent(noise_multiplier=0.5): 1,
    }
    mu = float(np.sqrt(9 / 4 + 4.0))
    expected = norm.cdf(norm.ppf(RATES) + mu)
    np.testing.assert_allclose(trade_off(history)(RATES), expected, atol=1e-12)
    replaced = trade_off(history, neighboring_relation=NeighboringRelation.REPLACE_ONE)
    np.testing.assert_allclose(replaced(RATES), gaussian_trade_off(2 * mu)(RATES), atol=1e-12)


@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0])
def test_one_poisson_sample_has_the_curve_of_its_mixture_and_never_less(rate: float) -> None:
    # Its outputs' likelihood ratio grows with x: P[x > t] under both, for thresholds t.
    thresholds = np.linspace(-4.0, 5.0, 200)
    alarm = norm.sf(thresholds)
    hit = (1 - rate) * alarm + rate * norm.sf(thresholds - 1.0)
    curve = trade_off({PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=rate): 1})
    assert (curve(alarm) >= hit - 1e-12).all()
    np.testing.assert_allclose(curve(alarm), hit, atol=1e-6)


def test_no_adversary_of_a_hundred_rounds_lies_above_its_curve_and_the_best_lies_on_it() -> None:
    # 20,000 games of the optimal adversary in either world: rates to 0.4 %, seven deviations.
    z, q, rounds, games = 1.0, 0.1, 100, 20_000
    rng = np.random.default_rng(0)

    def loss(there: bool) -> np.ndarray:
        total = np.zeros(games)
        for _ in range(rounds):
            x = z * rng.normal(size=games) + (rng.random(games) < q if there else 0.0)
            total += np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z)))
        return total

    out, there = loss(False), loss(True)
    history: dict[PrivacyEvent, int] = {
        PoissonGaussianEvent(noise_multiplier=z, sampling_rate=q): rounds
    }
    curve = trade_off(history)
    for threshold in (-1.0, 0.0, 1.0, 3.0):
        alarm, hit = (out > threshold).mean(), (there > threshold).mean()
        assert hit == pytest.approx(float(curve(alarm)), abs=0.025)


def test_the_curve_of_epsilon_and_delta_lies_above_that_of_the_releases_and_touches_it() -> None:
    history: dict[PrivacyEvent, int] = {
        PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.1): 50
    }
    delta = 1e-3
    rates = np.linspace(0.0, 1.0, 2001)
    allowed = epsilon_delta_trade_off(epsilon(history, delta).best, delta)(rates)
    drawn = trade_off(history)(rates)
    assert (allowed >= drawn - 1e-9).all()
    assert (allowed - drawn).min() < 2e-3


def test_a_curve_begins_at_delta_ends_at_one_and_never_falls() -> None:
    for curve in (
        epsilon_delta_trade_off(800.0, 1e-5),  # e^800 is beyond float64
        epsilon_delta_trade_off(0.0, 0.0),
        trade_off({PoissonGaussianEvent(noise_multiplier=0.7, sampling_rate=0.3): 20}),
        trade_off({}),
    ):
        values = curve(RATES)
        assert (np.diff(values) >= 0).all()
        assert values[-1] == pytest.approx(1.0)
        assert (values >= RATES - 1e-12).all()
    assert epsilon_delta_trade_off(1.0, 1e-5)(0.0) == pytest.approx(1e-5)


def test_what_has_no_curve_is_refused() -> None:
    with pytest.raises(ValueError, match="zCDP"):
        trade_off({ZcdpEvent(rho=0.1): 1})
    with pytest.raises(ValueError, match="false-positive"):
        gaussian_trade_off(1.0)(1.5)
    with pytest.raises(ValueError, match="epsilon"):
        epsilon_delta_trade_off(-1.0, 0.1)
    with pytest.raises(ValueError, match="mu"):
        gaussian_trade_off(-1.0)
