"""Noise with memory in shares: its law, its charge, and what each rule is there for."""

from __future__ import annotations

import itertools
import math
import pickle
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from remembering_nodes import (
    Noting,
    Opened,
    RememberingNode,
    covariance_of_sums,
    distance_squared,
    share_of,
)

from fl_dp.accounting import optimal_coefficients
from fl_dp.accounting.shared_noise import shared_noise_multiplier, shared_noise_slack
from fl_dp.mechanisms import SecureRandom, Segment
from fl_dp.mechanisms.banded_share import BandedShare, CarriedNoise
from fl_dp.mechanisms.banded_stream import column_norm, inverse_norms, total_weight

COEFFICIENTS = (4096, 2867, 2048)  # 1, .7, .5
NORM = column_norm(COEFFICIENTS) ** 2


# 1. The law of opened sums.


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, list[dict[int, dict[int, float]]], Opened]:
    """Sums of five nodes with a late share, a gap, a failed index and a crash; noise alone."""
    size, rng = 150_000, np.random.default_rng(1)
    coefficients = optimal_coefficients(100, 4)
    nodes = [RememberingNode(share_of(coefficients, size=size)) for _ in range(5)]
    opened: dict[int, Any] = {}
    noise = []
    for index in range(11):
        values, got = rng.integers(-9, 10, 5), {}
        for each in set(range(5)) - ({2} if index == 4 else set()):  # node 2 is not asked at 4
            crashes = (index, each) == (8, 0)
            sent = nodes[each].answer(index, float(values[each]), crashes=crashes)
            if not crashes:
                got[each] = sent - values[each]
        if index == 3:
            del got[1]  # late: drawn and sent, never looked at
        if index != 6:  # failed: drawn, never opened
            opened[index] = frozenset(got)
            noise.append(sum(got.values()))
        for each in {3: (1,), 6: (0, 1)}.get(index, ()):  # who is told
            nodes[each].memory.forget([index])
    return np.array(noise) / 40.0, [node.log for node in nodes], opened


def worst_deviation(noise: np.ndarray, designed: np.ndarray) -> float:
    """The largest deviation of an empirical covariance, in its standard errors."""
    found = noise @ noise.T / noise.shape[1]
    diagonal = np.diag(designed)
    error = np.sqrt((np.outer(diagonal, diagonal) + designed**2) / noise.shape[1])
    return float((np.abs(found - designed) / error).max())


@pytest.mark.slow
def test_opened_sums_have_the_covariance_of_what_nodes_remember(drawn: Any) -> None:
    noise, logs, opened = drawn
    # 55 numbers beyond 6.5 errors: once in 1e8 runs.
    assert worst_deviation(noise, covariance_of_sums(logs, opened)) < 6.5


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["c_1 by 4 %", "independent", "nobody forgets", "scale by 10 %"])
def test_another_covariance_is_told_apart(drawn: Any, wrong: str) -> None:
    noise, logs, opened = drawn
    coefficients = optimal_coefficients(100, 4)

    def changed(index: int, row: dict[int, float], log: Any) -> dict[int, float]:
        match wrong:
            case "c_1 by 4 %":
                return {s: w * (1.04 if index - s == 1 else 1.0) for s, w in row.items()}
            case "independent":
                return {}
            case "nobody forgets":
                return {s: coefficients[index - s] / 4096 for s in log if 0 < index - s < 4}
        return row

    others = [{t: changed(t, row, log) for t, row in log.items()} for log in logs]
    scale = 1.21 if wrong == "scale by 10 %" else 1.0
    assert worst_deviation(noise, scale * covariance_of_sums(others, opened)) > 6.5


# 2. The charge, whoever is absent, late or told lies.


