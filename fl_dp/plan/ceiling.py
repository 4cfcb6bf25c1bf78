"""The most that a plan may spend, as the promises to other units and neighbours count it.

A plan's filter keeps its budget for its own unit and neighbours. For others epsilon is computed
again, from all that the filter may admit: a number is never relabelled.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting import NeighboringRelation, OwnRatesSampling, freeze
from fl_dp.accounting.bounds import tight_epsilon
from fl_dp.accounting.calibration import affordable_rounds
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.renyi import summed_divergences
from fl_dp.guarantee import Guarantee
from fl_dp.promise import UNITS

from .plan_base import Plan
from .record_plan import RecordPlan

_ENDLESS = 10_000_000  # rounds: more than any training repeats


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The difference between two populations that a promise can't tell apart.

    Attributes:
        unit: One of `UNITS`, in which alone they differ.
        relation: How they differ in it.
    """

    unit: str
    relation: NeighboringRelation

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return those of a plan's own promise."""
        return cls(unit=plan.unit, relation=plan.neighboring_relation)

    def together(self, epsilon: float, delta: float) -> Guarantee:
        """Return what runs of different promises add up to, or may."""
        return Guarantee.together(epsilon, delta, unit=self.unit, neighbours=self.relation)


@lru_cache(maxsize=256)
def epsilon_ceiling(plan: Plan, neighbours: Neighbours, spent: FrozenHistory = ()) -> float:
    """Return the most epsilon, at the plan's delta, that it may spend for any neighbours.

    Its own neighbours': the budget. A client's release counts for each of its persons and records
    as if the client's data were replaced, whatever changes in the record; so does a person's for
    its records. How many smaller units are in a larger one is unknown: theirs count for none.

    Args:
        plan: With its noise.
        neighbours: Those of the promise to compute.
        spent: Releases so far, which may exceed `largest_history` where releases differ.

    Returns:
        Infinity where no bound is known.
    """
    relation = _relation_of(plan, neighbours)
    if relation is plan.neighboring_relation:
        return plan.budget.epsilon
    replaced = plan.neighboring_relation is NeighboringRelation.REPLACE_ONE
    implied = math.inf
    if replaced and relation is NeighboringRelation.ZERO_OUT:
        implied = plan.budget.epsilon  # zero is one way to be replaced
    counted = _counted_for(plan, neighbours)
    if counted is None:
        return implied
    history = freeze(Counter(dict(largest_history(plan))) | Counter(dict(spent)))
    return min(implied, max(map(counted.tight_epsilon, _by_group(counted, history))))


@lru_cache(maxsize=256)
def renyi_ceiling(
    plan: Plan, neighbours: Neighbours, orders: tuple[float, ...], spent: FrozenHistory = ()
) -> NDArray[np.float64]:
    """Return the largest Renyi divergences of all that a plan may release, shape `(len(orders),)`.

    Read-only; infinite where no bound is known; other arguments as for `epsilon_ceiling`. What was
    spent may have taken the place of planned rounds.
    """
    counted = _counted_for(plan, neighbours)
    if counted is None:
        return np.broadcast_to(math.inf, len(orders))
    relation = counted.neighboring_relation
    divergences = [
        summed_divergences(of_group, relation, orders)
        for history in (largest_history(plan), spent)
        for of_group in _by_group(counted, history)
    ]
    # A slack s adds 2 s to an epsilon, and s / (order - 1) as it leaves e^-s of delta.
    slack = plan.slack * (2.0 + 1.0 / (np.array(orders) - 1.0))
    ceiling = np.asarray(np.max(divergences, axis=0) + slack)
    ceiling.flags.writeable = False
    return ceiling


def has_renyi_bound(plan: Plan, neighbours: Neighbours, orders: tuple[float, ...]) -> bool:
    """Tell whether `renyi_ceiling` is finite at any order; repetitions are of planned rounds."""
    counted = _counted_for(plan, neighbours)
    if counted is None:
        return False
    relation = counted.neighboring_relation
    groups = _by_group(counted, plan.history)
    planned = [summed_divergences(of_group, relation, orders) for of_group in groups]
    return bool(np.isfinite(np.max(planned, axis=0)).any())


