"""The exponential and Laplace mechanisms: tight curves, and what they compose to.

Dong, Durfee and Rogers 2020, "Optimal Differential Privacy Composition for Exponential Mechanisms";
golden rows recomputed with dp-accounting 0.6 from the same curves.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
from scipy.integrate import quad

from fl_dp.accounting import NeighboringRelation, epsilon
from fl_dp.accounting.bounded_range import (
    additive_gumbel_delta,
    bounded_range_delta,
    bounded_range_renyi,
)
from fl_dp.accounting.bounds import pld_epsilon
from fl_dp.mechanisms.mechanism_events import ExponentialEvent, GaussianEvent, LaplaceEvent

RANGES = [0.1, 0.5, 1.0, 3.0, 8.0]
GUMBEL_STD = math.pi / math.sqrt(6.0)


def hockey_stick(p: np.ndarray, q: np.ndarray, at: float) -> np.ndarray:
    return np.asarray(np.maximum(p - math.exp(at) * q, 0.0).sum(axis=-1))


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def two_points(spread: float, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The worst pair: outputs of losses t and t - spread, and their probabilities."""
    first = (math.exp(spread) - np.exp(t)) / math.expm1(spread)
    return np.stack([t, t - spread]), np.stack([first, 1.0 - first])


# Curves of one draw --------------------------------------------------------------------------


@pytest.mark.parametrize("spread", RANGES)
def test_the_profile_is_the_worst_two_point_pair(spread: float) -> None:
    losses, probabilities = two_points(spread, np.linspace(0.0, spread, 200_001))
    at = np.linspace(-1.5 * spread, 1.5 * spread, 31)
    brute = [(probabilities * np.maximum(-np.expm1(e - losses), 0.0)).sum(axis=0).max() for e in at]
    closed = bounded_range_delta(spread, at)
    assert np.all(closed >= np.array(brute) - 1e-12)
    assert closed == pytest.approx(brute, abs=1e-9)
    assert bounded_range_delta(spread, np.zeros(1))[0] == pytest.approx(math.tanh(spread / 4))


@pytest.mark.parametrize("spread", RANGES)
def test_no_exponential_mechanism_is_above_the_profile(spread: float) -> None:
    """4,000 random ones: any utilities, any moves by up to half the range either way."""
    rng = np.random.default_rng(0)
    at = np.linspace(0.0, 1.1 * spread, 12)
    allowed = bounded_range_delta(spread, at)
    for candidates in (2, 3, 6, 20):
        logits = rng.normal(0.0, 3.0, (1000, candidates))
        # Half of the moves are extreme, as the worst ones are.
        moves = rng.uniform(-0.5, 0.5, logits.shape)
        moves[::2] = np.sign(moves[::2]) / 2
        p, q = softmax(logits), softmax(logits + spread * moves)
        ratios = np.log(p / q)
        assert np.all(np.ptp(ratios, axis=1) <= spread * (1 + 1e-9))
        for e, bound in zip(at, allowed, strict=True):
            assert hockey_stick(p, q, e).max() <= bound + 1e-12
            assert hockey_stick(q, p, e).max() <= bound + 1e-12


@pytest.mark.parametrize("order", [1.1, 2.0, 3.9, 16.0, 256.0])
@pytest.mark.parametrize("spread", [0.01, *RANGES])
def test_the_divergence_is_the_worst_two_point_pair(spread: float, order: float) -> None:
    losses, probabilities = two_points(spread, np.linspace(0.0, spread, 100_001)[1:-1])
    exponents = np.log(probabilities) + (order - 1) * losses
    brute = float(np.logaddexp(*exponents).max()) / (order - 1)
    ours = bounded_range_renyi(spread, order)
    assert brute * (1 - 1e-9) - 1e-15 <= ours <= brute * (1 + 1e-6) + 2e-14
    assert ours <= order * spread**2 / 8
    assert ours <= spread


@pytest.mark.parametrize("spread", [1e-8, 1e-4, 50.0, 1000.0])
def test_extreme_ranges_have_a_divergence(spread: float) -> None:
    for order in (1.1, 2.0, 1024.0):
        assert 0.0 < bounded_range_renyi(spread, order) <= min(spread, order * spread**2 / 8)


# Compositions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spread", "count", "zcdp", "rdp", "pld"),
    [
        (0.1, 100, 2.166, 2.152, 2.321),
        (0.1, 1000, 8.078, 8.071, 8.927),
        (0.5, 20, 5.378, 5.147, 5.541),
        (1.0, 10, 8.078, 7.245, 7.626),
        (1.0, 50, 22.02, 21.23, 23.71),
    ],
)
def test_draws_match_the_golden_table(
    spread: float, count: int, zcdp: float, rdp: float, pld: float
) -> None:
    bounds = epsilon({ExponentialEvent(epsilon=spread): count}, 1e-5)
    assert bounds.zcdp == pytest.approx(zcdp, rel=5e-4)
    assert bounds.rdp == pytest.approx(rdp, rel=5e-4)
    assert bounds.pld == pytest.approx(pld, rel=5e-4)
    # What Dong, Durfee and Rogers prove for choices fixed beforehand is the least there can be.
    optimal = {(0.1, 100): 1.989, (0.1, 1000): 7.507, (0.5, 20): 4.883, (1.0, 10): 7.105}
    assert bounds.best >= optimal.get((spread, count), 20.16)


