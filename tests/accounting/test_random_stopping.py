"""The best of a random number of runs: its law, and its charge against exact integrals."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from fl_dp.accounting import PoissonGaussianEvent, PrivacyBudget, epsilon
from fl_dp.accounting.budget import NeighboringRelation
from fl_dp.accounting.calibration import calibrate_noise
from fl_dp.accounting.events import RandomStoppingEvent
from fl_dp.accounting.filters import DeclaredFilter
from fl_dp.accounting.random_stopping import RunsLaw
from fl_dp.accounting.renyi import ORDERS, renyi_divergences
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.mechanism_events import GaussianEvent

GOLDEN = (3.8897413324947587, 3.638537753049733, 3.351381287963876, 5.395207686693676)
LAWS = [(5.0, 1.0), (10.0, 0.0), (3.0, 0.5), (20.0, 2.0)]
MOST = 600  # runs: the laws' mass beyond is below 1e-6
ROUNDS = ((PoissonGaussianEvent(noise_multiplier=1.5, sampling_rate=0.1), 100),)


def stopped(mean: float, shape: float, multiplier: float = 2.0) -> RandomStoppingEvent:
    releases = ((GaussianEvent(noise_multiplier=multiplier), 1),)
    return RandomStoppingEvent(releases=releases, mean_runs=mean, shape=shape)


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_the_law_has_its_mean_and_all_of_the_mass(mean: float, shape: float) -> None:
    law = RunsLaw(mean=mean, shape=shape)
    chances = np.array([law.probability(runs) for runs in range(1, MOST)])
    assert chances.sum() == pytest.approx(1.0, abs=1e-6)
    assert chances @ np.arange(1, MOST) == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_draws_follow_the_law(mean: float, shape: float) -> None:
    law, count = RunsLaw(mean=mean, shape=shape), 20_000
    uniform = SecureRandom().uniforms(count)
    drawn = np.array([law.draw(float(each)) for each in uniform])
    for runs in (1, 2, 3):
        chance = law.probability(runs)
        # 5 standard deviations of a binomial: false alarms at 6e-7 each.
        within = 5.0 * math.sqrt(chance * (1.0 - chance) / count)
        assert abs(np.mean(drawn == runs) - chance) < within


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_the_charge_is_that_of_dp_accounting(mean: float, shape: float) -> None:
    theirs = RdpAccountant(ORDERS)
    theirs.compose(RepeatAndSelectDpEvent(dpa.GaussianDpEvent(2.0), mean, shape))
    ours = renyi_divergences(stopped(mean, shape), NeighboringRelation.ZERO_OUT)
    np.testing.assert_allclose(ours, theirs.rdp, rtol=1e-9)


def test_golden_epsilons() -> None:
    """Of dp-accounting 0.6's RDP accountant, `RepeatAndSelectDpEvent`, delta 1e-5."""
    for (mean, shape), golden in zip(LAWS, GOLDEN, strict=True):
        assert epsilon({stopped(mean, shape): 1}, 1e-5).best == pytest.approx(golden, rel=1e-6)


@pytest.mark.parametrize(("mean", "shape"), LAWS)
@pytest.mark.parametrize("order", [2.0, 4.0, 16.0])
def test_the_best_of_random_runs_never_diverges_by_more(
    mean: float, shape: float, order: float
) -> None:
    """Exact divergence by quadrature: a run's output is its own score, one coordinate of noise."""
    z = 2.0
    law = RunsLaw(mean=mean, shape=shape)
    chances = np.array([law.probability(runs) for runs in range(1, MOST)])
    grid = np.linspace(-12.0 * z, 12.0 * z + 1.0, 20_001)

    def best(centre: float) -> np.ndarray:
        """Log-density of the largest of K draws: q(x) times the derivative of E[F(x)^K]."""
        below = norm.cdf(grid, centre, z)
        slope = np.polynomial.polynomial.polyval(below, np.arange(1, MOST) * chances)
        return np.asarray(norm.logpdf(grid, centre, z) + np.log(slope))

    bounds = renyi_divergences(stopped(mean, shape), NeighboringRelation.ZERO_OUT)
    bound = bounds[ORDERS.index(order)]
    exact = []
    for one, other in ((0.0, 1.0), (1.0, 0.0)):
        p, q = best(one), best(other)
        moment = np.trapezoid(np.exp(order * p - (order - 1.0) * q), grid)
        exact.append(math.log(moment) / (order - 1.0))
    assert max(exact) <= bound * (1 + 1e-9)
    # Charging the run that is shown, as if it had been the only one, would be false.
    assert max(exact) > order / (2.0 * z * z)


def test_the_noise_of_each_training_is_calibrated_to_the_whole() -> None:
    def whole(noise: float) -> RandomStoppingEvent:
        rounds = ((PoissonGaussianEvent(noise_multiplier=noise, sampling_rate=0.1), 100),)
        return RandomStoppingEvent(releases=rounds, mean_runs=5.0)

    noise = calibrate_noise(lambda noise: [whole(noise)], 4.0, 1e-4)
    assert 3.99 < epsilon([whole(noise)], 1e-4).best <= 4.0
    # Less than half is left for a single training.
    assert epsilon(whole(noise).releases, 1e-4).best < 2.0


def test_the_best_of_runs_composes_with_other_releases() -> None:
    event, other = stopped(5.0, 1.0), GaussianEvent(noise_multiplier=3.0)
    together = epsilon({event: 1, other: 2}, 1e-5)
    assert max(epsilon({event: 1}, 1e-5).best, epsilon({other: 2}, 1e-5).best) < together.best
    sums = renyi_divergences(event, NeighboringRelation.ZERO_OUT) + 2 * renyi_divergences(
        other, NeighboringRelation.ZERO_OUT
    )
    assert together.rdp == pytest.approx(
        float(dpa.rdp.compute_epsilon(ORDERS, sums, 1e-5)[0]), rel=1e-12
    )


@pytest.mark.parametrize("wrong", [{"mean": 1.0}, {"mean": math.inf}, {"mean": 5.0, "shape": -0.1}])
def test_a_law_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        RunsLaw(**wrong)


def test_the_gate_names_the_accountant_that_bounds_it() -> None:
    budget = PrivacyBudget(epsilon=8.0, delta=1e-5)
    best = epsilon({stopped(5.0, 1.0): 1}, 1e-5)
    assert set(best.by_name) == {"rdp", "naive"} and best.best_name == "rdp"
    assert "Renyi DP" in DeclaredFilter(budget, {stopped(5.0, 1.0): 1}).rule
    assert "privacy-loss distributions" in DeclaredFilter(budget, dict(ROUNDS)).rule
