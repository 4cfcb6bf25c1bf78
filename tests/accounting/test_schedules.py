"""The shapes of noise over rounds: golden sums and staircases."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_dp.accounting.noise_schedule import (
    SMALLEST_WEIGHT,
    NoiseSchedule,
)
from fl_dp.codec import decode_text, encode_text

SHAPES = ("constant", "seed_rule", "linear", "exponential", "step", "cosine")

shapes = st.sampled_from(SHAPES)
spends = st.sampled_from(("early", "late"))
floors = st.floats(SMALLEST_WEIGHT, 1.0)
rounds_ = st.integers(1, 300)
levels_ = st.integers(1, 40)
custom_weights = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=80).map(tuple)


def squares_of(schedule: NoiseSchedule, rounds: int) -> float:
    """Return what the constant schedule's variance is multiplied by, times the rounds."""
    return math.fsum(weight * weight for weight in schedule.weights_of(rounds))


# Declared shapes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sum_of_squares", "scale"),
    [
        ("constant", 100.0, 6.002291),
        ("seed_rule", 78.7925, 5.327942),
        ("linear", 58.375421, 4.585979),
        ("exponential", 54.185929, 4.418352),
        ("cosine", 59.406250, 4.626293),
        ("step", 62.5, 4.745227),
    ],
)
def test_golden_sums_and_full_participation_scales(
    name: str, sum_of_squares: float, scale: float
) -> None:
    """Closed forms at T = 100 and floor 0.5; scales spend exactly (8, 1e-5) at sampling rate 1."""
    schedule = NoiseSchedule(name=name, levels=None)
    assert squares_of(schedule, 100) == pytest.approx(sum_of_squares, abs=1e-6)
    # mu^2 = sum of (w / scale)^2 must be that of 100 rounds at 6.002291.
    spent = math.fsum(1.0 / sigma**2 for sigma in schedule.multipliers(scale, 100))
    assert spent == pytest.approx(100 / 6.002291**2, rel=1e-6)


def test_the_seed_rule_is_full_spend_then_a_line_to_the_floor() -> None:
    weights = NoiseSchedule(name="seed_rule", levels=None).weights_of(100)
    assert weights[:50] == (1.0,) * 50
    assert weights[50:] == pytest.approx([k / 100 for k in range(99, 49, -1)])
    to_a_tenth = NoiseSchedule(name="seed_rule", levels=None, floor=0.1).weights_of(101)
    assert to_a_tenth[49] == 1.0 > to_a_tenth[50]
    assert to_a_tenth[-1] == pytest.approx(0.1)


def test_the_step_gives_the_odd_round_to_the_full_spend() -> None:
    assert NoiseSchedule(name="step", floor=0.25).weights_of(5) == (0.25, 0.25, 1.0, 1.0, 1.0)


@given(shapes, floors, rounds_, st.none() | levels_)
def test_early_is_late_in_reverse_and_costs_the_same(
    name: str, floor: Any, rounds: Any, levels: Any
) -> None:
    late = NoiseSchedule(name=name, spend="late", floor=floor, levels=levels)
    early = replace(late, spend="early")
    assert early.weights_of(rounds) == late.weights_of(rounds)[::-1]
    assert squares_of(early, rounds) == squares_of(late, rounds)


@given(shapes, spends, floors, rounds_, st.none() | levels_)
def test_weights_are_monotone_between_the_floor_and_exactly_one(
    name: str, spend: Any, floor: Any, rounds: Any, levels: Any
) -> None:
    schedule = NoiseSchedule(name=name, spend=spend, floor=floor, levels=levels)
    weights = schedule.weights_of(rounds)
    assert len(weights) == rounds
    assert max(weights) == 1.0
    assert min(weights) >= floor * (1 - 1e-9)
    assert list(weights) == sorted(weights, reverse=spend == "early")


@given(shapes)
def test_a_single_round_spends_all(name: str) -> None:
    assert NoiseSchedule(name=name).weights_of(1) == (1.0,)


