"""Schedules calibrated as a whole: T = 100 rounds, floor .5, target (8, 1e-5).

Without sampling the scale is a closed form, sigma(8, 1e-5) sqrt(sum of squared weights) (Balle and
Wang 2018); at rate .1 it was recomputed with dp-accounting 0.6 by PLD, to four digits.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from fl_dp.accounting import (
    NeighboringRelation,
    NoiseSchedule,
    PrivacyBudget,
    calibrate_noise_multiplier,
    tight_epsilon,
)
from fl_dp.accounting.calibration import schedule_history
from fl_dp.accounting.gaussian_formulas import (
    gaussian_epsilon,
    gaussian_noise_multiplier,
    naive_split,
)
from fl_dp.accounting.renyi import renyi_epsilon

TARGET, DELTA, ROUNDS = 8.0, 1e-5, 100
SCALES = [
    ("constant", None, 6.002291, 0.99373, 0.9359),
    ("seed_rule", None, 5.327942, 0.91670, 0.8615),
    ("linear", None, 4.585979, 0.80471, 0.7543),
    ("linear", "early", 4.585979, 0.80471, 0.7543),
    ("exponential", None, 4.418352, 0.78220, 0.7324),
    ("cosine", None, 4.626293, 0.82581, 0.7737),
    ("step", None, 4.745227, 0.87386, 0.8191),
]


def nightly(*row: Any) -> Any:
    return pytest.param(*row, marks=pytest.mark.nightly)


def spent(schedule: NoiseSchedule, scale: float, rate: float) -> float:
    history = schedule_history(schedule, scale, sampling_rate=rate, rounds=ROUNDS)
    return tight_epsilon(history, DELTA)


@pytest.mark.parametrize(("name", "spend", "scale", "_renyi", "_sampled"), SCALES)
def test_scales_without_sampling(
    name: str, spend: str | None, scale: float, _renyi: float, _sampled: float
) -> None:
    schedule = NoiseSchedule(name=name, spend=spend, levels=None)
    # Gaussian composition (Dong, Roth and Su 2022, corollary 3.3): the squares add up.
    exact = gaussian_noise_multiplier(TARGET, DELTA) * math.hypot(*schedule.weights_of(ROUNDS))
    assert exact == pytest.approx(scale, rel=1e-6)
    ours = calibrate_noise_multiplier(
        TARGET, DELTA, sampling_rate=1.0, rounds=ROUNDS, schedule=schedule
    )
    assert ours == pytest.approx(scale, rel=1e-5)
    assert spent(schedule, ours, 1.0) <= TARGET < spent(schedule, ours * (1 - 1e-3), 1.0)


@pytest.mark.parametrize(
    ("name", "spend", "_scale", "renyi", "sampled"),
    # A hundred different distributions take seconds.
    [row if row[0] in ("constant", "linear") else nightly(*row) for row in SCALES],
)
def test_scales_at_a_tenth_of_the_clients(
    name: str, spend: str | None, _scale: float, renyi: float, sampled: float
) -> None:
    schedule = NoiseSchedule(name=name, spend=spend, levels=None)
    # Half of the last quoted digit, and the interval of a hundred different events.
    assert spent(schedule, sampled * (1 + 2e-4), 0.1) <= TARGET * (1 + 1e-3)
    assert spent(schedule, sampled * (1 - 1e-3), 0.1) > TARGET
    by_renyi = schedule_history(schedule, renyi, sampling_rate=0.1, rounds=ROUNDS)
    assert renyi_epsilon(by_renyi, DELTA, NeighboringRelation.ZERO_OUT) == pytest.approx(
        TARGET, rel=1e-3
    )


def test_a_sampled_schedule_is_calibrated_to_the_safe_end() -> None:
    schedule = NoiseSchedule(name="seed_rule", levels=10)
    ours = calibrate_noise_multiplier(
        TARGET, DELTA, sampling_rate=0.1, rounds=ROUNDS, schedule=schedule
    )
    assert spent(schedule, ours, 0.1) <= TARGET < spent(schedule, ours * (1 - 1e-3), 0.1)


def test_sixteen_levels_cost_little_noise() -> None:
    """The rounding keeps the sum of squares; only the largest weight's block is rescaled."""
    for name in ("seed_rule", "linear", "exponential", "cosine"):
        fine, coarse = (
            calibrate_noise_multiplier(
                TARGET,
                DELTA,
                sampling_rate=1.0,
                rounds=ROUNDS,
                schedule=NoiseSchedule(name=name, levels=levels),
            )
            for levels in (None, 16)
        )
        assert 1.0 <= coarse / fine <= 1.03 or coarse == pytest.approx(fine, rel=1e-5)


@pytest.mark.nightly
def test_two_hundred_different_rounds_are_accounted() -> None:
    schedule = NoiseSchedule(name="linear", levels=None)
    history = schedule_history(schedule, 0.9, sampling_rate=0.1, rounds=200)
    assert len(history) == 200
    total = tight_epsilon(history, DELTA)
    assert total < renyi_epsilon(history, DELTA, NeighboringRelation.ZERO_OUT)
    # Between all rounds at the least and all at the most noise.
    ends = [
        tight_epsilon(schedule_history(NoiseSchedule(), z, sampling_rate=0.1, rounds=200), DELTA)
        for z in (1.8, 0.9)
    ]
    assert ends[0] < total < ends[1]


def test_splitting_epsilon_over_the_rounds_wastes_twelve_times_the_noise() -> None:
    """Round t gets epsilon w_t / sum(w) of 8 and delta / T, and the classic sigma for them.

    Each round's epsilon is below 1, where that formula holds; the promise is kept, at 0.50.
    """
    weights = NoiseSchedule(name="seed_rule", levels=None).weights_of(ROUNDS)
    shares = [TARGET * weight / math.fsum(weights) for weight in weights]
    classic = [math.sqrt(2 * math.log(1.25 * ROUNDS / DELTA)) / share for share in shares]
    analytic = [gaussian_noise_multiplier(share, DELTA / ROUNDS) for share in shares]

    def truth(multipliers: list[float]) -> float:
        return gaussian_epsilon(math.fsum(z**-2 for z in multipliers) ** -0.5, DELTA)

    split = naive_split(
        PrivacyBudget(epsilon=TARGET, delta=DELTA),
        NoiseSchedule(name="seed_rule", levels=None),
        ROUNDS,
    )
    assert split == pytest.approx(classic, rel=1e-12)
    assert (min(classic), max(classic)) == pytest.approx((62.3, 124.7), abs=0.06)
    assert truth(classic) == pytest.approx(0.50, abs=2e-3)
    assert truth(analytic) == pytest.approx(0.72, abs=2e-3)
    assert min(classic) / 5.327942 == pytest.approx(11.7, abs=0.01)