def logs_of(
    drew: dict[int, Any],
    count: int,
    told: dict[int, Any] | None = None,
    memory: type[Noting] = Noting,
    coefficients: tuple[int, ...] = COEFFICIENTS,
) -> list[dict[int, dict[int, float]]]:
    """Rows of C of each node: who draws at each index, and who then forgets it."""
    nodes = [RememberingNode(share_of(coefficients), memory) for _ in range(count)]
    for index in sorted(drew):
        for each in drew[index]:
            nodes[each].answer(index)
        for each in (told or {}).get(index, ()):
            nodes[each].memory.forget([index])
    return [node.log for node in nodes]


def charge_used(logs: Any, opened: Opened, *, honest: int, turns: int, visits: int) -> float:
    """The largest squared distance of any position, over what is charged for it."""
    covariance = covariance_of_sums(logs, opened)
    last = max(opened, default=0) + 1
    used = (
        distance_squared(covariance, opened, range(position, last, turns))
        for position in range(turns)
    )
    return max(used) / (visits * NORM / honest)


def test_no_pattern_of_absent_nodes_exceeds_the_charge() -> None:
    options = [frozenset(each) for each in ((0, 1), (0, 2), (1, 2), (0, 1, 2), ())]
    logs = logs_of(dict.fromkeys(range(6), range(3)), 3)
    worst = 0.0
    for pattern in itertools.product(options, repeat=6):
        opened = {index: who for index, who in enumerate(pattern) if who}
        worst = max(worst, charge_used(logs, opened, honest=2, turns=3, visits=2))
    assert 0.999 < worst <= 1.0 + 1e-9  # tight: 15,625 patterns reach what is charged


def test_no_notice_exceeds_the_charge_be_it_true_or_a_lie() -> None:
    options = [frozenset(each) for each in ((0, 1), (0, 2), (1, 2), (0, 1, 2))]
    rng, worst = np.random.default_rng(2), 0.0
    for _ in range(300):
        opened = {index: options[rng.integers(4)] for index in range(6) if rng.random() < 0.9}
        drew = {
            index: [n for n in range(3) if n in opened.get(index, ()) or rng.random() < 0.5]
            for index in range(6)
        }
        told = {index: [n for n in range(3) if rng.random() < 0.4] for index in range(6)}
        logs = logs_of(drew, 3, told)
        worst = max(worst, charge_used(logs, opened, honest=2, turns=3, visits=2))
    assert 0.7 < worst <= 1.0 + 1e-9


class ByRank(Noting):
    """Wrong: weights by the rank in memory, so that the distances close up."""

    def weights(self, index: int, coefficients: np.ndarray, most_variance: float) -> Any:
        order = sorted(self.remembered, reverse=True)
        found = np.zeros(len(self.indices))
        for rank, earlier in enumerate(order[: len(coefficients) - 1], start=1):
            found[list(self.indices).index(earlier)] = coefficients[rank]
        return found, 1.0 + float(found @ self.covariance @ found)


def test_weights_by_rank_would_cost_more_than_is_charged() -> None:
    full = {index: frozenset(range(3)) for index in (0, 3, 6)}
    # Longer memory, as rank keeps what distance has left behind.
    wide = (*COEFFICIENTS, 0, 0, 1)
    by_rank = logs_of(full, 3, memory=ByRank, coefficients=wide)
    right = logs_of(full, 3, coefficients=wide)
    used = [
        distance_squared(covariance_of_sums(logs, full), full, {0, 3}) / (2 * NORM / 3)
        for logs in (right, by_rank)
    ]
    assert used[0] <= 1.0 < 1.4 < used[1]


def test_a_lying_notice_costs_nothing_but_would_by_rank() -> None:
    full = {index: frozenset(range(3)) for index in range(6)}
    told = {1: range(3)}
    used = [
        distance_squared(covariance_of_sums(logs, full), full, {0}) / (NORM / 3)
        for logs in (logs_of(full, 3, told), logs_of(full, 3, told, memory=ByRank))
    ]
    assert used[0] <= 1.0 + 1e-9 < 1.1 < used[1]


