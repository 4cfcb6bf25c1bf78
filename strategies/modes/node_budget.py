"""Budget that a training requests of nodes with ledgers of their own."""

from __future__ import annotations

import math
from dataclasses import replace

from fl_dp.accounting import PrivacyBudget
from fl_dp.accounting.budget import DECLARED_SHARE
from fl_dp.accounting.filters import RenyiOdometer
from fl_dp.plan import Plan
from fl_dp.protocol.instruction import SumInstruction

_MARGIN = 1.01  # a node takes its own error off first, and its orders are a hair away
_MOST_TRIES = 100


def budget_for_nodes(plan: Plan) -> PrivacyBudget | None:
    """The budget a plan needs at a node's ledger; None: the owner has to choose it.

    A node's ledger keeps a share of delta for noise that changes, so the request has a larger
    delta. It also charges statistics by secure sums: epsilon is raised to what the ledger's rule
    for several kinds of noise needs. The plan spends no more for that.
    """
    if len(set(plan.noise_multipliers)) > 1:
        return None
    budget = replace(plan.budget, delta=min(0.5, plan.budget.delta / DECLARED_SHARE))
    if plan.noise is not None and len(plan.history) > 1:
        return _room_for_several(plan, budget)
    return budget


def _room_for_several(plan: Plan, budget: PrivacyBudget) -> PrivacyBudget | None:
    """A budget within which a node's ledger admits the plan in any order.

    The ledger's orders, and so the budget that it needs, depend on the request.
    """
    share, room = (1.0 - DECLARED_SHARE) * budget.delta, budget
    for _ in range(_MOST_TRIES):
        odometer = RenyiOdometer(
            foreseen=replace(room, delta=share), neighboring_relation=plan.neighboring_relation
        )
        needed = _MARGIN * odometer.epsilon(plan.history, share) + 2.0 * plan.slack
        if needed <= room.epsilon:
            return room
        if math.isinf(needed):
            return None
        room = replace(room, epsilon=needed)
    return None


def price_of_a_sum(plan: Plan) -> SumInstruction:
    """A secure sum's price for its nodes, besides its terms."""
    budget = budget_for_nodes(plan)
    epsilon = delta = None
    if budget is not None:
        epsilon, delta = budget.epsilon, budget.delta
    return SumInstruction(
        rounds=plan.rounds + sum(count for _, count in plan.other_releases),
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=str(plan.neighboring_relation),
        unit=plan.unit,
    )
