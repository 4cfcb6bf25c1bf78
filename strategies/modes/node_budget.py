"""Budget that a training asks of nodes that keep ledgers of their own."""

from __future__ import annotations

from dataclasses import replace

from fl_dp.accounting import PrivacyBudget
from fl_dp.accounting.budget import DECLARED_SHARE
from fl_dp.plan import PrivacyPlan
from fl_dp.protocol.instruction import SumInstruction


def budget_for_nodes(plan: PrivacyPlan) -> PrivacyBudget | None:
    """Return what the plan's rounds may spend at a node's ledger; None: the owner has to say.

    A node's ledger keeps a share of delta for noise that changes, so it is asked for more of it. If
    it would have to admit several kinds of noise, it needs more room than the plan has.
    """
    if len(set(plan.noise_multipliers)) > 1:
        return None
    return replace(plan.budget, delta=min(0.5, plan.budget.delta / DECLARED_SHARE))


def price_of_a_sum(plan: PrivacyPlan) -> SumInstruction:
    """Return what nodes are told of the price of a secure sum, besides its terms."""
    budget = budget_for_nodes(plan)
    return SumInstruction(
        rounds=plan.rounds + sum(count for _, count in plan.other_releases),
        epsilon=None if budget is None else budget.epsilon,
        delta=None if budget is None else budget.delta,
        neighboring_relation=str(plan.neighboring_relation),
    )
