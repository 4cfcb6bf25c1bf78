"""The epsilon of releases for several units together, such as all records of one person.

The promise is to one unit. Two ways lead to a group of k:

- Gaussians directly: closer. k units move an unsampled sum k times as far. A Poisson sample has a
  binomial number of them, so the pair is N(0, z^2) and the mixture of N(i, z^2) with the binomial
  probabilities of i (Choquette-Choo et al. 2024, "Privacy Amplification for Matrix Mechanisms",
  corollary 4.7: a mixture of vectors is dominated by that of their norms). Its Renyi divergences
  are integrated in both directions.
- Any (epsilon, delta) promise, k neighbours in a chain (Vadhan 2017, "The Complexity of
  Differential Privacy", lemma 2.2): k epsilon at delta (e^(k epsilon) - 1) / (e^epsilon - 1).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from scipy.stats import binom

from fl_dp.mechanisms.mechanism_events import GaussianEvent
from fl_dp.option_errors import require_count, require_probability

from .budget import NeighboringRelation
from .events import FrozenHistory, History, PoissonGaussianEvent, PrivacyEvent, freeze
from .renyi import ORDERS, renyi_epsilon

_REACH = 12.0  # standard deviations on either side of all mass: e^-72 is left out
_STEPS = 8.0  # of an integral in one width of its integrand
_MOST_POINTS = 3e4  # of an integral; an order that needs more is left out
_ROUNDING = 1e-9  # absolute and relative: more than the integrals lose
_DECADES = np.linspace(0.0, 280.0, 281)  # of delta, for one unit's share of it


def epsilon_of_group(
    history: History,
    delta: float,
    size: int,
    *,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
    slack: float = 0.0,
) -> float:
    """Return an upper bound on the epsilon of a group of `size` units; infinite if none is known.

    For parameters fixed beforehand. The group's promise has `delta`, in (0, 1);
    `neighboring_relation` is for one unit. `slack` is lambda, by which releases' log-ratios may
    differ from those of their events.

    Raises:
        ValueError: If an argument is out of range.
    """
    require_probability(delta=delta)
    require_count(size=size)
    frozen = freeze(history)
    if not frozen:
        return 0.0
    total = np.zeros(len(ORDERS))
    for event, count in frozen:
        total += count * _divergences(event, size, neighboring_relation)
    if slack or not np.isfinite(total).any():  # slack was bounded for one unit
        return _chained(frozen, delta, size, neighboring_relation, slack)
    return float(compute_epsilon(ORDERS, total, delta)[0])


def _chained(
    history: FrozenHistory, delta: float, size: int, relation: NeighboringRelation, slack: float
) -> float:
    """The least epsilon of a chain of neighbours, over shares of delta for each."""
    best = math.inf
    for one_delta in delta * 10.0**-_DECADES:
        one = renyi_epsilon(history, one_delta * math.exp(-slack), relation) + 2.0 * slack
        # log of (e^(k epsilon) - 1) / (e^epsilon - 1): a sum of k terms.
        grown = float(logsumexp(one * np.arange(size)))
        if math.isfinite(one) and math.log(one_delta) + grown <= math.log(delta):
            best = min(best, size * one)
    return best


@lru_cache(maxsize=256)
def _divergences(
    event: PrivacyEvent, size: int, relation: NeighboringRelation
) -> NDArray[np.float64]:
    """A bound on each order's Renyi divergence; infinite where none is known."""
    match event:
        case GaussianEvent() | PoissonGaussianEvent(sampling_rate=1.0):
            distance = size * relation.distance / event.noise_multiplier
            return np.array(ORDERS) * distance**2 / 2.0
        case PoissonGaussianEvent(noise_multiplier=z, sampling_rate=rate):
            if relation is not NeighboringRelation.REPLACE_ONE:
                return np.array([_of_mixture(z, rate, size, order) for order in ORDERS])
    return np.full(len(ORDERS), math.inf)


def _log_sum(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log of the sum over the first axis, of finite terms: SciPy's takes far longer."""
    largest = terms.max(axis=0)
    return np.asarray(largest + np.log(np.exp(terms - largest).sum(axis=0)))


def _of_mixture(z: float, rate: float, size: int, order: float) -> float:
    """The larger divergence of both directions between N(0, z^2) and the mixture."""
    drawn = np.arange(size + 1.0)
    log_share = binom.logpmf(drawn, size, rate)

    def losses(x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return log(mixture / N(0, z^2)) at each x."""
        terms = log_share[:, None] + (drawn[:, None] * x - drawn[:, None] ** 2 / 2.0) / z**2
        return _log_sum(terms)

    def log_moment(power: float, modes: tuple[float, float], step: float) -> float:
        """Return log E[(mixture / N(0, z^2))^power] over x ~ N(0, z^2)."""
        low, high = modes[0] - _REACH * z, modes[1] + _REACH * z
        if not (high - low) / step <= _MOST_POINTS:
            return math.inf
        x = np.arange(low, high, step)
        density = -0.5 * (x / z) ** 2 - math.log(z * math.sqrt(2.0 * math.pi))
        return float(_log_sum(power * losses(x) + density)) + math.log(step)

    # With the mixture first, the mass lies between 0 and order * size, in bells as wide as z.
    first = log_moment(order, (0.0, order * size), z / _STEPS)
    # The other way it is one bell, which curves at least as much as the normal law, around a mode.
    width = z / math.sqrt(1.0 + (order - 1.0) * (size / (2.0 * z)) ** 2)
    mode = minimize_scalar(
        lambda x: (order - 1.0) * losses(np.array([x]))[0] + 0.5 * (x / z) ** 2,
        bounds=(-(order - 1.0) * size - z, z),
        method="bounded",
        options={"xatol": width},
    ).x
    second = log_moment(1.0 - order, (mode, mode), width / _STEPS)
    largest = max(first, second, 0.0) / (order - 1.0)
    return largest * (1.0 + _ROUNDING) + _ROUNDING
