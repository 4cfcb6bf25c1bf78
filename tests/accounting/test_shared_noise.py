"""Shared noise: the certain shares of it, and what they are charged as."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fl_dp.accounting import SharedNoise
from fl_dp.accounting.shared_noise import shared_noise_multiplier, shared_noise_slack


def noise(n: int, least: int, c: int, members: int, t: int, **more: bool) -> SharedNoise:
    return SharedNoise(cohort=n, least=least, colluding=c, committee=members, threshold=t, **more)


# The least that a lying server can open, published in the specification's table of federations.
@pytest.mark.parametrize(
    ("federation", "guaranteed"),
    [
        ((5, 5, 1, 5, 4), 5),
        ((10, 9, 1, 10, 8), 9),
        ((20, 18, 2, 20, 16), 18),
        ((100, 90, 5, 40, 32), 88),
        ((100, 70, 5, 40, 32), 62),
        ((1000, 900, 10, 60, 48), 869),
    ],
)
def test_the_guaranteed_size_of_a_sum_is_golden(
    federation: tuple[int, int, int, int, int], guaranteed: int
) -> None:
    assert noise(*federation).guaranteed == guaranteed


def test_a_cross_check_makes_the_guaranteed_size_the_least() -> None:
    checked = noise(100, 70, 5, 40, 32, cross_check=True)
    assert checked.guaranteed == 70
    assert checked.honest_shares(server_lies=True) == 65


def test_a_rule_that_floats_get_wrong_is_kept() -> None:
    assert not 1 <= (1 - 5 / 6) * 6  # in floats a sum of one client would have passed
    with pytest.raises(ValueError, match=r"raise secure_sum\.least"):
        noise(9, 3, 1, 7, 6)


@pytest.mark.parametrize(("scale", "golden"), [(2.0, 0.464758), (17.0, 4.078235)])
def test_the_multiplier_of_nine_shares_is_golden(scale: float, golden: float) -> None:
    # sqrt(9 scale^2 - what the channel to a continuous Gaussian costs) / 12.5
    assert shared_noise_multiplier(scale, 12.5, 9) == pytest.approx(golden, rel=1e-6)


def test_shares_too_small_to_be_a_gaussian_are_refused() -> None:
    with pytest.raises(ValueError, match="too little noise to account"):
        shared_noise_multiplier(0.4, 1.0, 9)


def test_the_slack_is_golden() -> None:
    # 1000 sums of a million coordinates, 88 shares of two steps: all of it float64's worst case.
    slack = shared_noise_slack(1000, 10**6, 88, noise_scale=2.0)
    assert slack == pytest.approx(3.2e-4, rel=0.03)
    exact = shared_noise_slack(1, 1, 88, noise_scale=2.0) - 88 * 2.0**-48
    assert exact == pytest.approx(7e-17, rel=0.1)


def theta_sum_error(scale: float, shares: int, centres: np.ndarray) -> float:
    """Worst log-ratio of a sum of discrete Gaussians to one of the summed centre, exactly."""
    reach = 60
    support = np.arange(-reach, reach + 1)
    law = np.ones(1)
    for centre in centres[:shares]:
        weights = np.exp(-((support - centre) ** 2) / (2 * scale**2))
        law = np.convolve(law, weights / weights.sum())
    place = np.arange(law.size) - shares * reach
    whole = np.exp(-((place - centres[:shares].sum()) ** 2) / (2 * shares * scale**2))
    whole /= whole.sum()
    near = np.abs(place - centres[:shares].sum()) < 5 * math.sqrt(shares) * scale
    return float(np.abs(np.log(law[near] / whole[near])).max())


@pytest.mark.parametrize(("scale", "shares"), [*itertools.product((0.5, 0.7, 0.9), (2, 3, 10))])
def test_shares_add_up_to_one_discrete_gaussian_but_for_the_slack(
    scale: float, shares: int
) -> None:
    # Lemma 1 (Peikert 2010; Kairouz et al. 2021 for integer centres), by exact convolution.
    rng = np.random.default_rng(7)
    tau = 10.0 * sum(math.exp(-2 * math.pi**2 * scale**2 * k / (k + 1)) for k in range(1, shares))
    worst = max(theta_sum_error(scale, shares, rng.uniform(-0.5, 0.5, shares)) for _ in range(20))
    assert worst <= tau <= shared_noise_slack(1, 1, shares, noise_scale=scale)
    assert worst > 1e-3 * tau or tau < 1e-10  # the bound is not idle where it can be seen


@pytest.mark.parametrize("centre", [0.0, 0.3, 0.5])
def test_a_discrete_gaussian_is_post_processed_from_a_continuous_one(centre: float) -> None:
    # Lemma 2, by quadrature: x of variance S^2 - r^2 around the centre, then N_Z(x, r^2).
    whole, channel = 1.1, 0.6
    x = np.linspace(centre - 12.0, centre + 12.0, 200_001)
    density = np.exp(-((x - centre) ** 2) / (2 * (whole**2 - channel**2)))
    density /= density.sum()
    support = np.arange(-30, 31)
    table = np.exp(-((support[None, :] - x[::50, None]) ** 2) / (2 * channel**2))
    law = (density[::50, None] * 50 * table / table.sum(axis=1, keepdims=True)).sum(axis=0)
    ideal = np.exp(-((support - centre) ** 2) / (2 * whole**2))
    ideal /= ideal.sum()

    def theta(variance: float) -> float:
        return 2.0 * sum(math.exp(-2 * math.pi**2 * variance * j**2) for j in range(1, 8))

    eta = -math.log1p(-theta(channel**2)) + math.log1p(theta(whole**2))
    near = np.abs(support - centre) < 5
    worst = float(np.abs(np.log(law[near] / ideal[near])).max())
    assert 1e-3 * eta < worst <= eta * (1 + 1e-6)