@given(shapes, floors, rounds_, st.floats(0.1, 50.0))
def test_multipliers_are_the_scale_over_the_weights(
    name: str, floor: Any, rounds: Any, scale: Any
) -> None:
    schedule = NoiseSchedule(name=name, floor=floor)
    multipliers = schedule.multipliers(scale, rounds)
    assert min(multipliers) == scale
    assert np.array(multipliers) * schedule.weights_of(rounds) == pytest.approx(scale)


# Levels --------------------------------------------------------------------------------------


@given(shapes, spends, floors, rounds_, levels_)
def test_a_shape_has_at_most_so_many_levels(
    name: str, spend: Any, floor: Any, rounds: Any, levels: Any
) -> None:
    schedule = NoiseSchedule(name=name, spend=spend, floor=floor, levels=levels)
    assert len(set(schedule.multipliers(1.7, rounds))) <= levels


@given(custom_weights, levels_)
def test_each_level_is_the_root_mean_square_of_its_members(weights: Any, levels: Any) -> None:
    """Up to the one factor that makes the largest 1."""
    raw = np.array(
        NoiseSchedule(name="custom", weights=weights, levels=None).weights_of(len(weights))
    )
    schedule = NoiseSchedule(name="custom", weights=weights, levels=levels)
    rounded = np.array(schedule.weights_of(len(weights)))
    assert rounded.max() == 1.0
    assert len(set(rounded)) <= levels
    factor = math.sqrt(float(np.mean(raw[rounded == 1.0] ** 2)))
    assert factor <= 1.0 + 1e-12
    for level in set(rounded):
        members = raw[rounded == level]
        assert factor * level == pytest.approx(math.sqrt(float(np.mean(members**2))))
    assert factor**2 * squares_of(schedule, len(weights)) == pytest.approx(float(raw @ raw))
    # The order of the rounds by spend survives.
    assert np.all(np.diff(rounded[np.argsort(raw)]) >= -1e-12)


def test_a_long_flat_stretch_stays_a_level_of_its_own() -> None:
    seed_rule = NoiseSchedule(name="seed_rule", levels=16)
    weights = seed_rule.weights_of(100)
    assert weights[:50] == (1.0,) * 50
    assert weights[50] < 1.0
    assert len(set(weights)) == 16
    assert squares_of(seed_rule, 100) == pytest.approx(78.7925)


def test_blocks_without_flat_stretches_are_about_equally_long() -> None:
    weights = NoiseSchedule(name="linear", levels=16).weights_of(100)
    assert {weights.count(weight) for weight in weights} == {6, 7}


# Custom weights ------------------------------------------------------------------------------


def test_custom_weights_are_in_any_unit() -> None:
    schedule = NoiseSchedule(name="custom", weights=(2.0, 8.0, 4.0))
    assert schedule.weights_of(3) == (0.25, 1.0, 0.5)
    huge = NoiseSchedule(name="custom", weights=(5e299, 1e300), levels=1)
    assert huge.weights_of(2) == (1.0, 1.0)


# Errors and JSON -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "sawtooth"},
        {"spend": "middle"},
        {"floor": 1.5},
        {"levels": 0},
        {"name": "custom"},
        {"name": "linear", "weights": (1.0,)},
        {"name": "custom", "weights": (1.0,), "spend": "early"},
        {"name": "custom", "weights": (1.0, 0.0)},
        {"name": "custom", "weights": (1.0, math.inf)},
        {"name": "custom", "weights": (1.0, 1e-9)},
    ],
)
def test_a_wrong_schedule_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        NoiseSchedule(**fields)


def test_custom_weights_must_match_the_rounds() -> None:
    with pytest.raises(ValueError, match="has 3 weights and the run 100 rounds: give one weight a"):
        NoiseSchedule(name="custom", weights=(1.0, 0.5, 0.2)).weights_of(100)


def test_rounds_and_scale_must_be_positive() -> None:
    with pytest.raises(ValueError):
        NoiseSchedule().weights_of(0)
    for scale in (0.0, math.nan):
        with pytest.raises(ValueError):
            NoiseSchedule().multipliers(scale, 10)


def test_json_round_trip() -> None:
    schedule = NoiseSchedule(name="custom", weights=(1.0, 0.1), levels=3)
    assert decode_text(NoiseSchedule, encode_text(schedule)) == schedule