@pytest.mark.parametrize(
    ("visits", "why"),
    [((0, 2), "more bands than positions"), ((1, 2), "the batch of a failed index once more")],
)
def test_what_rules_forbid_would_cost_more(visits: tuple[int, int], why: str) -> None:
    full = {index: frozenset(range(3)) for index in range(6)}
    covariance = covariance_of_sums(logs_of(full, 3), full)
    assert distance_squared(covariance, full, visits) / (2 * NORM / 3) > 1.25, why


# 3. What it is charged as.


def test_the_sensitivity_is_a_columns_norm_times_the_clipping_norm() -> None:
    segments = (Segment("updates", 100, 80.0, 640.0, 0.5), Segment("count", 1, 7.0, 70.0, 1.0))
    share = BandedShare(segments=segments, noise_scale=50.0, coefficients=COEFFICIENTS)
    fine = 2.0**-share.fine_bits * 10.0
    expected = math.hypot(math.sqrt(NORM) * (40.0 + fine), 7.0)
    assert share.sensitivity == pytest.approx(expected, rel=1e-8)
    assert share.sensitivity >= math.hypot(math.sqrt(NORM) * 40.0, 7.0)
    assert share.total_weight == pytest.approx(2.2, abs=1e-3)


def test_the_multiplier_is_golden() -> None:
    # sqrt(8 * 580^2 - 2.25 * 14.93^2) / (|c| 80), computed by hand for the coefficients below.
    coefficients = optimal_coefficients(200, 20, momentum=0.9)
    share = share_of(coefficients, size=100, noise_scale=580.0)
    found = shared_noise_multiplier(580.0, share.sensitivity, 8, share.total_weight)
    by_hand = math.sqrt(8 * 580.0**2 - 2.25 * total_weight(coefficients) ** 2)
    assert found == pytest.approx(by_hand / column_norm(coefficients), rel=1e-4)
    assert total_weight(coefficients) == pytest.approx(14.93, abs=0.01)
    # The rounding to a continuous Gaussian costs little, and more than nothing.
    assert 0.0 < 1.0 - found / shared_noise_multiplier(580.0, share.sensitivity, 8) < 2e-4


@pytest.mark.parametrize("scale", [2.0, 4.39, math.nan, math.inf, 0.0])
def test_too_little_noise_for_hidden_shares_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="noise_scale must be at least 4"):
        share_of(COEFFICIENTS, noise_scale=scale)


@pytest.mark.slow
def test_hidden_shares_need_the_scale_over_the_total_weight() -> None:
    """By enumeration: the log-ratio to the Gaussian is above what the scale alone would say."""
    scale, column = 1.0, np.array([1.0, 0.9, 0.9, 0.9])
    releases = 4
    matrix = sum(w * np.eye(releases, k=-back) for back, w in enumerate(column))
    inverse = np.linalg.inv(matrix)
    rng, reach = np.random.default_rng(3), np.arange(-40, 41)
    worst = 0.0
    for _ in range(4):
        x, total = rng.uniform(-0.5, 0.5, releases), rng.integers(-1, 2, releases)
        # One node, whose first answer is in no sum: all its values are added up.
        free = np.column_stack([reach, np.tile(total[1:], (81, 1))]).astype(float)
        centre = x + (free - x) @ (np.eye(releases) - matrix).T
        steps = reach - (centre - np.rint(centre))[..., None]
        mass = np.exp(-(steps**2) / (2 * scale**2)).sum(-1)
        law = (-((free - centre) ** 2) / (2 * scale**2) - np.log(mass)).sum(-1)
        covariance = (scale**2 * inverse @ inverse.T)[1:, 1:]
        off = (total - x)[1:]
        density = -0.5 * off @ np.linalg.solve(covariance, off)
        density -= 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
        worst = max(worst, abs(float(np.log(np.exp(law).sum()) - density)))
    by_scale = shared_noise_slack(releases, 1, 2, noise_scale=scale)
    by_weight = shared_noise_slack(releases, 1, 2, noise_scale=scale / column.sum())
    assert by_scale < worst < by_weight


