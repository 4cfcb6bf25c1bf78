"""Trade-off curves: the true-positive rate that a guarantee leaves at each false-positive rate.

    >>> curve = trade_off({PoissonGaussianEvent(noise_multiplier=1.0, sampling_rate=0.05): 100})
    >>> curve(np.array([0.001, 0.01]))

An adversary sees the releases and guesses whether one unit took part; a false positive is a wrong
"yes". No adversary lies above the curve, whatever it computes.

Reference:
    Wasserman and Zhou 2010; Dong, Roth and Su 2022, "Gaussian Differential Privacy".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from fl_dp.mechanisms.mechanism_events import GaussianEvent

from .budget import NeighboringRelation
from .events import FixedSizeGaussianEvent, History, freeze
from .gaussian_formulas import mu_squared
from .loss_distributions import losses_of_removal, reporting_interval

TradeOff: TypeAlias = Callable[[ArrayLike], NDArray[np.float64]]
"""Maps false-positive rates in [0, 1] to the largest true-positive rates."""


def epsilon_delta_trade_off(epsilon: float, delta: float) -> TradeOff:
    """The curve that (epsilon, delta) alone allows.

    `min(e^epsilon FPR + delta, 1 - e^-epsilon (1 - delta - FPR))`, at most 1.

    Raises:
        ValueError: If epsilon is negative or delta not in [0, 1].
    """
    if not (epsilon >= 0.0 and 0.0 <= delta <= 1.0):
        raise ValueError(f"need epsilon >= 0 and delta in [0, 1], got {epsilon} and {delta}")

    def curve(rate: ArrayLike) -> NDArray[np.float64]:
        alarm = _rates(rate)
        # e^epsilon may overflow; 0 false positives leave delta all the same.
        with np.errstate(divide="ignore"):
            grown = np.exp(np.minimum(np.log(alarm) + epsilon, 0.0))
        complement = 1.0 - math.exp(-epsilon) * np.maximum(1.0 - delta - alarm, 0.0)
        return np.minimum(np.minimum(grown + delta, complement), 1.0)

    return curve


def gaussian_trade_off(mu: float) -> TradeOff:
    """The curve of mu-Gaussian DP: `Phi(Phi^-1(FPR) + mu)`.

    Raises:
        ValueError: If mu is negative.
    """
    if not mu >= 0.0:
        raise ValueError(f"mu must be at least 0, got {mu}")
    return lambda rate: np.asarray(ndtr(ndtri(_rates(rate)) + mu), dtype=np.float64)


def trade_off(
    history: History,
    *,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> TradeOff:
    """The curve that the releases in `history` allow together.

    Exact if all are Gaussians without sampling; otherwise from the privacy-loss distribution,
    rounded so that the curve can only lie too high.

    Raises:
        ValueError: If an event has no such distribution, or one too long to compute.
    """
    frozen = freeze(history)
    if not frozen:
        return gaussian_trade_off(0.0)
    total = 0.0
    for event, count in frozen:
        if not isinstance(event, GaussianEvent | FixedSizeGaussianEvent):
            break
        total += count * mu_squared(event, neighboring_relation)
    else:
        return gaussian_trade_off(math.sqrt(total))
    losses, mass, infinite = losses_of_removal(
        frozen, neighboring_relation, reporting_interval(frozen)
    )
    # Neyman and Pearson: the most telling outputs first. Both rates of each set of them.
    hits = np.minimum(infinite + np.cumsum(mass[::-1]), 1.0)
    with np.errstate(over="ignore"):
        alarms = np.minimum(np.cumsum(mass[::-1] * np.exp(-losses[::-1])), 1.0)
    # A false-positive rate that several sets share keeps the best of them.
    at = np.concatenate([[0.0], alarms, [1.0]])
    reached = np.concatenate([[infinite], hits, [1.0]])
    last = np.append(at[1:] > at[:-1], True)
    at, reached = at[last], reached[last]
    return lambda rate: np.interp(_rates(rate), at, reached)


def _rates(rate: ArrayLike) -> NDArray[np.float64]:
    """Rates as an array.

    Raises:
        ValueError: If one is outside [0, 1].
    """
    rates = np.asarray(rate, dtype=np.float64)
    if not ((rates >= 0.0) & (rates <= 1.0)).all():
        raise ValueError("false-positive rates lie in [0, 1]")
    return rates
