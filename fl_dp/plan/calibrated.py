"""The least noise with which a plan's releases fit its budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fl_dp.accounting import NeighboringRelation, PrivacyBudget, freeze
from fl_dp.accounting.calibration import affordable_rounds, calibrate_noise
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.filters import best_filter_order
from fl_dp.accounting.gaussian_formulas import gaussian_noise_multiplier, mu_squared
from fl_dp.accounting.renyi import renyi_epsilon
from fl_dp.mechanisms.events import GaussianEvent
from fl_dp.option_errors import IncompatibleOptions

from .noise import CentralNoise, Noise


@dataclass(frozen=True, kw_only=True)
class PlannedReleases:
    """The releases that a budget pays for, as functions of the noise that is looked for.

    Attributes:
        rounds_at: Returns what the charged rounds are at a least noise multiplier.
        charged_rounds: Rounds that one client is charged for at most.
        others: What else is released under the budget.
        budget: The part of the plan's budget that events may spend.
        relation: Which populations are neighbours.
    """

    rounds_at: Callable[[float], FrozenHistory]
    charged_rounds: int
    others: FrozenHistory
    budget: PrivacyBudget
    relation: NeighboringRelation


def calibrated_noise(noise: Noise, planned: PlannedReleases) -> Noise:
    """Return the noise, made so large that all rounds and other releases fit their budget.

    Where the noise is chosen later: so large that as many rounds at its base multiplier fit the
    filter, whose order is fixed here.

    Raises:
        ValueError: If the budget can't be reached.
    """
    if not noise.adaptive:
        multiplier = calibrate_noise(
            planned.rounds_at,
            planned.budget.epsilon,
            planned.budget.delta,
            already_spent=planned.others,
            neighboring_relation=planned.relation,
            what=f"in {planned.charged_rounds} rounds",
        )
        return replace(noise, multiplier=multiplier)
    # Gaussian DP is exact for Gaussians; a sampled one has none, and is bounded by Renyi DP.
    releases = (*planned.rounds_at(1.0), *planned.others)
    if all(isinstance(event, GaussianEvent) for event, _ in releases):
        multiplier = _gaussian_noise(planned)
    else:
        multiplier = _renyi_noise(planned)
    return with_filter_order(replace(noise, multiplier=multiplier), planned)


def with_filter_order(noise: Noise, planned: PlannedReleases) -> Noise:
    """Return noise that is chosen later with the order of its filter, fixed beforehand.

    That is the order at which all planned releases spend least; None for Gaussians alone, whose
    filter needs none.

    Raises:
        ValueError: If a release has no Renyi bound.
    """
    assert isinstance(noise, CentralNoise)  # no other noise is chosen later
    releases = [*planned.rounds_at(noise.multiplier), *planned.others]
    if all(isinstance(event, GaussianEvent) for event, _ in releases):
        return replace(noise, filter_order=None)
    order = best_filter_order(releases, planned.budget.delta, neighboring_relation=planned.relation)
    return replace(noise, filter_order=order)


def fitting_rounds(noise: Noise, planned: PlannedReleases, epsilon: float) -> int | None:
    """Return how many of the rounds fit an epsilon at the noise as it is.

    None where the noise changes over the rounds: fewer rounds would be other rounds.
    """
    rounds = planned.rounds_at(noise.multiplier)
    if len(rounds) != 1:
        return None
    return affordable_rounds(
        planned.others,
        rounds[0][0],
        epsilon - 2.0 * noise.slack,
        planned.budget.delta,
        at_most=planned.charged_rounds,
        neighboring_relation=planned.relation,
    )


def _gaussian_noise(planned: PlannedReleases) -> float:
    """Return the noise of Gaussian rounds that fill a Gaussian DP filter.

    The squares of mu add up, to that of the whole budget.
    """
    budget, relation = planned.budget, planned.relation
    left = gaussian_noise_multiplier(budget.epsilon, budget.delta) ** -2
    for event, count in planned.others:
        assert isinstance(event, GaussianEvent)  # the caller has checked
        left -= count * mu_squared(event, relation)
    if left <= 0.0:
        raise ValueError(f"the other releases spend all of epsilon {budget.epsilon}")
    return relation.distance * math.sqrt(planned.charged_rounds / left)


def _renyi_noise(planned: PlannedReleases) -> float:
    """Return the least noise whose releases fit by Renyi DP, at its best order."""
    low, high = 1e-2, 1.0
    budget, relation = planned.budget, planned.relation
    if math.isinf(renyi_epsilon(planned.rounds_at(1.0), budget.delta, relation)):
        raise IncompatibleOptions(
            f"these rounds have no Renyi bound under {relation} neighbours, and noise that reacts "
            "to a {plateau} needs one: use zero-out neighbours, no sampling, or a declared "
            "schedule",
            options=("sampling", "neighboring_relation"),
        )

    def fits(noise: float) -> bool:
        total = freeze([*planned.rounds_at(noise), *planned.others])
        return renyi_epsilon(total, budget.delta, relation) <= budget.epsilon

    while not fits(high):
        low, high = high, 2.0 * high
        if high > 1e6:
            raise ValueError(f"no noise reaches epsilon {budget.epsilon} by Renyi DP")
    while high / low > 1.0 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
