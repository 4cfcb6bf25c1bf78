"""The most that a plan may spend, as promises to other units and neighbours count it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from flat_plans import calibrated_plan, noised_plan
from kind_trainings import PLANS

from fl_dp import Plan, PrivacyBudget
from fl_dp.accounting import NeighboringRelation, NoiseSchedule, VisibleSampling
from fl_dp.mechanisms.mechanism_events import LaplaceEvent
from fl_dp.plan.ceiling import Neighbours, epsilon_ceiling, largest_history

ZERO_OUT, REPLACE_ONE = NeighboringRelation.ZERO_OUT, NeighboringRelation.REPLACE_ONE
CLIENT = Neighbours(unit="client", relation=ZERO_OUT)
REPLACED_CLIENT = Neighbours(unit="client", relation=REPLACE_ONE)
RECORD = Neighbours(unit="record", relation=ZERO_OUT)
REPLACED_RECORD = Neighbours(unit="record", relation=REPLACE_ONE)
BUDGET = PrivacyBudget(epsilon=8.0, delta=1e-3)
SIZES: dict[str, Any] = {"num_clients": 200, "clipping_norm": 1.0}


def admitted(plan: Plan) -> int:
    """Return how many equal rounds the plan's own gate lets pass."""
    gate, event, count = plan.filter(), plan.event_at(plan.noise_multiplier), 0
    while not gate.would_exceed(event):
        gate.spend(event)
        count += 1
    return count


def test_epsilon_8_for_clients_is_11_5_for_a_record_that_is_replaced() -> None:
    plan = calibrated_plan(BUDGET, rounds=20, sampling_rate=0.25, **SIZES)
    assert epsilon_ceiling(plan, CLIENT) == 8.0
    for neighbours in (REPLACED_CLIENT, RECORD, REPLACED_RECORD):  # each may change all of a client
        assert epsilon_ceiling(plan, neighbours) == pytest.approx(11.4846, abs=1e-3)


def test_the_ceiling_counts_what_the_gate_admits_not_what_was_planned() -> None:
    """Noise for epsilon 2.8 in 20 rounds, under a budget of 8, pays for many more."""
    plan = replace(
        noised_plan(2.5, delta=1e-3, rounds=20, sampling_rate=0.25, **SIZES), budget=BUDGET
    )
    ((event, count),) = largest_history(plan)
    assert count == admitted(plan) > 100
    planned = replace(plan, neighboring_relation=REPLACE_ONE).tight_epsilon(plan.history)
    most = replace(plan, neighboring_relation=REPLACE_ONE).tight_epsilon([(event, count)])
    assert epsilon_ceiling(plan, REPLACED_CLIENT) == most > 2.0 * planned


def test_a_participation_cap_bounds_repetitions_too() -> None:
    plan = replace(
        calibrated_plan(
            BUDGET, rounds=9, sampling=VisibleSampling(cohort=4), participation_cap=2, **SIZES
        ),
        budget=PrivacyBudget(epsilon=50.0, delta=1e-3),
    )
    assert largest_history(plan) == ((plan.event_at(plan.noise_multiplier), 2),)


def test_a_replaced_unit_covers_one_that_contributes_zero_and_no_unit_that_is_added() -> None:
    """A law that is charged in full costs one that contributes zero as much, and no more."""
    plan = calibrated_plan(
        BUDGET, rounds=5, sampling_rate=1.0, neighboring_relation=REPLACE_ONE, **SIZES
    )
    assert epsilon_ceiling(plan, CLIENT) < epsilon_ceiling(plan, REPLACED_CLIENT) == BUDGET.epsilon
    central: Any = plan  # its class has the field
    record = replace(central, unit="record")  # which may not be recomputed at zero-out
    assert epsilon_ceiling(record, RECORD) == BUDGET.epsilon
    added = Neighbours(unit="record", relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert math.isinf(epsilon_ceiling(record, added))


def test_a_person_s_release_counts_for_its_records_as_replaced_and_for_no_client() -> None:
    records: Any = PLANS["distributed_records"]().calibrated()
    plan = replace(records, unit="person")
    person = Neighbours(unit="person", relation=ZERO_OUT)
    assert epsilon_ceiling(plan, person) == plan.budget.epsilon
    assert (
        epsilon_ceiling(plan, RECORD)
        == epsilon_ceiling(plan, REPLACED_RECORD)
        > 1.1 * plan.budget.epsilon
    )
    assert epsilon_ceiling(plan, RECORD) == epsilon_ceiling(
        plan, replace(person, relation=REPLACE_ONE)
    )
    assert math.isinf(epsilon_ceiling(plan, CLIENT))
    # Neither is known of a person what its records were promised; a client's covers both.
    assert math.isinf(epsilon_ceiling(records, person))
    of_clients = calibrated_plan(BUDGET, rounds=5, sampling_rate=0.25, **SIZES)
    assert (
        epsilon_ceiling(of_clients, person) == epsilon_ceiling(of_clients, RECORD) > BUDGET.epsilon
    )


def test_records_of_sums_say_nothing_known_of_a_client() -> None:
    plan = PLANS["distributed_records"]().calibrated()
    assert plan.unit == "record"
    assert epsilon_ceiling(plan, Neighbours.of(plan)) == plan.budget.epsilon
    assert math.isinf(epsilon_ceiling(plan, CLIENT)) and math.isinf(
        epsilon_ceiling(plan, REPLACED_CLIENT)
    )


@pytest.mark.parametrize("kind", sorted(PLANS))
def test_no_kind_is_relabelled(kind: str) -> None:
    """Another unit or other neighbours never cost less than the gate's own, unless implied."""
    plan = PLANS[kind]().calibrated()
    own = Neighbours.of(plan)
    assert epsilon_ceiling(plan, own) == plan.budget.epsilon
    spends = plan.tight_epsilon(plan.history)
    for neighbours in (REPLACED_CLIENT, REPLACED_RECORD):
        assert epsilon_ceiling(plan, neighbours) >= spends
    assert not Counter(dict(plan.history)) - Counter(dict(largest_history(plan)))


def test_a_repetition_beyond_every_planned_mix_is_counted_when_it_is_made() -> None:
    plan = replace(
        calibrated_plan(
            PrivacyBudget(epsilon=2.0, delta=1e-3),
            rounds=4,
            sampling_rate=0.25,
            schedule=NoiseSchedule(name="cosine"),
            other_releases={LaplaceEvent(noise_multiplier=20.0): 1},
            **SIZES,
        ),
        budget=BUDGET,
    )
    quiet = ((LaplaceEvent(noise_multiplier=20.0), 90),)
    assert epsilon_ceiling(plan, REPLACED_CLIENT, quiet) > epsilon_ceiling(plan, REPLACED_CLIENT)
    assert epsilon_ceiling(plan, REPLACED_CLIENT, plan.history) == epsilon_ceiling(
        plan, REPLACED_CLIENT
    )