def _counted_for(plan: Plan, neighbours: Neighbours) -> Plan | None:
    """Return a plan as it is charged for other neighbours; None: its kind promises them nothing."""
    relation = _relation_of(plan, neighbours)
    if relation is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the plan has given its warnings already
            return replace(plan, neighboring_relation=relation)
    except ValueError:
        return None


def _by_group(plan: Plan, history: FrozenHistory) -> list[FrozenHistory]:
    """Return a history as each group of units with a price of its own is charged for it."""
    law = plan.sampling
    if isinstance(law, OwnRatesSampling):
        return [law.history_for(number, history) for number in range(law.num_groups)]
    return [history]


@lru_cache(maxsize=64)
def joint_ceiling(plans: tuple[Plan, ...], neighbours: Neighbours) -> float:
    """Return the most epsilon that plans may spend together, all fixed before any of them began.

    Their releases compose as privacy losses, at the largest of their deltas: far less than the sum.

    Returns:
        Infinity where no bound is known.
    """
    relations = {_relation_of(plan, neighbours) for plan in plans}
    if None in relations or any(isinstance(plan.sampling, OwnRatesSampling) for plan in plans):
        return math.inf
    if len(relations) > 1:
        return math.inf  # plans of several units: no one relation bounds them all
    replaced = all(plan.neighboring_relation is NeighboringRelation.REPLACE_ONE for plan in plans)
    if replaced and NeighboringRelation.ZERO_OUT in relations:
        relations.add(NeighboringRelation.REPLACE_ONE)  # zero is one way to be replaced
    slack = math.fsum(plan.slack for plan in plans)
    delta = max(plan.budget.delta for plan in plans) * math.exp(-slack)
    history = union_of(plans)
    bounds: list[float] = []
    for relation in filter(None, relations):
        if any(
            _counted_for(plan, Neighbours(unit=plan.unit, relation=relation)) is None
            for plan in plans
        ):
            continue  # a kind promises nothing to such neighbours
        bounds.append(tight_epsilon(history, delta, neighboring_relation=relation) + 2.0 * slack)
    return min(bounds, default=math.inf)


def union_of(plans: Iterable[Plan]) -> FrozenHistory:
    """Return all that several plans may release together."""
    return freeze([release for plan in plans for release in largest_history(plan)])


def _relation_of(plan: Plan, neighbours: Neighbours) -> NeighboringRelation | None:
    """Return how neighbours differ in the plan's own unit; None: no bound is known."""
    if neighbours.unit == plan.unit:
        return neighbours.relation
    is_larger = UNITS.index(plan.unit) < UNITS.index(neighbours.unit)
    return NeighboringRelation.REPLACE_ONE if is_larger else None


@lru_cache(maxsize=256)
def largest_history(plan: Plan) -> FrozenHistory:
    """Return all planned releases, and repeated rounds as far as the budget pays for them.

    Repetitions are those of the round with the least noise. Groups with budgets of their own have
    calibrated noise, which leaves no room for any.
    """
    if not plan.rounds or isinstance(plan.sampling, OwnRatesSampling):
        return plan.history
    event = plan.charged_event(plan.event_at(plan.noise_multiplier))
    further = affordable_rounds(
        plan.history,
        event,
        plan.event_budget.epsilon,
        plan.event_budget.delta,
        at_most=plan.charged_of(_ENDLESS) - plan.charged_rounds,
        neighboring_relation=plan.neighboring_relation,
    )
    return freeze([*plan.history, (event, further)])


@lru_cache(maxsize=256)
def largest_history_of_records(plan: RecordPlan) -> FrozenHistory:
    """Return all steps of DP-SGD that one client's ledger admits, at the plan's own noise."""
    steps = plan.steps * plan.participations
    further = affordable_rounds(
        {plan.event: steps},
        plan.event,
        plan.budget.epsilon,
        plan.budget.delta,
        at_most=_ENDLESS,
        neighboring_relation=plan.neighboring_relation,
    )
    return freeze([(plan.event, steps + further)])
