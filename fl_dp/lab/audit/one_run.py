"""Audit of one run with many canaries: guesses about their coins bound its privacy.

A fair coin puts each canary in or leaves it out. After the training an adversary guesses the coins
it is surest of.

Against (epsilon, delta) (Steinke et al.): whatever the adversary knows of the other coins, it is
right with probability at most `e^epsilon / (1 + e^epsilon)`, apart from delta.

    >>> epsilon_of_guesses(canaries=1000, guesses=100, right=95, alpha=0.05, delta=1e-5)
    2.165...

Against a trade-off curve (Mahloujifar et al.), the same guesses show more, at any confidence.

    >>> refutes(trade_off(history), canaries=1000, guesses=100, right=99, alpha=1e-6)

Let `p_j` be the probability of j right guesses, for m canaries and c guesses. Turn the coin of a
rightly guessed canary, and the guess is wrong; the curve bounds the ratio of both. So with
`r_i = sum_{j >= i} (j / m) p_j` and `h_i = sum_{j >= i} ((c - j) / m) p_j`, `r_{i+1} <=
curve(h_i)`, and `r_0 + h_0 = c / m`. From the observed tail, the least `r_0 + h_0` is followed
downwards: above `c / m`, the tail was less likely than alpha.

References:
    Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", arXiv
        2305.08846, theorem 5.2 and appendix D.
    Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run", arXiv
        2410.22235, theorem 9 and algorithm 3, for coins with two sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom

from fl_dp.accounting.trade_off import TradeOff, gaussian_trade_off
from fl_dp.option_errors import require_probability

from .lower_bounds import gaussian_epsilon_of, largest_refuted
from .verdict import Finding

_LARGEST = 60.0  # largest epsilon that is tried
_LARGEST_MU = 30.0
_POINTS = 5000  # of a curve, on either side


def p_value_of_guesses(
    epsilon: float, delta: float, *, canaries: int, guesses: int, right: int
) -> float:
    """An upper bound on the probability of `right` or more right guesses under (epsilon, delta).

    `canaries` coins are flipped, `guesses` of them guessed. Epsilon is at least 0, delta in
    [0, 1).

    Raises:
        ValueError: If the counts contradict each other.
    """
    if not 0 <= right <= guesses <= canaries:
        raise ValueError(
            f"need right <= guesses <= canaries, got {right}, {guesses} and {canaries}"
        )
    chance = float(expit(epsilon))
    beta = float(binom.sf(right - 1, guesses, chance))
    if delta == 0.0:
        return min(beta, 1.0)
    # alpha = max over i of P[right - i <= Bin < right] / i
    fewer = np.arange(1, right + 1)
    below = np.cumsum(binom.pmf(right - fewer, guesses, chance))
    most = float((below / fewer).max(initial=0.0))
    return min(beta + 2.0 * canaries * delta * most, 1.0)


def epsilon_of_guesses(
    *, canaries: int, guesses: int, right: int, alpha: float, delta: float
) -> float:
    """The largest epsilon that the right guesses refute, or 0.

    It is too large with probability at most `alpha`. For the counts see `p_value_of_guesses`.

    Raises:
        ValueError: As `p_value_of_guesses`, or if alpha is not in (0, 1).
    """
    require_probability(alpha=alpha)

    def refuted(epsilon: float) -> bool:
        value = p_value_of_guesses(epsilon, delta, canaries=canaries, guesses=guesses, right=right)
        return value <= alpha

    return largest_refuted(refuted, most=_LARGEST, within=1e-7)


def refutes(curve: TradeOff, *, canaries: int, guesses: int, right: int, alpha: float) -> bool:
    """Whether so many right guesses have probability at most alpha under a curve.

    `curve` is the claimed trade-off curve; as guesses are of both kinds, the larger of it and its
    mirror image counts. A mechanism that keeps it is accused with probability at most `alpha`.
    Which coins are guessed may depend on everything but the coins. For the counts see
    `p_value_of_guesses`.

    Raises:
        ValueError: If the counts contradict each other, or alpha is not in (0, 1).
    """
    return _refutes(*_both_ways(curve), canaries, guesses, right, alpha)


def mu_of_guesses(*, canaries: int, guesses: int, right: int, alpha: float) -> float:
    """The largest mu of Gaussian DP that the right guesses refute, or 0.

    A bound for mechanisms with a Gaussian trade-off curve.

    Raises:
        ValueError: As `refutes`.
    """

    def refuted(mu: float) -> bool:
        # Its own mirror image, and concave.
        return _refutes(*_above(gaussian_trade_off(mu)), canaries, guesses, right, alpha)

    return largest_refuted(refuted, most=_LARGEST_MU, within=1e-3)


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Guesses about the coins that the adversary is surest of, and how many are right."""

    count: int
    right: int


