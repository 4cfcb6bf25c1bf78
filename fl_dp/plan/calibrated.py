"""The least noise with which a plan's releases fit its budget."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from fl_dp.accounting import (
    GaussianEvent,
    NeighboringRelation,
    PrivacyBudget,
    affordable_rounds,
    best_filter_order,
    calibrate_noise,
    freeze,
    gaussian_noise_multiplier,
)
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.gaussian import mu_squared
from fl_dp.accounting.renyi import renyi_epsilon
from fl_dp.option_errors import IncompatibleOptions, OptionError

from .noise import CentralNoise, Noise

if TYPE_CHECKING:
    from .privacy_plan import PrivacyPlan


def calibrated_noise(draft: PrivacyPlan) -> Noise:
    """Return the draft's noise, made so large that all rounds and other releases fit its budget.

    Where the noise is chosen later: so large that as many rounds at its base multiplier fit the
    filter, whose order is fixed here.

    Raises:
        ValueError: If the budget can't be reached.
    """
    noise, before, budget = draft.noise, draft.other_releases, draft.event_budget
    relation = draft.neighboring_relation
    if not noise.adaptive:
        multiplier = calibrate_noise(
            draft.rounds_at,
            budget.epsilon,
            budget.delta,
            already_spent=before,
            neighboring_relation=relation,
            what=f"in {draft.charged_rounds} rounds",
        )
        return replace(noise, multiplier=multiplier)
    # Gaussian DP is exact for Gaussians; a sampled one has none, and is bounded by Renyi DP.
    if all(isinstance(event, GaussianEvent) for event, _ in (*draft.rounds_at(1.0), *before)):
        multiplier = _gaussian_noise(budget, draft.charged_rounds, before, relation)
    else:
        multiplier = _renyi_noise(draft)
    return with_filter_order(draft, replace(noise, multiplier=multiplier))


def with_filter_order(draft: PrivacyPlan, noise: Noise) -> Noise:
    """Return noise that is chosen later with the order of its filter, fixed beforehand.

    That is the order at which all that the draft plans spends least; None for Gaussians alone,
    whose filter needs none.

    Raises:
        ValueError: If a release has no Renyi bound.
    """
    assert isinstance(noise, CentralNoise)  # no other noise is chosen later
    releases = [*draft.rounds_at(noise.multiplier), *draft.other_releases]
    if all(isinstance(event, GaussianEvent) for event, _ in releases):
        return replace(noise, filter_order=None)
    order = best_filter_order(
        releases, draft.event_budget.delta, neighboring_relation=draft.neighboring_relation
    )
    return replace(noise, filter_order=order)


def budget_of(draft: PrivacyPlan, max_epsilon: float | None) -> PrivacyBudget:
    """Return the budget that the draft's own noise needs, or `max_epsilon` if it does.

    Raises:
        ValueError: If the noise is chosen later, or spends more than `max_epsilon`.
    """
    if draft.noise.adaptive:
        raise IncompatibleOptions(
            "a plateau decides the noise itself: leave {noise_multiplier} or {plateau} out, and "
            "calibrate the plan to a budget"
        )
    delta = draft.budget.delta
    spends = draft.tight_epsilon(draft.history)
    if max_epsilon is not None and spends > max_epsilon:
        raise OptionError(_too_much(draft, spends, max_epsilon))
    # A margin above rounding: the same plan must fit on another machine too.
    return PrivacyBudget(epsilon=max_epsilon or max(spends * (1.0 + 1e-9), 1e-9), delta=delta)


def _too_much(draft: PrivacyPlan, spends: float, allowed: float) -> str:
    advice = "leave {noise_multiplier} out and it is calibrated"
    multiplier = draft.noise.multiplier
    rounds = draft.rounds_at(multiplier)
    if len(rounds) == 1:  # with noise that changes, fewer rounds are other rounds
        fits = affordable_rounds(
            draft.other_releases,
            rounds[0][0],
            allowed - 2.0 * draft.noise.slack,
            draft.event_budget.delta,
            at_most=draft.charged_rounds,
            neighboring_relation=draft.neighboring_relation,
        )
        advice = f"plan at most {fits} rounds, or {advice}"
    return (
        f"{draft.rounds} {{rounds}} at {{noise_multiplier={multiplier:.4g}}} spend epsilon "
        f"{spends:.4g}, more than the budget of {allowed:.4g}: {advice}"
    )


def _gaussian_noise(
    budget: PrivacyBudget, rounds: int, before: FrozenHistory, relation: NeighboringRelation
) -> float:
    """Return the noise of `rounds` Gaussians that fill a Gaussian DP filter.

    The squares of mu add up, to that of the whole budget.
    """
    left = gaussian_noise_multiplier(budget.epsilon, budget.delta) ** -2
    for event, count in before:
        assert isinstance(event, GaussianEvent)  # the caller has checked
        left -= count * mu_squared(event, relation)
    if left <= 0.0:
        raise ValueError(f"the other releases spend all of epsilon {budget.epsilon}")
    return relation.distance * math.sqrt(rounds / left)


def _renyi_noise(draft: PrivacyPlan) -> float:
    """Return the least noise whose releases fit by Renyi DP, at its best order."""
    low, high = 1e-2, 1.0
    budget, relation = draft.budget, draft.neighboring_relation
    if math.isinf(renyi_epsilon(draft.rounds_at(1.0), budget.delta, relation)):
        raise IncompatibleOptions(
            f"these rounds have no Renyi bound under {relation} neighbours, and noise that reacts "
            "to a {plateau} needs one: use zero-out neighbours, no sampling, or a declared "
            "schedule",
            options=("sampling", "neighboring_relation"),
        )

    def fits(noise: float) -> bool:
        total = freeze([*draft.rounds_at(noise), *draft.other_releases])
        return renyi_epsilon(total, budget.delta, relation) <= budget.epsilon

    while not fits(high):
        low, high = high, 2.0 * high
        if high > 1e6:
            raise ValueError(f"no noise reaches epsilon {budget.epsilon} by Renyi DP")
    while high / low > 1.0 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