def test_draws_at_once_are_as_many_draws() -> None:
    at_once = epsilon({ExponentialEvent(epsilon=0.2, draws=5): 4}, 1e-5)
    one_by_one = epsilon({ExponentialEvent(epsilon=0.2): 20}, 1e-5)
    assert at_once.rdp == pytest.approx(one_by_one.rdp, rel=1e-9)
    assert at_once.pld == pytest.approx(one_by_one.pld, rel=1e-6)


@pytest.mark.parametrize(
    ("k", "expected"), [(1, 2.858), (2, 4.228), (3, 5.337), (10, 10.91), (50, 30.7)]
)
def test_the_top_of_a_hundred_rounds_by_zcdp(k: int, expected: float) -> None:
    """Gumbel noise of standard deviation 10 sensitivities; peeled draws."""
    event = ExponentialEvent(epsilon=GUMBEL_STD / 10, draws=k, one_coordinate=True)
    bounds = epsilon({event: 100}, 1e-5)
    assert bounds.zcdp == pytest.approx(expected, rel=2e-3)
    if k > 1:  # and never above the release of all noisy scores, whichever way each moves
        assert bounds.gumbel == pytest.approx(7.747, abs=0.01)
        assert bounds.best <= bounds.gumbel


def test_all_scores_that_move_one_way_cost_less_than_any_mixture() -> None:
    """6.99: every score goes the same way in all hundred rounds."""
    epsilon_, interval = GUMBEL_STD / 10, 1e-3
    reach = math.ceil((40.0 * math.expm1(epsilon_) + epsilon_) / interval)
    at = np.arange(-reach, reach + 1, dtype=np.float64) * interval
    spent = []
    for deltas in additive_gumbel_delta(epsilon_, at):
        pmf = create_pmf_pessimistic_connect_dots_fixed_gap(
            interval, -reach, reach, np.minimum.accumulate(deltas)
        )
        spent.append(pmf.self_compose(100).get_epsilon_for_delta(1e-5))
    assert max(spent) == pytest.approx(6.99, abs=0.01)


def test_noisy_scores_of_other_laws_at_that_noise() -> None:
    gaussian, laplace = GaussianEvent(noise_multiplier=10.0), LaplaceEvent(noise_multiplier=50**0.5)
    assert epsilon({gaussian: 100}, 1e-5).best == pytest.approx(4.377, abs=1e-3)
    assert epsilon({laplace: 100}, 1e-5).best == pytest.approx(6.268, abs=1e-3)
    gaussian, laplace = GaussianEvent(noise_multiplier=3.0), LaplaceEvent(noise_multiplier=4.5**0.5)
    assert epsilon({gaussian: 1}, 1e-5).best == pytest.approx(1.271, abs=1e-3)
    assert epsilon({laplace: 1}, 1e-5).best == pytest.approx(0.471, abs=1e-3)


def test_the_top_of_one_round() -> None:
    """Standard deviation 3 sensitivities: zCDP .854, 1.555, 7.66; all noisy scores 5.15."""
    for k, expected in ((1, 0.854), (3, 1.555), (50, 7.66)):
        event = ExponentialEvent(epsilon=GUMBEL_STD / 3, draws=k, one_coordinate=True)
        bounds = epsilon({event: 1}, 1e-5)
        assert bounds.zcdp == pytest.approx(expected, rel=1e-3)
        if k > 1:
            assert bounds.gumbel == pytest.approx(5.15, abs=5e-3)
        assert bounds.best <= bounds.zcdp


