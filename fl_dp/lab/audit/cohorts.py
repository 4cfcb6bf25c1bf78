"""Findings on cohorts: whether participation follows independent coins.

The auditor sees every cohort; the adversary does not. Inclusions have exact laws: of one unit, of
two units in one cohort, of one unit in two rounds some rounds apart. Sizes are compared with the
binomial law by the inequality of Dvoretzky, Kiefer and Wolfowitz, for any number of rounds.

Reference: Massart 1990, "The Tight Constant in the Dvoretzky-Kiefer-Wolfowitz Inequality".
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from .verdict import Finding

COHORTS = "cohorts are the Poisson samples that are charged"

_FARTHEST = 64  # rounds between two participations that are compared


def cohorts_are_poisson(asked: NDArray[np.bool_], rate: float, *, alpha: float) -> Finding:
    """Compare who took part, shape `(rounds, units)`, with a secret coin per unit and round.

    `rate` is each coin's charged probability. Such coins are accused with probability `alpha`.
    """
    rounds, units = asked.shape
    drawn = asked.astype(np.float64)
    together = (drawn.T @ drawn)[np.triu_indices(units, k=1)]
    parts = {
        "inclusions of a unit": _pvalue(drawn.sum(axis=0), rounds, rate),
        "inclusions of all": _pvalue(drawn.sum(), rounds * units, rate),
        "inclusions of two units together": _pvalue(together, rounds, rate**2),
        "inclusions again some rounds later": _again(drawn, rate),
        "sizes of cohorts": _sizes(drawn.sum(axis=1), units, rate),
    }
    least = min(parts, key=lambda part: parts[part])
    fair = alpha / len(parts)
    # Dvoretzky, Kiefer and Wolfowitz: P(sup |F_n - F| > x) <= 2 exp(-2 n x^2).
    off = math.sqrt(math.log(2.0 / fair) / (2.0 * rounds))
    smallest = f" that move the law of sizes by {off:.2g}" if off < 1.0 else ", with more rounds"
    return Finding(
        name=COHORTS,
        alpha=alpha,
        caught=parts[least] < fair,
        observed=f"{rounds} cohorts of {units} units; {least} are farthest from the law, p = "
        f"{parts[least]:.2g}",
        power=f"catches k of N, shuffled turns and shared coins{smallest}",
    )


def _pvalue(counts: NDArray[np.float64] | float, trials: int, rate: float) -> float:
    """The two-sided p-value of the count farthest from its binomial law."""
    values = np.atleast_1d(np.asarray(counts))
    if not values.size or not trials:
        return 1.0
    tails = binom.cdf(values.min(), trials, rate), binom.sf(values.max() - 1.0, trials, rate)
    return min(1.0, 2.0 * values.size * float(min(tails)))


def _again(drawn: NDArray[np.float64], rate: float) -> float:
    """The p-value of units that take part again some rounds later."""
    rounds, units = drawn.shape
    farthest = min(rounds // 2, math.ceil(2.0 / rate), _FARTHEST)
    least = 1.0
    for apart in range(1, farthest + 1):
        # Rounds 0 to apart - 1, then 2 apart to 3 apart - 1 and so on: no round is in two pairs.
        first = np.flatnonzero(np.arange(rounds - apart) // apart % 2 == 0)
        both = float((drawn[first] * drawn[first + apart]).sum())
        least = min(least, farthest * _pvalue(both, len(first) * units, rate**2))
    return least


def _sizes(sizes: NDArray[np.float64], units: int, rate: float) -> float:
    """A bound on the probability of sizes so far from the binomial law."""
    size = np.arange(units + 1)
    empirical = np.searchsorted(np.sort(sizes), size, side="right") / len(sizes)
    apart = float(np.abs(empirical - binom.cdf(size, units, rate)).max())
    return min(1.0, 2.0 * math.exp(-2.0 * len(sizes) * apart**2))