# 4. Exact sums, and the guard.


@pytest.mark.parametrize("block", [7, 1 << 15])
def test_what_is_carried_is_that_of_fractions(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("fl_dp.mechanisms.threads.BLOCK", block)
    rng = np.random.default_rng(4)
    coefficients = optimal_coefficients(100, 6)
    weights = np.array(coefficients[1:]) / 4096
    rows = np.rint(rng.normal(0.0, 600.0, (5, 30)) * 2.0**20) / 2.0**20
    memory = CarriedNoise(np.arange(5), np.eye(5), rows)
    for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 17):
        found = CarriedNoise(memory.indices, memory.covariance, rows[list(order)]).carried(
            weights[list(order)]
        )
        for column in range(30):
            exact = sum(
                (Fraction(w) * Fraction(r) for w, r in zip(weights, rows[:, column], strict=True)),
                Fraction(0),
            )
            assert Fraction(float(found[column])) == exact


def test_values_lie_on_a_grid_that_sums_hold_exactly() -> None:
    coefficients = optimal_coefficients(200, 20, momentum=0.9)
    share = share_of(coefficients, size=3, noise_scale=580.0)
    spread = 12.75 * 580.0 * (1.0 + 1.5 * share.total_weight * inverse_norms(coefficients)[1])
    assert 2.0 ** (12 + share.fine_bits) * (spread + 1000.0) < 2.0**53
    coarse = share_of(coefficients, size=3, noise_scale=1e9)
    assert coarse.fine_bits < share.fine_bits
    with pytest.raises(ValueError, match="can't hold"):
        share_of(coefficients, noise_scale=1e12)


def test_what_is_remembered_is_the_deviation_from_the_rounded_values() -> None:
    share = share_of(COEFFICIENTS, size=4)
    memory = CarriedNoise.empty(bands=3, size=4)
    values = np.array([0.1, -3.7, 2000.0, 1.0 / 3.0])  # one beyond the cap
    sent = share.encode([values], SecureRandom(), memory, 0)
    placed = np.rint(np.clip(values, -1000.0, 1000.0) * 2.0**20) / 2.0**20
    assert (memory.rows[0] == sent - placed).all()


def test_the_covariance_that_is_kept_is_that_of_the_rows() -> None:
    node = RememberingNode(share_of(COEFFICIENTS))
    for index in (0, 1, 2, 4, 5):
        node.answer(index)
        if index == 1:
            node.memory.forget([0])
    at = sorted(node.log)
    own = np.eye(len(at))
    for row, index in enumerate(at):
        for earlier, weight in node.log[index].items():
            own[row, at.index(earlier)] = weight
    whole = np.linalg.inv(own) @ np.linalg.inv(own).T
    slots = [at.index(int(each)) for each in node.memory.indices]
    assert np.allclose(node.memory.covariance, whole[np.ix_(slots, slots)])


def test_a_memory_that_lies_have_made_wide_is_forgotten_whatever_the_noise_was() -> None:
    coefficients = optimal_coefficients(200, 20, momentum=0.9)
    tripped = []
    for _ in range(2):
        node = RememberingNode(share_of(coefficients))
        forgot = []
        for index in range(200):
            before = set(node.memory.remembered)
            node.answer(index)
            if len(before) > 1 and not node.log[index]:
                forgot.append(index)
            # Notices that come late, of every second index.
            node.memory.forget([index - 3] if index % 2 else [])
        assert all(
            variance <= 2.0 * inverse_norms(coefficients)[1] ** 2 + 1e-9
            for variance in np.diag(node.memory.covariance)
        )
        tripped.append(forgot)
    assert tripped[0] == tripped[1] != []


