"""The least noise with which a plan's releases fit its budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fl_dp.accounting import NeighboringRelation, PrivacyBudget
from fl_dp.accounting.calibration import affordable_rounds, calibrate_noise
from fl_dp.accounting.events import FrozenHistory

from .noise import Noise


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

    Raises:
        ValueError: If the budget can't be reached.
    """
    multiplier = calibrate_noise(
        planned.rounds_at,
        planned.budget.epsilon,
        planned.budget.delta,
        already_spent=planned.others,
        neighboring_relation=planned.relation,
        what=f"in {planned.charged_rounds} rounds",
    )
    return replace(noise, multiplier=multiplier)


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
