"""Filters never admit more than their budget, whoever chooses the noise; an odometer keeps up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dp.accounting import (
    NeighboringRelation,
    NoiseSchedule,
    PoissonGaussianEvent,
    PrivacyBudget,
    PrivacyEvent,
    tight_epsilon,
)
from fl_dp.accounting.calibration import affordable_rounds, schedule_history
from fl_dp.accounting.events import FixedSizeGaussianEvent, TruncatedPoissonGaussianEvent
from fl_dp.accounting.filters import (
    DeclaredFilter,
    GaussianFilter,
    PrivacyFilter,
    RenyiFilter,
    RenyiOdometer,
    best_filter_order,
)
from fl_dp.accounting.gaussian_formulas import gaussian_epsilon, gaussian_noise_multiplier
from fl_dp.accounting.renyi import epsilon_at_order
from fl_dp.mechanisms.events import GaussianEvent, LaplaceEvent

Event = TypeVar("Event", bound=PrivacyEvent)
BUDGET = PrivacyBudget(epsilon=8.0, delta=1e-5)
noises = st.lists(st.floats(0.3, 30.0), min_size=1, max_size=80)


def gaussian(multiplier: float) -> GaussianEvent:
    return GaussianEvent(noise_multiplier=multiplier)


def sampled(multiplier: float, rate: float) -> PoissonGaussianEvent:
    return PoissonGaussianEvent(noise_multiplier=multiplier, sampling_rate=rate)


def admit(gate: PrivacyFilter, events: Sequence[Event]) -> list[Event]:
    admitted = []
    for event in events:
        if not gate.would_exceed(event):
            gate.spend(event)
            admitted.append(event)
    return admitted


# Adaptively chosen noise ---------------------------------------------------------------------


@given(noises)
def test_a_gaussian_filter_holds_its_budget_exactly(multipliers: list[float]) -> None:
    """Exact composition of what was admitted: GDP (Smith and Thakurta 2022)."""
    admitted = admit(GaussianFilter(BUDGET), [gaussian(z) for z in multipliers])
    if admitted:
        spent = gaussian_epsilon(sum(e.noise_multiplier**-2 for e in admitted) ** -0.5, 1e-5)
        assert spent <= 8.0 * (1 + 1e-9)


@settings(max_examples=20)
@given(noises, st.floats(0.01, 1.0), st.sampled_from([3.0, 4.0, 12.0]))
def test_a_renyi_filter_holds_its_budget_at_its_order(
    multipliers: list[float], rate: float, order: float
) -> None:
    """What was admitted, added up by dp-accounting at that order (an integer one: exact)."""
    admitted = admit(RenyiFilter(BUDGET, order), [sampled(z, rate) for z in multipliers])
    accountant = RdpAccountant([order])
    for event in admitted:
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(event.noise_multiplier)))
    total = float(accountant.rdp[0])
    assert epsilon_at_order(total, order, 1e-5) <= 8.0 * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["gaussian", "renyi"])
def test_a_greedy_adversary_gets_the_whole_budget_and_no_more(kind: str) -> None:
    """It goes for the least noise that still passes, at falling ambition."""
    gate = GaussianFilter(BUDGET) if kind == "gaussian" else RenyiFilter(BUDGET, 3.9)
    precision = 0.0
    for ambition in np.logspace(-0.3, 4, 300):
        while not gate.would_exceed(gaussian(ambition)):
            gate.spend(gaussian(ambition))
            precision += ambition**-2
    most = {"gaussian": 2.7757, "renyi": 2.4593}[kind]
    assert precision == pytest.approx(most, rel=1e-4)
    assert gaussian_epsilon(precision**-0.5, 1e-5) <= 8.0 * (1 + 1e-9)


def test_a_calibrated_budget_is_used_to_its_last_digit() -> None:
    """Rounding must not refuse the last of the rounds that the noise was calibrated for."""
    for rounds in (3, 7, 1000):
        event = gaussian(math.sqrt(rounds) * gaussian_noise_multiplier(8.0, 1e-5))
        assert len(admit(GaussianFilter(BUDGET), [event] * (rounds + 1))) == rounds


def test_the_best_order_and_what_it_allows() -> None:
    """Order 3.9 at (8, 1e-5): B = 4.7956, so 1/sigma^2 may add up to 2.4593; GDP allows 2.7757."""
    order = best_filter_order({gaussian(2.4593**-0.5): 1}, 1e-5)
    assert order == 3.9
    allowed = 8.0 - math.log1p(-1 / 3.9) + math.log(3.9e-5) / 2.9
    assert allowed == pytest.approx(4.7956, abs=1e-4)
    assert allowed / 3.9 * 2 == pytest.approx(2.4593, abs=1e-4)
    fits, breaks = gaussian(2.4592**-0.5), gaussian(2.4594**-0.5)
    gate: PrivacyFilter = RenyiFilter(BUDGET, order)
    assert not gate.would_exceed(fits) and gate.would_exceed(breaks)
    gate = GaussianFilter(BUDGET)
    assert not gate.would_exceed(gaussian(2.7756**-0.5))
    assert gate.would_exceed(gaussian(2.7758**-0.5))


def test_filters_follow_the_neighbouring_relation() -> None:
    replaced = NeighboringRelation.REPLACE_ONE
    makers: tuple[Callable[..., PrivacyFilter], ...] = (
        GaussianFilter,
        partial(RenyiFilter, order=3.9),
    )
    for make in makers:
        near, far = make(BUDGET), make(BUDGET, neighboring_relation=replaced)
        assert len(admit(near, [gaussian(8.0)] * 999)) // 4 == len(
            admit(far, [gaussian(8.0)] * 999)
        )
    # A unit that leaves a fixed-size cohort has its place taken: as far as a replaced one.
    fixed = FixedSizeGaussianEvent(noise_multiplier=8.0, num_units=100, cohort=10)
    added = GaussianFilter(BUDGET, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    far = GaussianFilter(BUDGET, neighboring_relation=replaced)
    zeroed = GaussianFilter(BUDGET)
    counts = [len(admit(gate, [fixed] * 999)) for gate in (zeroed, added, far)]
    assert counts[0] // 4 == counts[1] == counts[2]


def test_a_gaussian_filter_refuses_what_is_no_gaussian() -> None:
    for event in (sampled(1.0, 0.5), LaplaceEvent(noise_multiplier=1.0)):
        with pytest.raises(ValueError, match="use a RenyiFilter"):
            GaussianFilter(BUDGET).would_exceed(event)
        with pytest.raises(ValueError, match="use a RenyiFilter"):
            GaussianFilter(BUDGET).spend(event)
    assert not GaussianFilter(BUDGET).would_exceed(sampled(1.0, 1.0))  # that is one


def test_a_renyi_filter_admits_nothing_that_it_has_no_bound_for() -> None:
    gate = RenyiFilter(BUDGET, 4.0, neighboring_relation=NeighboringRelation.REPLACE_ONE)
    assert gate.would_exceed(sampled(1000.0, 0.01))
    with pytest.raises(ValueError, match="needs a Renyi bound"):
        best_filter_order(
            {sampled(10.0, 0.1): 1},
            1e-5,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )


@pytest.mark.parametrize("order", [1.0, 0.5, math.inf, math.nan])
def test_an_order_that_is_none_is_refused(order: float) -> None:
    with pytest.raises(ValueError, match="order must be above 1"):
        RenyiFilter(BUDGET, order)


def test_an_order_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match=r"leaves no budget .*take a larger one"):
        RenyiFilter(PrivacyBudget(epsilon=0.1, delta=1e-5), 2.0)


# Declared noise ------------------------------------------------------------------------------


def test_declared_rounds_are_all_admitted_after_one_computation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule = NoiseSchedule(name="linear", levels=6)
    history = schedule_history(schedule, 1.0, sampling_rate=0.1, rounds=60)
    budget = PrivacyBudget(epsilon=tight_epsilon(history, 1e-5), delta=1e-5)
    computed = []

    def counted(*arguments: Any, **named: Any) -> float:
        computed.append(1)
        return tight_epsilon(*arguments, **named)

    monkeypatch.setattr("fl_dp.accounting.filters.tight_epsilon", counted)
    gate = DeclaredFilter(budget, history)
    events = [event for event, count in history for _ in range(count)]
    assert admit(gate, events[::-1]) == events[::-1]
    assert len(computed) == 1
    assert gate.would_exceed(events[0])
    assert len(computed) >= 1


def test_repetitions_beyond_the_plan_are_gated_by_the_exact_number() -> None:
    event = sampled(1.0, 0.05)
    budget = PrivacyBudget(epsilon=2.0, delta=1e-5)
    most = affordable_rounds({}, event, 2.0, 1e-5, at_most=10**4)
    gate = DeclaredFilter(budget, {event: 10})
    assert len(admit(gate, [event] * (most + 20))) == most


def test_a_second_attempt_takes_from_the_rounds_that_are_left() -> None:
    early, late = sampled(2.0, 0.1), sampled(1.0, 0.1)
    history: dict[PrivacyEvent, int] = {early: 20, late: 20}
    budget = PrivacyBudget(epsilon=tight_epsilon(history, 1e-5), delta=1e-5)
    gate = DeclaredFilter(budget, history)
    assert len(admit(gate, [early] * 23)) == 23
    admitted = admit(gate, [late] * 20)
    assert 17 <= len(admitted) < 20
    spent = tight_epsilon([(early, 23), (late, len(admitted))], 1e-5)
    assert spent <= budget.epsilon
    assert tight_epsilon([(early, 23), (late, len(admitted) + 1)], 1e-5) > budget.epsilon


@settings(max_examples=8)
@given(st.lists(st.sampled_from([0, 0, 0, 1, 2]), max_size=40))
def test_no_order_of_attempts_breaks_a_declared_budget(turns: list[int]) -> None:
    events: list[PrivacyEvent] = [sampled(1.2, 0.2), sampled(2.0, 0.2), gaussian(9.0)]
    history = {events[0]: 6, events[1]: 4, events[2]: 2}
    budget = PrivacyBudget(epsilon=3.0, delta=1e-5)
    admitted = admit(DeclaredFilter(budget, history), [events[turn] for turn in turns])
    assert tight_epsilon([(event, 1) for event in admitted], 1e-5) <= 3.0


def test_what_was_spent_past_the_budget_is_not_forgotten() -> None:
    gate = DeclaredFilter(PrivacyBudget(epsilon=1.0, delta=1e-5), {gaussian(5.0): 1})
    for _ in range(40):
        gate.spend(gaussian(5.0))
    assert gate.would_exceed(gaussian(5.0)) and gate.would_exceed(gaussian(1e3))


# Odometer ------------------------------------------------------------------------------------


def test_the_orders_follow_from_what_was_foreseen_and_share_all_of_delta() -> None:
    for epsilon, delta in ((0.05, 1e-9), (1.0, 1e-5), (40.0, 1e-6), (300.0, 0.1)):
        odometer = RenyiOdometer(foreseen=PrivacyBudget(epsilon=epsilon, delta=delta))
        shares = odometer.shares
        assert sum(shares.values()) == pytest.approx(1.0)
        assert all(order > 1.0 for order in shares) and all(share > 0 for share in shares.values())
        # A quarter of delta is at the order at which Gaussians leave most room.
        tail = -math.log(delta / 4)
        rooms = {order: (epsilon - tail / (order - 1)) / order for order in shares}
        best = max(rooms, key=lambda order: rooms[order])
        finer = (1.0 + 1.01**step for step in range(-400, 700))
        assert rooms[best] >= 0.999 * max((epsilon - tail / (a - 1)) / a for a in finer)
        assert shares[best] >= 0.25


def test_the_odometer_only_rises_and_stays_above_the_plain_bound() -> None:
    odometer = RenyiOdometer(foreseen=BUDGET)
    assert odometer.epsilon({}, 1e-5) == 0.0
    kinds: list[PrivacyEvent] = [
        gaussian(6.0),
        sampled(1.0, 0.1),
        LaplaceEvent(noise_multiplier=8.0),
    ]
    seen, history = [], []
    for step in range(60):
        history.append((kinds[step % 3], 1))
        seen.append(odometer.epsilon(history, 1e-5))
        if step % 12 == 0:
            assert seen[-1] >= tight_epsilon(history, 1e-5, interval=1e-3)
    assert seen == sorted(seen) and seen[0] < seen[-1] < math.inf


def test_what_has_a_bound_at_no_order_has_none_in_an_odometer() -> None:
    cut = TruncatedPoissonGaussianEvent(
        noise_multiplier=4.0, sampling_rate=0.1, num_units=600, max_cohort=100
    )
    odometer = RenyiOdometer(foreseen=BUDGET)
    assert odometer.epsilon({cut: 1}, 1e-5) == math.inf
    assert odometer.gaussian_room({cut: 1}, BUDGET) == 0.0


@settings(max_examples=40)
@given(multipliers=noises, epsilon=st.floats(0.5, 50.0))
def test_the_largest_gaussian_that_fits_does_and_a_larger_one_does_not(
    multipliers: list[float], epsilon: float
) -> None:
    budget = PrivacyBudget(epsilon=epsilon, delta=1e-6)
    odometer = RenyiOdometer(foreseen=budget)
    history: list[PrivacyEvent] = [gaussian(each) for each in multipliers]
    mu = odometer.gaussian_room(history, budget)
    if mu:
        assert odometer.epsilon([*history, gaussian(1.000001 / mu)], 1e-6) <= epsilon
        assert odometer.epsilon([*history, gaussian(0.999 / mu)], 1e-6) > epsilon
    else:
        assert odometer.epsilon(history, 1e-6) >= epsilon


def test_an_odometer_without_a_delta_is_refused() -> None:
    for delta in (0.0, 1.0):
        with pytest.raises(ValueError, match="delta must lie in"):
            RenyiOdometer(foreseen=BUDGET).epsilon({gaussian(6.0): 1}, delta)