def test_a_draw_beyond_what_sums_can_hold_stays_away_and_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share = share_of(COEFFICIENTS)
    memory = CarriedNoise.empty(bands=3, size=1)
    monkeypatch.setattr(
        "fl_dp.mechanisms.discrete_gaussian.DiscreteGaussian.sample_around",
        lambda law, centres, rng: np.rint(centres + 12.8 * law.scale).astype(np.int64),
    )
    with pytest.raises(ValueError, match="stays away"):
        share.encode([np.zeros(1)], SecureRandom(), memory, 0)
    assert memory.remembered == ()


def test_an_answer_that_fails_leaves_nothing_of_the_row_that_it_was_to_replace() -> None:
    """One part of many fails, when others are written: half of a row is no deviation."""
    size = 3 << 17  # parts of several threads
    share = share_of(COEFFICIENTS, size=size)
    memory = CarriedNoise.empty(bands=3, size=size)
    for index in range(2):
        share.encode([np.zeros(size)], SecureRandom(), memory, index)
    values = np.zeros(size)
    values[-1] = np.nan
    with pytest.raises(ValueError, match="finite"):
        share.encode([values], SecureRandom(), memory, 2)
    assert memory.remembered == (1,) and memory.rows[1].any() and not memory.rows[0].any()
    assert not memory.covariance[0].any() and memory.covariance[1, 1] > 0.0
    share.encode([np.zeros(size)], SecureRandom(), memory, 3)
    assert memory.remembered == (3,)  # in the place of 1


def test_a_weight_makes_up_for_steps_that_it_does_not_make_smaller() -> None:
    """A lying server takes coarse steps, and all entries are near the middle between two."""
    size, part = 400, 0.5
    segment = Segment("updates", size=size, scale=1.0, cap=2.0**38, clipping_norm=101.0)
    share = BandedShare(segments=(segment,), noise_scale=40.0, coefficients=COEFFICIENTS)
    step = 2.0**-share.fine_bits
    assert step > 0.1
    for weight, holds in ((part, False), (share.weight_for(part), True)):
        unit = np.full(size, weight * 101.0 / math.sqrt(size))
        others = (0.5 - unit / step % 1.0 / 2.0) * step  # rounded down, and with the unit up
        moved = np.rint((others + unit) / step) - np.rint(others / step)
        distance = column_norm(COEFFICIENTS) * step * np.linalg.norm(moved)
        assert (distance <= part * share.sensitivity) == holds
    with pytest.raises(ValueError, match="steps alone are more"):
        share.weight_for(1e-3)


def test_parts_of_several_threads_are_those_of_the_whole() -> None:
    size = (2 << 17) + 77
    updates = share_of(COEFFICIENTS, size=size).segments[0]
    counts = replace(updates, name="counts", size=1000)  # of a segment without memory
    share = BandedShare(segments=(updates, counts), noise_scale=40.0, coefficients=COEFFICIENTS)
    memory = CarriedNoise.empty(bands=3, size=size)
    values = [np.random.default_rng(2).normal(0.0, 300.0, each.size) for each in share.segments]
    placed = np.rint(np.clip(values[0], -1000.0, 1000.0) * 2.0**20) / 2.0**20
    for index in range(3):
        before, weights = memory.rows.copy(), np.zeros(2)
        for each in memory.remembered:
            weights[each % 2] = COEFFICIENTS[index - each] / 4096
        sent = share.encode(values, SecureRandom(), memory, index)
        assert (memory.rows[index % 2] == sent[:size] - placed).all()
        fresh = sent[:size] - (placed - weights @ before)
        assert abs(fresh.std() / 40.0 - 1.0) < 0.01 and np.abs(fresh).max() < 40.0 * 12.75
        assert abs((sent[size:] - values[1]).std() / 40.0 - 1.0) < 0.15


# 5. Neighbours.