def guess(scores: NDArray[np.float64], included: NDArray[np.bool_], *, count: int) -> Guesses:
    """Guess that the canaries with the highest scores are in, those with the lowest out.

    Half of the `count` guesses are at either end; `included` are the coins.

    Raises:
        ValueError: If there are fewer than two guesses, or more than canaries.
    """
    if not 2 <= count <= len(scores):
        raise ValueError(f"can guess between 2 and {len(scores)} coins, got {count}")
    order = np.argsort(scores, kind="stable")
    low, high = order[: count // 2], order[len(order) - (count - count // 2) :]
    return Guesses(count=count, right=int((~included[low]).sum() + included[high].sum()))


def finding_of_one_run(
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    *,
    claim: float,
    delta: float,
    alpha: float,
    curve: TradeOff | None = None,
    shares: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4),
) -> Finding:
    """Return what one training proves, by the best of several numbers of guesses.

    Each number has its share of alpha: that pays for choosing the best.

    Scores are larger where a canary seems in; `included` are the coins, fair and independent.
    `claim` is one canary's epsilon at `delta`. A training that keeps it is accused with
    probability `alpha`. Guesses are compared with `curve`, of the charges, too. A Gaussian bound
    that contradicts a curve that holds is left out. The `shares` are of canaries to guess.

    Raises:
        ValueError: If there are too few canaries, or a score is not finite.
    """
    if not np.isfinite(scores).all():
        raise ValueError("scores of canaries must be finite")
    canaries = len(scores)
    counts = sorted({max(2, round(share * canaries)) for share in shares})
    # Each number of guesses has its part, and so has each of two ways to judge it.
    judgements = 1 if curve is None else 2
    level = alpha / len(counts) / judgements

    def bound(count: int, right: int) -> float:
        return epsilon_of_guesses(
            canaries=canaries,
            guesses=count,
            right=right,
            alpha=level,
            delta=delta,
        )

    def arguments(trial: Guesses) -> dict[str, Any]:
        return {"canaries": canaries, "guesses": trial.count, "right": trial.right, "alpha": level}

    trials = [guess(scores, included, count=count) for count in counts]
    bounds = [bound(trial.count, trial.right) for trial in trials]
    best = int(np.argmax(bounds))
    shown, caught = {"one_run": bounds[best]}, False
    if curve is not None:
        caught = any(refutes(curve, **arguments(trial)) for trial in trials)
        mu = max(mu_of_guesses(**arguments(trial)) for trial in trials)
        gaussian = gaussian_epsilon_of(mu, delta=delta)
        if caught or gaussian <= claim:
            shown["one_run_gaussian"] = gaussian
    return Finding(
        name="records in one run",
        alpha=alpha,
        claim=claim,
        delta=delta,
        bounds=shown,
        caught=caught,
        observed=(
            f"{trials[best].right} of {trials[best].count} guesses right, of {canaries} canaries"
        ),
        power=f"shows epsilon {max(bound(count, count) for count in counts):.3g} at most",
    )


def _refutes(
    alarms: NDArray[np.float64],
    hits: NDArray[np.float64],
    canaries: int,
    guesses: int,
    right: int,
    alpha: float,
) -> bool:
    if not 0 <= right <= guesses <= canaries or guesses < 1:
        raise ValueError(
            f"need right <= guesses <= canaries, got {right}, {guesses} and {canaries}"
        )
    require_probability(alpha=alpha)
    if 2 * right <= guesses:
        return False
    # h_right and r_right, with the tail's probability alpha at exactly `right` right guesses.
    wrong, good = alpha * (guesses - right) / canaries, alpha * right / canaries
    for i in range(right - 1, -1, -1):
        # The least h_i with curve(h_i) >= r_(i+1).
        larger = max(wrong, float(np.interp(good, hits, alarms)))
        good += i / (guesses - i) * (larger - wrong)
        wrong = larger
        if good + wrong > guesses / canaries:
            return True
    return False


def _both_ways(curve: TradeOff) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points of the least concave curve above a curve and its mirror image.

    The mirror image is of an adversary who says "without" instead. Only a concave curve holds for
    means over canaries.
    """
    alarms, hits = _above(curve)
    x = np.concatenate([alarms, 1.0 - hits])
    y = np.concatenate([hits, 1.0 - alarms])
    order = np.lexsort((y, x))
    return _concave_above(x[order], y[order])


def _above(curve: TradeOff) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points whose connecting lines lie closely above a concave curve."""
    small = np.logspace(-15.0, np.log10(0.5), _POINTS)
    alarms = np.concatenate([[0.0], small, 1.0 - small[-2::-1], [1.0]])
    hits = np.maximum.accumulate(np.asarray(curve(alarms), dtype=np.float64))
    # Each point has the height of the next: a chord between two would lie below the curve.
    return alarms, np.append(hits[1:], 1.0)


def _concave_above(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The corners of the least concave curve above points, ascending in x."""
    corners: list[int] = []
    for point in range(len(x)):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (y[b] - y[a]) * (x[point] - x[a]) > (y[point] - y[a]) * (x[b] - x[a]):
                break
            corners.pop()
        corners.append(point)
    return x[corners], y[corners]
