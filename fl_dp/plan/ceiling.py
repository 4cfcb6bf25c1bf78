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

from fl_dp.accounting import NeighboringRelation, OwnRatesSampling, freeze
from fl_dp.accounting.bounds import tight_epsilon
from fl_dp.accounting.calibration import affordable_rounds
from fl_dp.accounting.events import FrozenHistory
from fl_dp.guarantee import Guarantee
from fl_dp.promise import UNITS

from .plan_base import Plan

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
    if relation is None:
        return math.inf
    if relation is plan.neighboring_relation:
        return plan.budget.epsilon
    implied = math.inf
    if (
        plan.neighboring_relation is NeighboringRelation.REPLACE_ONE
        and relation is NeighboringRelation.ZERO_OUT
    ):
        implied = plan.budget.epsilon  # zero is one way to be replaced
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the plan has given its warnings already
            counted = replace(plan, neighboring_relation=relation)
    except ValueError:  # the kind promises nothing to such neighbours
        return implied
    law = counted.sampling
    history = freeze(Counter(dict(largest_history(plan))) | Counter(dict(spent)))
    histories = [history]
    if isinstance(law, OwnRatesSampling):
        histories = [law.history_for(number, history) for number in range(law.num_groups)]
    return min(implied, max(map(counted.tight_epsilon, histories)))


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
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as above
                _ = [replace(plan, neighboring_relation=relation) for plan in plans]
        except ValueError:  # a kind promises nothing to such neighbours
            continue
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
