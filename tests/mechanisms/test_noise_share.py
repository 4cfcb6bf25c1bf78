"""Shares of noise on clipped sums: their law, and how far one unit moves them.

False alarms: below 1e-6 a test.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from laws import ALARM
from scipy import stats

from fl_dp.mechanisms import NoiseShare, SecureRandom, Segment
from fl_dp.mechanisms.rotation import rotated_back

NODES = 10


def share_of(*, bits: int = 16, noise_scale: float = 30.0, size: int = 50_000) -> NoiseShare:
    # As large as words of so many bits hold, half for noise.
    cap = (2 ** (bits - 1) - 1 - 8 * math.sqrt(NODES) * noise_scale) / NODES
    updates = Segment("updates", size=size, scale=cap / 2.0, cap=cap, clipping_norm=2.0)
    return NoiseShare(segments=(updates,), noise_scale=noise_scale)


def summed(share: NoiseShare, values: np.ndarray) -> np.ndarray:
    rng = SecureRandom()
    steps = sum(share.encode([values], rng) for _ in range(NODES))
    (found,) = share.decode(np.asarray(steps))
    return found


@pytest.mark.parametrize("rotation", [False, True])
@pytest.mark.parametrize("noise_scale", [2.0, 30.0])
def test_ten_shares_are_one_gaussian_around_the_exact_sum(
    noise_scale: float, rotation: bool
) -> None:
    share = replace(share_of(noise_scale=noise_scale), rotated=rotation)
    values = np.linspace(-1.99, 1.99, share.size) / 7.0
    std = math.sqrt(NODES) * noise_scale / share.segments[0].scale
    # A discrete law in a continuous test: uniform within a step, which adds 1/12 to the variance.
    spread = np.random.default_rng(0).uniform(-0.5, 0.5, share.size) / share.segments[0].scale
    apart = (summed(share, values) + spread - NODES * values) / math.hypot(
        std, 1.0 / share.segments[0].scale / math.sqrt(12.0)
    )
    assert stats.kstest(apart, "norm").pvalue > ALARM
    for wrong in (0.9, 1.1):  # a tenth is seen
        assert stats.kstest(wrong * apart, "norm").pvalue < ALARM


def test_eight_bits_have_no_bias_of_rounding() -> None:
    share = share_of(bits=8, noise_scale=3.0, size=400_000)
    step = 1.0 / share.segments[0].scale  # a step is a third of the clipping norm or so
    values = np.full(share.size, 0.3 * step)  # nearest rounding would give 0
    error = summed(share, values).mean() - NODES * values[0]
    assert abs(error) < 6.0 * math.sqrt(NODES) * 3.0 * step / math.sqrt(share.size)


def test_cutting_moves_no_two_sums_further_apart_than_their_units_do() -> None:
    share, rng = share_of(size=40), np.random.default_rng(1)
    segment = share.segments[0]
    for large in (0.1, 1.0, 1e3, 1e300):
        one = rng.normal(size=segment.size) * large
        unit = rng.normal(size=segment.size)
        unit *= segment.clipping_norm / np.linalg.norm(unit)
        before, after = (
            np.clip(each * segment.scale, -segment.cap, segment.cap) for each in (one, one + unit)
        )
        assert np.linalg.norm(after - before) <= share.sensitivity


def test_the_sensitivity_covers_what_rounding_adds_to_many_units() -> None:
    scale, norm, units = 123.456789, 1.0 / 3.0, 2**20
    segment = Segment("updates", size=1, scale=scale, cap=1e12, clipping_norm=norm)
    share = NoiseShare(segments=(segment,), noise_scale=2.0)
    others = np.float64(units * norm)
    moved = np.float64(scale) * (others + norm) - np.float64(scale) * others
    assert moved <= share.sensitivity < scale * norm * (1.0 + 1e-8)


def test_an_entry_beyond_the_cap_is_cut_to_it() -> None:
    share = share_of(size=3)
    segment = share.segments[0]
    steps = share.encode([[math.inf, -1e300, 0.0]], SecureRandom())
    reach = 13.0 * share.noise_scale
    assert np.abs(steps - np.array([segment.cap, -segment.cap, 0.0])).max() < reach


def test_every_allowed_cap_is_cut_to_and_not_failed_at() -> None:
    """A node whose sum fails answers with zero: one unit would move it by all that others made."""
    largest = math.nextafter(2.0**52, 0.0)
    segment = Segment("updates", size=1, scale=1.0, cap=largest, clipping_norm=1.0)
    share = NoiseShare(segments=(segment,), noise_scale=2.0)
    assert abs(int(share.encode([[math.inf]], SecureRandom())[0]) - largest) < 13.0 * 2.0
    with pytest.raises(ValueError, match="cap must be below"):
        replace(segment, cap=2.0**52)


def test_a_value_that_is_no_number_is_never_sent() -> None:
    with pytest.raises(ValueError, match="centres must be finite"):
        share_of(size=2).encode([[0.0, math.nan]], SecureRandom())


def neighbours_apart(share: NoiseShare, ones: list[np.ndarray], unit: list[np.ndarray]) -> float:
    moved = [one + each for one, each in zip(ones, unit, strict=True)]
    return float(np.linalg.norm(share.placed(moved) - share.placed(ones)))


@pytest.mark.parametrize("made", ["at random", "one entry", "for the rotation", "flat"])
@pytest.mark.parametrize("large", [0.0, 1.0, 1e3, 1e12])
def test_no_unit_moves_a_rotated_sum_further_than_is_charged(made: str, large: float) -> None:
    """Whatever others add, be it cut or not; a unit as long as it may be in all sums at once."""
    random, size = np.random.default_rng(2), 650
    share = NoiseShare(
        segments=(
            Segment("updates", size, 0.6, 7.6, 1.0),
            Segment("count", 1, 0.03, 7.6, 1.0),
        ),
        noise_scale=2.0,
        rotated=True,
    )
    unit = {
        "at random": random.normal(size=size),
        "one entry": np.eye(size)[5],
        "for the rotation": rotated_back(np.eye(size + 1)[7])[:size],
        "flat": np.ones(size),
    }[made]
    unit = unit / np.linalg.norm(unit)
    for ones in (random.normal(size=size) * large, unit * large, -unit * large):
        found = neighbours_apart(share, [ones, np.zeros(1)], [unit, np.ones(1)])
        assert found <= share.sensitivity
    if large == 0.0 and made != "for the rotation":  # nothing is cut: all of it is there
        assert found > share.sensitivity * (1.0 - 1e-6)


def test_a_rotated_sum_is_read_as_it_was() -> None:
    segments = (Segment("updates", 650, 1e6, 1e9, 1.0), Segment("count", 1, 1e3, 1e9, 1.0))
    share = NoiseShare(segments=segments, noise_scale=2.0, rotated=True)
    values = np.random.default_rng(3).normal(size=650)
    updates, count = share.decode(share.encode([values, [7.0]], SecureRandom()))
    assert updates == pytest.approx(values, abs=13 * 2e-6)
    assert count == pytest.approx([7.0], abs=13 * 2e-3)


@pytest.mark.parametrize("huge", [math.inf, -math.inf, 1e308])
def test_a_rotated_sum_is_cut_and_not_failed_at(huge: float) -> None:
    share = replace(share_of(size=100), rotated=True)
    values = np.zeros(100)
    values[3] = huge
    with np.errstate(over="ignore"):
        steps = share.encode([values], SecureRandom())
    assert np.abs(steps).max() < share.segments[0].cap + 13.0 * share.noise_scale
    with pytest.raises(ValueError, match="centres must be finite"):
        share.encode([np.full(100, math.nan)], SecureRandom())


@pytest.mark.parametrize("values", [[[1.0]], [[1.0, 2.0], [3.0]], []])
def test_values_of_another_shape_are_refused(values: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"coordinates|argument"):
        share_of(size=2).encode(values, SecureRandom())


def test_segments_are_encoded_and_read_one_by_one() -> None:
    share = NoiseShare(
        segments=(
            Segment("updates", size=3, scale=1e6, cap=1e9, clipping_norm=1.0),
            Segment("count", size=1, scale=1e3, cap=1e9, clipping_norm=1.0),
        ),
        noise_scale=2.0,
    )
    updates, count = share.decode(share.encode([[1.0, -2.0, 3.0], [7.0]], SecureRandom()))
    assert updates == pytest.approx([1.0, -2.0, 3.0], abs=13 * 2e-6)
    assert count == pytest.approx([7.0], abs=13 * 2e-3)
    assert share.sensitivity == pytest.approx(math.hypot(1e6, 1e3))


def test_a_sum_wraps_around_only_by_noise_beyond_eight_deviations() -> None:
    share = share_of(bits=16)
    largest = NODES * share.segments[0].cap + 8.0 * math.sqrt(NODES) * share.noise_scale
    assert share.largest_sum(NODES) == pytest.approx(largest) == pytest.approx(2**15 - 1)
    assert share.fits(NODES, 17) and not share.fits(NODES + 1, 16)


@pytest.mark.parametrize("noise_scale", [1.99, math.nan])
def test_noise_of_less_than_two_steps_is_refused(noise_scale: float) -> None:
    with pytest.raises(ValueError, match="noise_scale must be at least 2"):
        NoiseShare(segments=share_of().segments, noise_scale=noise_scale)


@pytest.mark.parametrize("field", ["scale", "cap", "clipping_norm"])
@pytest.mark.parametrize("value", [0.0, math.nan])
def test_a_segment_without_scale_cap_or_bound_is_refused(field: str, value: float) -> None:
    numbers = {"scale": 1.0, "cap": 1.0, "clipping_norm": 1.0} | {field: value}
    with pytest.raises(ValueError, match=field):
        Segment("updates", size=1, **numbers)
