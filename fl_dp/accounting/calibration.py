"""From a target epsilon to the noise multiplier that spends it."""

from __future__ import annotations

from scipy.optimize import brentq

from .bounds import REPORTING_INTERVAL, SEARCH_INTERVAL, pld_epsilon
from .events import PoissonGaussianEvent
from .relations import NeighboringRelation

_SMALLEST, _LARGEST = 0.05, 1e4
_RELATIVE_TOLERANCE = 1e-5


def calibrate_noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    *,
    sampling_rate: float,
    rounds: int,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> float:
    """Return the smallest noise multiplier whose rounds spend at most the target.

    Args:
        target_epsilon: Positive and finite.
        target_delta: In (0, 1).
        sampling_rate: Probability of each unit in each round, in (0, 1].
        rounds: Number of equal releases, at least 1.
        neighboring_relation: Which populations are neighbours.

    Returns:
        Noise standard deviation on the sum over the clipping norm. The safe end of the bracket: its
        PLD epsilon at the reporting discretisation is at most `target_epsilon`.

    Raises:
        ValueError: If an argument is out of range, or no multiplier up to 10,000 is enough.
    """
    if not target_epsilon > 0 or target_epsilon == float("inf"):
        raise ValueError(f"epsilon must be positive and finite, got {target_epsilon}")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")

    def spent(noise_multiplier: float, interval: float) -> float:
        event = PoissonGaussianEvent(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate)
        return pld_epsilon(
            {event: rounds},
            target_delta,
            neighboring_relation=neighboring_relation,
            interval=interval,
        )

    # Doubling from a mid-range guess keeps the search away from tiny multipliers, whose privacy
    # loss distributions are long and slow.
    high = 1.0
    while spent(high, SEARCH_INTERVAL) > target_epsilon:
        high *= 2.0
        if high > _LARGEST:
            raise ValueError(
                f"no noise multiplier up to {_LARGEST:.0f} reaches epsilon {target_epsilon} at "
                f"delta {target_delta} in {rounds} rounds: allow a larger epsilon or fewer rounds"
            )
    low = high / 2.0
    while low > _SMALLEST and spent(low, SEARCH_INTERVAL) <= target_epsilon:
        high, low = low, low / 2.0
    if low <= _SMALLEST:
        return high

    def gap(noise_multiplier: float) -> float:
        return spent(noise_multiplier, SEARCH_INTERVAL) - target_epsilon

    coarse = float(brentq(gap, low, high, rtol=_RELATIVE_TOLERANCE))
    # The fine discretisation spends a little less: follow the coarse curve's slope to it, once.
    step = 1e-3 * coarse
    slope = (gap(coarse + step) - gap(coarse - step)) / (2.0 * step)
    fine = coarse + (target_epsilon - spent(coarse, REPORTING_INTERVAL)) / slope
    while spent(fine, REPORTING_INTERVAL) > target_epsilon:
        fine *= 1.0 + 1e-4
    return fine
