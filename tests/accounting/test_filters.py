"""Filters never admit more than their budget, whoever chooses the noise; an odometer keeps up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_events import gaussian, sampled

from fl_dp.accounting import (
    NoiseSchedule,
    PrivacyBudget,
    PrivacyEvent,
    tight_epsilon,
)
from fl_dp.accounting.calibration import affordable_rounds, schedule_history
from fl_dp.accounting.events import TruncatedPoissonGaussianEvent
from fl_dp.accounting.filters import (
    DeclaredFilter,
    PrivacyFilter,
    RenyiOdometer,
)
from fl_dp.mechanisms.mechanism_events import LaplaceEvent

Event = TypeVar("Event", bound=PrivacyEvent)
BUDGET = PrivacyBudget(epsilon=8.0, delta=1e-5)
noises = st.lists(st.floats(0.3, 30.0), min_size=1, max_size=80)


def admit(gate: PrivacyFilter, events: Sequence[Event]) -> list[Event]:
    admitted = []
    for event in events:
        if not gate.would_exceed(event):
            gate.spend(event)
            admitted.append(event)
    return admitted


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
