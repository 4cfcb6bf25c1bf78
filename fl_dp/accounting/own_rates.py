"""Rates at which groups of units spend budgets of their own, under shared noise.

With more noise every group may take part more often. So at one noise the groups, each at the rate
that spends its budget, fill the wanted cohort on average.

Reference: Boenisch et al. 2023, "Have it your way: Individualized Privacy Assignment for DP-SGD",
algorithm 2 (Sample). There the accountant is Renyi DP, here `tight_epsilon`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from scipy.optimize import brentq

from fl_dp.option_errors import OptionError, require_rate
from fl_dp.promise import brief_epsilon

from .bounds import tight_epsilon
from .budget import NeighboringRelation
from .calibration import calibrate_noise
from .events import FrozenHistory, History, freeze
from .loss_distributions import SEARCH_INTERVAL
from .renyi import renyi_epsilon

_MOST = 0.99  # a rate of 1 would be no coin
_LEAST = 1e-9
_STEP = 0.2  # upwards, of the logarithm of a rate
_NOISE_TOLERANCE = 1e-3  # of the cohort's mean: any noise is valid with the rates that go with it
_MARGIN = 1e-9  # above rounding: the same plan must fit on another machine, too


def calibrate_own_rates(
    rounds: Callable[[float, float], History],
    *,
    budgets: Sequence[float],
    shares: Sequence[float],
    sampling_rate: float,
    delta: float,
    others: History = (),
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> tuple[float, tuple[float, ...]]:
    """The shared noise multiplier, and each group's rate.

    Args:
        rounds: Returns the charged rounds at a noise multiplier and a rate; spends less with more
            noise, more at a larger rate.
        budgets: Epsilon of each group, increasing.
        shares: Share of all units in each group; they add up to 1.
        sampling_rate: Mean rate over all units.
        delta: Delta of all groups.
        others: Releases that every group also pays for.
        neighboring_relation: Defines neighbours.

    Raises:
        ValueError: If an argument is out of range, or a group can't spend its budget.
    """
    require_rate(sampling_rate=sampling_rate)
    before = freeze(others)

    def total(noise: float, rate: float) -> FrozenHistory:
        return freeze([*before, *freeze(rounds(noise, rate))])

    def spent(noise: float, rate: float, interval: float | None) -> float:
        history = total(noise, rate)
        return tight_epsilon(
            history, delta, neighboring_relation=neighboring_relation, interval=interval
        )

    def rate_of(noise: float, epsilon: float) -> float:
        """The rate that spends a budget, by the coarse discretisation."""

        def by_renyi(log_rate: float) -> float:
            history = total(noise, math.exp(log_rate))
            return renyi_epsilon(history, delta, neighboring_relation) - epsilon

        def excess(log_rate: float) -> float:
            return spent(noise, math.exp(log_rate), SEARCH_INTERVAL) - epsilon

        # Renyi DP is quick and never allows more: the search by distributions starts above it.
        low, most = math.log(_LEAST), math.log(_MOST)
        if by_renyi(low) <= 0.0 < by_renyi(most):
            low = float(brentq(by_renyi, low, most, xtol=1e-3)) - 1e-3
        high = low
        while high < most and excess(high) <= 0.0:
            low, high = high, min(most, high + _STEP)
        if excess(high) <= 0.0:
            return _MOST
        if high > low:
            low = float(brentq(excess, low, high, xtol=1e-6))
        return math.exp(low)

    def short(log_noise: float) -> float:
        """The wanted mean rate less the actual one."""
        rates = [rate_of(math.exp(log_noise), epsilon) for epsilon in budgets]
        return sampling_rate - math.fsum(s * r for s, r in zip(shares, rates, strict=True))

    def noise_for(epsilon: float) -> float:
        """The noise at which a group with that budget takes part at the mean rate."""
        return calibrate_noise(
            lambda noise: rounds(noise, sampling_rate),
            epsilon,
            delta,
            already_spent=before,
            neighboring_relation=neighboring_relation,
        )

    # At the noise of the largest budget all others are below the mean rate, at that of the
    # smallest all are above it.
    low, high = (math.log(noise_for(epsilon)) for epsilon in (budgets[-1], budgets[0]))
    noise = math.exp(float(brentq(short, low - 1e-3, high + 1e-3, xtol=_NOISE_TOLERANCE)))
    rates = []
    for epsilon in budgets:
        rate = rate_of(noise, epsilon)
        if rate == _MOST:
            raise OptionError(
                f"clients with epsilon {brief_epsilon(epsilon)} would take part in every round and "
                f"still not spend it: lower sampling_rate={sampling_rate:g}, or their budgets",
                option="sampling_rate",
            )
        while spent(noise, rate, None) > epsilon * (1.0 - _MARGIN):
            rate *= 1.0 - 1e-5
        rates.append(rate)
    return noise, tuple(rates)