def test_one_participation_moves_the_centres_by_its_column_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Along one transcript: of a node with a record, and without it."""
    share, rounds = share_of(COEFFICIENTS, size=20), 9
    rng = np.random.default_rng(6)
    data = np.rint(rng.normal(0.0, 300.0, (rounds, 20)) * 2.0**20) / 2.0**20
    moved = np.zeros((rounds, 20))
    moved[[1, 4, 7]] = np.rint(rng.normal(0.0, 5.0, (3, 20)) * 2.0**20) / 2.0**20
    sent = np.rint(rng.normal(0.0, 60.0, (rounds, 20))).astype(np.int64)
    centres: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for there in centres:
        memory = CarriedNoise.empty(bands=3, size=20)

        def say(law: Any, around: np.ndarray, rng: Any, *, there: bool = there) -> np.ndarray:
            centres[there].append(around.copy())
            return np.array(sent[len(centres[there]) - 1])

        monkeypatch.setattr(
            "fl_dp.mechanisms.discrete_gaussian.DiscreteGaussian.sample_around", say
        )
        monkeypatch.setattr("fl_dp.mechanisms.banded_share._REACH", 1e9)
        wide = share_of(COEFFICIENTS, size=20)
        object.__setattr__(wide, "fine_bits", share.fine_bits)
        for index in range(rounds):
            value = data[index] + (moved[index] if there else 0.0)
            wide.encode([value], SecureRandom(), memory, index)
            if index == 4:
                memory.forget([3])
    column = np.zeros((rounds, rounds))
    for back, weight in enumerate(COEFFICIENTS):
        column += weight / 4096 * np.eye(rounds, k=-back)
    column[5:, 3] = 0.0  # what was forgotten does not reach on
    assert (np.array(centres[True]) - np.array(centres[False]) == column @ moved).all()


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, 1e300])
def test_entries_that_are_no_numbers_end_in_an_error_or_at_the_cap(spoilt: float) -> None:
    share = share_of(COEFFICIENTS, size=2)
    memory = CarriedNoise.empty(bands=3, size=2)
    if math.isnan(spoilt):
        with pytest.raises(ValueError, match="finite"):
            share.encode([np.array([0.0, spoilt])], SecureRandom(), memory, 0)
        assert memory.remembered == ()
        return
    sent = share.encode([np.array([0.0, spoilt])], SecureRandom(), memory, 0)
    assert abs(int(sent[1]) - 1000) < 13 * 40


def test_values_of_no_dimension_and_of_whole_numbers_are_taken() -> None:
    share = share_of(COEFFICIENTS)
    memory = CarriedNoise.empty(bands=3, size=1)
    assert share.encode([np.int64(3)], SecureRandom(), memory, 0).shape == (1,)
    assert share.encode([3], SecureRandom(), memory, 1).shape == (1,)


# 6. A secret.


def test_a_memory_is_neither_pickled_nor_shown() -> None:
    memory = CarriedNoise.empty(bands=3, size=5)
    memory.rows += 77.0
    assert repr(memory) == "CarriedNoise(2, 5)"
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(memory)


def test_noise_with_memory_is_not_drawn_without_it() -> None:
    with pytest.raises(ValueError, match="memory and the sum's index"):
        share_of(COEFFICIENTS).encode([np.zeros(1)], SecureRandom())
    with pytest.raises(ValueError, match="use NoiseShare"):
        share_of((4096,))


def test_what_is_forgotten_is_overwritten() -> None:
    node = RememberingNode(share_of(COEFFICIENTS, size=50))
    for index in range(3):
        node.answer(index)
    node.memory.forget([1])
    assert node.memory.remembered == (2,)
    assert (node.memory.rows[1] == 0.0).all() and (node.memory.rows[0] != 0.0).any()
    node.memory.forget()
    assert not node.memory.rows.any() and not node.memory.covariance.any()


def test_an_earlier_answer_that_ends_later_is_not_remembered() -> None:
    node = RememberingNode(share_of(COEFFICIENTS))
    node.answer(5)
    node.answer(4)
    assert node.memory.remembered == (5,)
    assert node.log[4] == {}
