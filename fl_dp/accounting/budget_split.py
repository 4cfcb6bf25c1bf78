"""Per-round budgets and their cost: the common scheme, for comparison with one scale for all.

It reads a schedule as epsilons that add up, gives each round an equal share of delta, and turns
each share into noise on its own, without composition or sampling.
"""

from __future__ import annotations

from .budget import PrivacyBudget
from .gaussian import classic_noise_multiplier, gaussian_noise_multiplier
from .schedules import NoiseSchedule


def naive_split(budget: PrivacyBudget, schedule: NoiseSchedule, rounds: int) -> tuple[float, ...]:
    """Return each round's noise multiplier under the naive split.

    The classic formula where it holds, for a round's epsilon up to 1; the analytic one above.

    Raises:
        ValueError: If the schedule does not fit the rounds.
    """
    weights = schedule.weights_of(rounds)
    total = sum(weights)
    delta = budget.delta / rounds
    multipliers = []
    for weight in weights:
        share = budget.epsilon * weight / total
        formula = classic_noise_multiplier if share <= 1.0 else gaussian_noise_multiplier
        multipliers.append(formula(share, delta))
    return tuple(multipliers)
