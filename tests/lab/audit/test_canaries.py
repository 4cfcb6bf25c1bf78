"""Canary clients: their directions, the best test, and what a whole run shows of its epsilon."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fl_dp.accounting import PoissonGaussianEvent, PrivacyEvent, epsilon
from fl_dp.accounting.gaussian_formulas import gaussian_epsilon
from fl_dp.accounting.trade_off import epsilon_delta_trade_off, trade_off
from fl_dp.lab.audit.canaries import Canaries, one_shot_mu
from fl_dp.lab.audit.lower_bounds import gaussian_epsilon_of
from fl_dp.lab.audit.verdict import Finding
from fl_dp.lab.audit.whole_run import ObservedRound, finding_of_run, mu_of_epsilon, one_shot_epsilon
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.discrete_gaussian import DiscreteGaussian

SIZE = 6000
DELTA = 1e-3


def test_directions_are_orthonormal_and_coordinates_along_them_exact() -> None:
    canaries = Canaries(count=50, size=201, seed=3)
    rows = np.stack([canaries.direction(each) for each in range(50)])
    np.testing.assert_allclose(rows @ rows.T, np.eye(50), atol=1e-13)
    vector = np.random.default_rng(0).normal(size=201)
    np.testing.assert_allclose(canaries.along(vector)[:50], rows @ vector, atol=1e-12)
    # The rest of the basis: nothing of a vector gets lost.
    assert np.linalg.norm(canaries.along(vector)) == pytest.approx(np.linalg.norm(vector))


def test_coins_are_fair_and_the_same_wherever_they_are_flipped() -> None:
    one, again = (Canaries(count=4000, size=8000, seed=1) for _ in range(2))
    assert (one.included == again.included).all()
    assert abs(one.included.mean() - 0.5) < 4.9 * 0.5 / math.sqrt(4000)  # wrong once in a million
    assert (one.included != Canaries(count=4000, size=8000, seed=2).included).any()


@pytest.mark.parametrize(("count", "size"), [(7, 100), (51, 100), (0, 10)])
def test_numbers_that_can_show_nothing_are_refused(count: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"canaries|count"):
        Canaries(count=count, size=size, seed=0)


def played(
    *, z: float, q: float, rounds: int, true_z: float | None = None, twice: bool = False
) -> tuple[Canaries, list[ObservedRound]]:
    """Rounds of 1,000 canaries under the noise of the mechanism, in their own directions."""
    canaries = Canaries(count=1000, size=SIZE, seed=0)
    law = DiscreteGaussian(2.0**10 * (true_z or z))
    rng, coins = SecureRandom(), np.random.default_rng(5)
    seen = []
    for _ in range(rounds):
        along = law.sample(SIZE, rng) / 2.0**10
        drawn = coins.random(1000) < q
        along[:1000] += (1.0 + twice) * (drawn & canaries.included)
        seen.append(ObservedRound(along=along, noise_multiplier=z))
    return canaries, seen


def audited(
    seen: tuple[Canaries, list[ObservedRound]], *, z: float, q: float, alpha: float
) -> Finding:
    canaries, rounds = seen
    history: dict[PrivacyEvent, int] = {
        PoissonGaussianEvent(noise_multiplier=z, sampling_rate=q): len(rounds)
    }
    return finding_of_run(
        canaries,
        rounds,
        sampling_rate=q,
        claim=epsilon(history, DELTA).best,
        delta=DELTA,
        alpha=alpha,
        curve=trade_off(history),
    )


def test_a_hundred_rounds_and_a_thousand_canaries_show_more_than_half_of_the_claim() -> None:
    # Claimed 5.76. Over four trials the bound was 0.73 to 0.82 of it, and 0.57 to 0.64 at 1e-6.
    seen = played(z=2.0, q=0.3, rounds=100)
    found = audited(seen, z=2.0, q=0.3, alpha=0.05)
    assert found.share is not None
    assert found.share >= 0.5
    assert audited(seen, z=2.0, q=0.3, alpha=1e-6).stands


@pytest.mark.parametrize(
    ("true_z", "twice"), [(1.0, False), (None, True)], ids=["half the noise", "twice the norm"]
)
def test_a_run_that_leaks_more_than_it_claims_is_caught_at_one_in_a_million(
    true_z: float | None, twice: bool
) -> None:
    seen = played(z=2.0, q=0.3, rounds=100, true_z=true_z, twice=twice)
    found = audited(seen, z=2.0, q=0.3, alpha=1e-6)
    assert not found.stands
    assert found.bound is not None
    assert found.claim is not None
    assert found.bound > found.claim


def test_canaries_that_are_drawn_in_every_round_are_caught_where_a_sample_is_claimed() -> None:
    seen = played(z=4.0, q=1.0, rounds=50)
    assert not audited(seen, z=4.0, q=0.2, alpha=1e-6).stands


def test_a_leak_is_seen_where_the_threshold_of_the_claimed_law_is_blind() -> None:
    # So much less noise that scores at that threshold tell nothing: the split halves do.
    seen = played(z=2.0, q=0.75, rounds=4, true_z=0.5)
    assert not audited(seen, z=2.0, q=0.75, alpha=1e-6).stands


def test_a_gaussian_bound_that_contradicts_the_claimed_curve_accuses_nobody() -> None:
    # The curve allows all that was seen, and a claim between the two bounds is no evidence.
    canaries, rounds = played(z=2.0, q=0.3, rounds=100)
    known: dict[str, Any] = dict(sampling_rate=0.3, delta=DELTA, alpha=0.05)
    bounds = finding_of_run(canaries, rounds, claim=100.0, **known).bounds
    # Over 40 trials the Gaussian bound was 1.26 to 2.0 times Clopper and Pearson's.
    known["claim"] = (bounds["gaussian"] + bounds["clopper_pearson"]) / 2.0
    lenient = finding_of_run(canaries, rounds, curve=epsilon_delta_trade_off(50.0, 0.0), **known)
    assert "gaussian" not in lenient.bounds
    assert lenient.stands
    strict = finding_of_run(canaries, rounds, curve=epsilon_delta_trade_off(0.1, 0.0), **known)
    assert strict.caught


def test_mu_of_epsilon_inverts_the_closed_form() -> None:
    for mu in (0.1, 0.7191, 3.0):
        assert mu_of_epsilon(gaussian_epsilon(1.0 / mu, 1e-5), 1e-5) == pytest.approx(mu, rel=1e-6)
    assert mu_of_epsilon(0.0, 1e-5) == 0.0


# --- the one-shot estimate (Andrew et al. 2023) -------------------------------------------------


@pytest.mark.parametrize(("mu", "expected"), [(0.7191, 3.0), (0.7045, 2.93)])
def test_epsilon_of_the_one_shot_estimate_matches_the_golden_numbers(
    mu: float, expected: float
) -> None:
    assert gaussian_epsilon_of(mu, delta=1e-5) == pytest.approx(expected, abs=0.006)


def test_the_one_shot_estimate_finds_the_noise_of_one_release() -> None:
    # d = 20,000, k = 300, sigma 1.390593 is 0.7191-GDP; the canaries' own length makes 0.716 of it.
    # Its deviation is 0.058: five of them.
    size, sigma = 20_000, 1.390593
    canaries = Canaries(count=600, size=size, seed=11)
    rng = np.random.default_rng(0)
    release = sigma * rng.normal(size=size)
    for each in np.flatnonzero(canaries.included):
        release += canaries.direction(int(each))
    cosines = canaries.along(release)[:600][canaries.included] / np.linalg.norm(release)
    assert one_shot_mu(cosines, size) == pytest.approx(0.716, abs=0.29)
    estimated = one_shot_epsilon(canaries, release, delta=1e-5)
    assert estimated == gaussian_epsilon_of(one_shot_mu(cosines, size), delta=1e-5)
