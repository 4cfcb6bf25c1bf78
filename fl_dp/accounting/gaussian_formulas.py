"""Closed forms for the Gaussian mechanism without sampling, and formulas that are still in use.

The analytic calibration is exact at every epsilon (Balle and Wang 2018, "Improving the Gaussian
Mechanism for Differential Privacy", theorem 8). The classic `sqrt(2 ln(1.25/delta)) / epsilon` was
proved for epsilon below 1. There it wastes 30 to 58 % of the noise at delta 1e-5; above about 8 it
adds too little. It is here only for comparison, like the naive split of a budget over rounds.
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting import get_epsilon_gaussian, get_sigma_gaussian
from numpy.typing import NDArray

from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.option_errors import require_positive, require_probability, require_rate

from .budget import NeighboringRelation, PrivacyBudget
from .events import FixedSizeGaussianEvent
from .noise_schedule import NoiseSchedule


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier of one (epsilon, delta)-DP Gaussian release.

    Args:
        epsilon: Positive and finite.
        delta: In (0, 1).

    Returns:
        Noise standard deviation over the L2 sensitivity.

    Raises:
        ValueError: If an argument is out of range.
    """
    _check(epsilon, delta)
    with np.errstate(divide="ignore"):  # a delta of zero, whose logarithm is compared
        return float(get_sigma_gaussian(epsilon, delta))


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The exact epsilon at `delta` of one Gaussian release, 0 if the noise is that large.

    Several releases are one of multiplier `1 / sqrt(sum of 1 / noise_multiplier^2)`.

    Raises:
        ValueError: If an argument is out of range.
    """
    require_probability(delta=delta)
    if not noise_multiplier > 0:
        raise ValueError(f"noise_multiplier must be positive, got {noise_multiplier}")
    if math.isinf(noise_multiplier):
        return 0.0
    with np.errstate(divide="ignore"):  # as above
        return float(get_epsilon_gaussian(noise_multiplier, delta))


def fixed_size_distance(neighboring_relation: NeighboringRelation) -> int:
    """The largest distance of two neighbours' fixed-size sums, in clipping norms.

    A unit of a public roster that contributes zero stays in the sample. Another replaces one that
    leaves the population: the sum moves as if its data were replaced.
    """
    return 1 if neighboring_relation is NeighboringRelation.ZERO_OUT else 2


def mu_squared(
    event: GaussianEvent | FixedSizeGaussianEvent, neighboring_relation: NeighboringRelation
) -> float:
    """One release's squared mu in Gaussian DP; those of several add up, exactly.

    `(distance / noise_multiplier)^2`; a sample of fixed size is charged without amplification.
    """
    distance = neighboring_relation.distance
    if isinstance(event, FixedSizeGaussianEvent):
        distance = fixed_size_distance(neighboring_relation)
    return (distance / event.noise_multiplier) ** 2


def loss_of_mixture(
    x: NDArray[np.float64], z: float | NDArray[np.float64], q: float
) -> NDArray[np.float64]:
    """The privacy loss at `x` of `(1-q) N(0, z^2) + q N(1, z^2)` against `N(0, z^2)`.

    `log(1 - q + q e^((2x-1)/(2 z^2)))`: that of a Gaussian on a Poisson sample of rate q.
    """
    loss: NDArray[np.float64] = np.logaddexp(
        log1m(q), math.log(q) + (2.0 * x - 1.0) / (2.0 * z * z)
    )
    return loss


def log1m(q: float) -> float:
    """`log(1 - q)`, minus infinity at 1."""
    return math.log1p(-q) if q < 1.0 else -math.inf


def classic_noise_multiplier(epsilon: float, delta: float) -> float:
    """The classic multiplier, for comparison; `gaussian_noise_multiplier` is never larger.

    Raises:
        ValueError: If epsilon is above 1, where the classic proof does not hold, or out of range.

    Reference:
        Dwork and Roth 2014, theorem A.1.
    """
    _check(epsilon, delta)
    if epsilon > 1.0:
        raise ValueError(
            f"the classic formula is proved for epsilon up to 1, got {epsilon}: "
            "use gaussian_noise_multiplier, which is exact everywhere"
        )
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def udp_sigma(epsilon: float, delta: float, *, participation_rate: float, rounds: int) -> float:
    """Reproduce the heuristic `sqrt(2 q T ln(1/delta)) / epsilon` of user-level DP.

    It charges *expected* participations, though the server sees the actual ones, and drops a term
    of the moments bound. Instead, cap a client's participations at `k` and use
    `sqrt(k) * gaussian_noise_multiplier(epsilon, delta)`.

    Returns:
        Noise standard deviation over the sensitivity, in each upload.

    Raises:
        ValueError: If an argument is out of range.

    Reference:
        Wei et al. 2020, "User-Level Privacy-Preserving Federated Learning", arXiv 2003.00229.
    """
    _check(epsilon, delta)
    require_rate(participation_rate=participation_rate)
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    return math.sqrt(2.0 * participation_rate * rounds * math.log(1.0 / delta)) / epsilon


def exposures_noise_multiplier(epsilon: float, delta: float, *, exposures: int) -> float:
    """Reproduce the literature's noise of each of a client's `exposures` uploads.

    `exposures * sqrt(2 ln(1.25/delta)) / epsilon` is the classic Gaussian, the budget split
    evenly. It grows with the uploads; exact composition grows with their root. Its proof ends
    where one upload's share of epsilon exceeds 1.

    Returns:
        Noise standard deviation over the sensitivity, in each upload.

    Raises:
        ValueError: If an argument is out of range.

    Reference:
        Wei et al. 2020, "Federated Learning with Differential Privacy: Algorithms and Performance
        Analysis", arXiv 1911.00222, section III.
    """
    _check(epsilon, delta)
    if exposures < 1:
        raise ValueError(f"exposures must be at least 1, got {exposures}")
    return exposures * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def _check(epsilon: float, delta: float) -> None:
    require_positive(epsilon=epsilon)
    require_probability(delta=delta)


def naive_split(budget: PrivacyBudget, schedule: NoiseSchedule, rounds: int) -> tuple[float, ...]:
    """Each round's noise multiplier under the naive split, for comparison.

    A schedule is read as epsilons that add up, each at an equal share of delta. Each becomes noise
    on its own, without composition or sampling: by the classic formula up to epsilon 1, by the
    analytic one above.

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