def test_replacing_a_unit_doubles_the_range() -> None:
    replaced = epsilon(
        {ExponentialEvent(epsilon=0.3): 10},
        1e-5,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
    doubled = epsilon({ExponentialEvent(epsilon=0.6): 10}, 1e-5)
    assert replaced.pld == doubled.pld
    assert replaced.rdp == doubled.rdp
    assert replaced.zcdp == pytest.approx(doubled.zcdp, rel=1e-6)


# All noisy scores ----------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.2, 1.0, 2.5])
def test_the_gumbel_profiles_match_numeric_integration(shift: float) -> None:
    def density(x: float) -> float:
        return math.exp(-x - math.exp(-x))

    for at in (-0.5 * shift, 0.0, 0.3 * shift, 0.9 * shift, 1.5 * shift):

        def lowered(x: float, at: float = at) -> float:
            return max(density(x + shift) - math.exp(at) * density(x), 0.0)

        def other(x: float, at: float = at) -> float:
            return max(density(x) - math.exp(at) * density(x + shift), 0.0)

        cuts = np.linspace(-7.0, 45.0, 209)
        both = [
            sum(quad(f, a, b, epsabs=1e-13)[0] for a, b in itertools.pairwise(cuts))
            for f in (lowered, other)
        ]
        ours = additive_gumbel_delta(shift, np.array([at]))
        # The kink lies inside one piece: quadrature is good to about 1e-7 there.
        assert [float(each[0]) for each in ours] == pytest.approx(both, abs=1e-6)


def top_law(logits: np.ndarray, k: int) -> np.ndarray:
    """Exact probabilities of every ordered top `k` (Plackett-Luce)."""
    weights = np.exp(logits)
    law = []
    for chosen in itertools.permutations(range(len(weights)), k):
        left, probability = weights.sum(), 1.0
        for index in chosen:
            probability *= weights[index] / left
            left -= weights[index]
        law.append(probability)
    return np.array(law)


def test_the_top_two_of_five_are_below_both_bounds() -> None:
    """Enumerated; one unit moves its own score by the range. k = 2 draws, or all noisy scores."""
    rng = np.random.default_rng(1)
    interval = 1e-3
    for spread in (0.3, 1.0, 2.0):
        at = np.linspace(0.0, 2 * spread, 9)
        all_scores = np.maximum(*additive_gumbel_delta(spread, at))
        for _ in range(20):
            logits = rng.normal(0.0, 2.0, 5)
            moved = logits + spread * np.eye(5)[0]
            for p, q in itertools.permutations((top_law(logits, 2), top_law(moved, 2))):
                true = np.array([hockey_stick(p, q, e) for e in at])
                assert np.all(true <= all_scores + 1e-12)
                for e, delta in zip(at, true, strict=True):
                    if 1e-9 < delta < 1.0:
                        event = ExponentialEvent(epsilon=spread, draws=2)
                        assert pld_epsilon({event: 1}, delta, interval=interval) >= e - 1e-9


def test_all_noisy_scores_bound_the_top_only_if_one_score_moves() -> None:
    """A general utility moves all of them: six candidates ranked, up or down by half the range."""
    spread = 1.0
    moves = spread * np.array([0.5, 0.5, 0.5, -0.5, -0.5, -0.5])
    p, q = top_law(np.zeros(6), 6), top_law(moves, 6)
    at = np.linspace(0.0, 2.0, 9)
    all_scores = np.maximum(*additive_gumbel_delta(spread, at))
    worst = max(
        float(hockey_stick(q, p, e)) - bound for e, bound in zip(at, all_scores, strict=True)
    )
    assert worst > 0.02
    general = epsilon({ExponentialEvent(epsilon=spread, draws=6): 1}, 1e-5)
    assert general.gumbel == math.inf
    # One event that may not use the bound spoils nothing for one that may.
    alone = ExponentialEvent(epsilon=0.3, draws=20, one_coordinate=True)
    mixed = epsilon({alone: 1, ExponentialEvent(epsilon=spread, draws=6): 1}, 1e-5)
    assert epsilon({alone: 1}, 1e-5).gumbel < mixed.gumbel
    assert mixed.gumbel > pld_epsilon({ExponentialEvent(epsilon=spread, draws=6): 1}, 1e-5)


# Laplace -------------------------------------------------------------------------------------


def test_laplace_composition_matches_the_golden_number() -> None:
    """Recomputed with dp-accounting 0.6: a hundred of 0.1, basic composition says 10."""
    event = LaplaceEvent(noise_multiplier=10.0)
    bounds = epsilon({event: 100}, 1e-5)
    assert bounds.pld == pytest.approx(4.220, abs=1e-3)
    assert epsilon({event: 1}, 1e-5).pld == pytest.approx(0.09998, abs=1e-5)
    assert bounds.best < bounds.naive <= 10.0 * (1 + 1e-4)


def test_one_laplace_release_matches_the_closed_form() -> None:
    """delta = 1 - e^((eps - 1/b) / 2): the profile of one Laplace release."""
    for delta in (1e-3, 1e-2, 0.1):
        exact = 1.0 + 2.0 * math.log1p(-delta)
        assert pld_epsilon({LaplaceEvent(noise_multiplier=1.0): 1}, delta) == pytest.approx(
            exact, abs=1e-6
        )


@pytest.mark.parametrize("part", [0.01, 0.1, 0.3, 0.5])
@pytest.mark.parametrize("total", [0.2, 1.0, 4.0])
def test_a_vector_is_never_worse_than_one_coordinate_of_its_l1_norm(
    total: float, part: float
) -> None:
    """A change spread over two coordinates is two releases, of epsilons that add up."""
    first, second = (LaplaceEvent(noise_multiplier=1 / (total * s)) for s in (part, 1 - part))
    whole = LaplaceEvent(noise_multiplier=1 / total)
    for delta in np.logspace(-10, -0.5, 20):
        spread = pld_epsilon([(first, 1), (second, 1)], delta, interval=1e-3)
        assert spread <= pld_epsilon({whole: 1}, delta, interval=1e-3) + 1e-9
