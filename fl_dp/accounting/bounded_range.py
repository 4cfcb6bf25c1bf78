"""Tight curves of the exponential mechanism.

A mechanism has bounded range epsilon if its log-likelihood ratios, over all outputs, lie within an
interval of that length. The worst pair of neighbours has two outputs, with losses `t` and
`t - epsilon`. The first has probability `(e^epsilon - e^t) / (e^epsilon - 1)`, for some `t` in
[0, epsilon] (Dong, Durfee and Rogers 2020, "Optimal Differential Privacy Composition for
Exponential Mechanisms"). Both curves below take each point's worst `t`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar


def bounded_range_delta(epsilon: float, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """The privacy profile: the smallest delta for each epsilon in `at`.

    `(1 - e^((at - epsilon)/2))^2 / (1 - e^-epsilon)` inside [-epsilon, epsilon].
    """
    inside = np.expm1((np.minimum(at, epsilon) - epsilon) / 2.0) ** 2 / -math.expm1(-epsilon)
    return np.where(at <= -epsilon, -np.expm1(np.minimum(at, 0.0)), inside)


def bounded_range_renyi(epsilon: float, order: float) -> float:
    """The largest Renyi divergence of that order (above 1); at most `order epsilon^2 / 8`.

    For a small epsilon, where float64 can't distinguish the two, it is that bound.
    """
    bound = order * epsilon**2 / 8.0
    if order * epsilon < 1e-3:
        return bound

    def negative(t: float) -> float:
        first = math.expm1(t - epsilon) / math.expm1(-epsilon)
        return -float(
            np.logaddexp(
                math.log(max(first, 1e-300)) + (order - 1.0) * t,
                math.log(max(1.0 - first, 1e-300)) + (order - 1.0) * (t - epsilon),
            )
        ) / (order - 1.0)

    # The maximum is flat and single: a coarse grid brackets it, the search refines it.
    grid = np.linspace(0.0, epsilon, 65)
    best = int(np.argmin([negative(float(t)) for t in grid]))
    low, high = grid[max(0, best - 1)], grid[min(64, best + 1)]
    refined = minimize_scalar(
        negative, bounds=(low, high), method="bounded", options={"xatol": 1e-12 * epsilon}
    )
    # The search's shortfall is second order in its tolerance; the margin covers it.
    exact = max(-float(refined.fun), -negative(float(grid[best])))
    return min(bound, exact * (1.0 + 1e-9) + 1e-14)


def additive_gumbel_delta(
    epsilon: float, at: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both profiles of one score with standard Gumbel noise, lowered by `epsilon`.

    Noisy scores determine their top, so this bounds the top `k` of one set of one-coordinate
    scores for every `k`.

    Returns:
        Delta at each epsilon in `at`: lowered score against the other, then the reverse.
    """
    shift = math.expm1(epsilon)
    with np.errstate(over="ignore", invalid="ignore"):
        # Over e^-x the noisy scores are exponentials of rates 1 and e^-epsilon; the likelihood
        # ratio is monotone, so each profile is a difference of two tails at one point.
        c = (at + epsilon) / shift
        lowered = np.exp(-np.maximum(c, 0.0)) - np.exp(at - np.maximum(c, 0.0) * math.exp(epsilon))
        c = (epsilon - at) / shift
        other = -np.expm1(-c * math.exp(epsilon)) + np.exp(at) * np.expm1(-c)
    lowered = np.where(at <= -epsilon, -np.expm1(np.minimum(at, 0.0)), lowered)
    other = np.where(at >= epsilon, 0.0, other)
    return np.clip(lowered, 0.0, 1.0), np.clip(other, 0.0, 1.0)
