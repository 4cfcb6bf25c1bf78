"""What the kinds have in common in which public groups of clients have budgets of their own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fl_dp.accounting import EpsilonBounds, History, OwnRatesSampling, freeze
from fl_dp.accounting.filters import OwnBudgetsFilter, PrivacyFilter
from fl_dp.option_errors import OptionError

from .plan import Plan


def require_largest_budget(plan: Plan, law: OwnRatesSampling) -> None:
    """Refuse a budget that is none of the groups', and what would be charged at their rates.

    Raises:
        OptionError: With what to write instead.
    """
    if plan.budget.epsilon != law.budgets[-1]:
        raise OptionError(
            f"epsilon={plan.budget.epsilon:g} must be the largest of the budgets: "
            f"write epsilon={law.budgets[-1]:g}, and no noise_multiplier, as noise for "
            "groups with budgets of their own is calibrated"
        )
    if any(law.event_for(0, event) != event for event, _ in plan.other_releases):
        raise OptionError(
            "another release is sampled at the rate of the last group, or noised like a "
            "client's message, and would be charged at each group's own: change its rate a "
            "little, or leave it out"
        )


def own_filter(plan: Plan, law: OwnRatesSampling, *, room: float) -> OwnBudgetsFilter:
    """Return the gate of all groups: a release has to pass that of each."""

    def of_group(group: int, epsilon: float) -> PrivacyFilter:
        budget = replace(plan.budget, epsilon=room * epsilon)
        return plan.gate(budget, law.history_for(group, plan.history))

    return OwnBudgetsFilter(
        [
            (of_group(group, epsilon), partial(law.event_for, group))
            for group, epsilon in enumerate(law.budgets)
        ]
    )


def own_epsilons(
    plan: Plan, law: OwnRatesSampling, history: History | None
) -> tuple[EpsilonBounds, ...]:
    """Return what releases cost each group, never more than its budget."""
    releases = plan.history if history is None else freeze(history)
    return tuple(
        plan.epsilon(law.history_for(group, releases)).within(budget)
        for group, budget in enumerate(law.budgets)
    )
