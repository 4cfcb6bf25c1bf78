"""Adaptive clipping (Andrew et al. 2021): the direction, the fixed point, and the joint price."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_dp.mechanisms import AdaptiveClipping, GaussianBundle, GaussianMechanism, SecureRandom
from fl_dp.mechanisms.adaptive_clipping import default_bit_noise_std, update_noise_multiplier


def sum_of_bits(norms: np.ndarray, clipping_norm: float) -> float:
    """Add up what units of these norms tell of themselves."""
    bundle = GaussianBundle(
        noise_multiplier=1.0,
        clipping_norms=(clipping_norm,),
        scalar_noise_std=float(norms.size),
        unclipped_bit=True,
    )
    return sum(bundle.scalar_values(float(one), {})[0] for one in norms)


def follow(
    rule: AdaptiveClipping, norms: np.ndarray, rounds: int, bit_noise_std: float | None = None
) -> float:
    """Return the clipping norm after some rounds over the same clients."""
    rng = SecureRandom()
    norm = rule.norm
    for _ in range(rounds):
        total = sum_of_bits(norms, norm)
        if bit_noise_std is not None:
            noise = GaussianMechanism(noise_multiplier=2 * bit_noise_std, clipping_norm=0.5)
            steps = np.array([np.trunc(total / noise.grid)])
            total = float(noise.release(steps, noise.noise(1, rng))[0])
        norm = rule.next_norm(norm, noisy_bit_sum=total, denominator=norms.size)
    return norm


LOGNORMAL = np.exp(0.5 * np.random.default_rng(0).standard_normal(2000))


@pytest.mark.parametrize("norm", [0.5, 2.0])
def test_without_noise_the_norm_goes_to_the_median(norm: float) -> None:
    """Lognormal(0, 0.5) norms; the reference reaches 1.007 and 1.003 after 60 rounds."""
    norm = follow(AdaptiveClipping(norm=norm), LOGNORMAL, 60)
    assert norm == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("quantile", [0.5, 0.7])
@pytest.mark.parametrize("norm", [0.1, 10.0])
def test_with_noise_the_norm_goes_to_its_quantile(quantile: float, norm: float) -> None:
    """Lognormal(0, 1) norms of 1,000 clients; noise of 50 on the sum of bits."""
    norms = np.exp(np.random.default_rng(1).standard_normal(1000))
    rule = AdaptiveClipping(norm=norm, target_quantile=quantile)
    norm = follow(rule, norms, 150, bit_noise_std=default_bit_noise_std(norms.size))
    # In equilibrium the logarithm wanders by less than 0.02; 0.15 is over seven deviations.
    assert math.log(norm / float(np.quantile(norms, quantile))) == pytest.approx(0.0, abs=0.15)


def test_the_wrong_direction_would_be_noticed() -> None:
    """The common slip, counting the clipped ones, runs away: the test above has power."""
    rule, norm = AdaptiveClipping(norm=0.5), 0.5
    for _ in range(60):
        total = -sum_of_bits(LOGNORMAL, norm)
        norm = rule.next_norm(norm, noisy_bit_sum=total, denominator=LOGNORMAL.size)
    assert norm < 0.01


@pytest.mark.parametrize(
    ("noise_multiplier", "denominator", "expected"),
    [(1, 100, 1.00503782), (1, 1000, 1.00005000), (0.5, 50, 0.50251891), (2, 100, 2.04124145)],
)
def test_the_updates_noise_is_the_closed_form(
    noise_multiplier: float, denominator: float, expected: float
) -> None:
    bit_noise_std = default_bit_noise_std(denominator)
    made = update_noise_multiplier(noise_multiplier, bit_noise_std)
    assert made == pytest.approx(expected, abs=1e-8)
    # One Gaussian of two blocks: the squared sensitivities over the noise add up.
    assert made**-2 + (0.5 / bit_noise_std) ** 2 == pytest.approx(noise_multiplier**-2)


def test_bits_that_cost_more_than_the_round_are_refused() -> None:
    with pytest.raises(ValueError, match="bit_noise_std must be above"):
        update_noise_multiplier(10.0, 5.0)


@pytest.mark.parametrize(
    "field", [{"norm": 0.0}, {"target_quantile": 1.0}, {"learning_rate": math.nan}]
)
def test_a_rule_out_of_range_is_refused(field: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        AdaptiveClipping(**field)


def test_one_wild_release_moves_the_norm_by_at_most_its_learning_rate() -> None:
    rule = AdaptiveClipping(learning_rate=0.2)
    for wild in (-1e9, 1e9):
        moved = math.log(rule.next_norm(1.0, noisy_bit_sum=wild, denominator=10.0))
        assert abs(moved) <= 0.2
