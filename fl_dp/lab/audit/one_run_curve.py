"""One run against a trade-off curve: what right guesses about canaries say of f-DP.

    >>> refutes(trade_off(history), canaries=1000, guesses=100, right=99, alpha=1e-6)

The one-run bound of `one_run.py` takes (epsilon, delta) for a law of two cases, and delta for a
chance to learn everything. A trade-off curve says more, so the same guesses show more, and at any
confidence.

Let `p_j` be the probability of j right guesses. Where the guess about one canary is right, turning
its coin round makes it wrong; the curve bounds how much likelier the one may be than the other. So
with `r_i = sum_{j >= i} (j / m) p_j` and `h_i = sum_{j >= i} ((c - j) / m) p_j`, for m canaries and
c guesses, `r_{i+1} <= curve(h_i)`, and `r_0 + h_0 = c / m`. From the tail that was seen, the least
`r_0 + h_0` is followed downwards: if it is above `c / m`, the tail was less likely than alpha.

Reference:
    Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run", arXiv
    2410.22235, theorem 9 and algorithm 3, for coins with two sides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting.trade_off import TradeOff, gaussian_trade_off
from fl_dp.mechanisms.checks import require_probability

from .bounds import largest_refuted

_LARGEST_MU = 30.0
_PLACES = 5000  # of a curve, on either side


def refutes(curve: TradeOff, *, canaries: int, guesses: int, right: int, alpha: float) -> bool:
    """Tell whether that many right guesses have a probability of at most alpha under a curve.

    Args:
        curve: The claimed one; of it and of the one that tells without from with, the larger
            counts, since guesses are made of either kind.
        canaries: Coins that were flipped.
        guesses: Coins that were guessed; which ones may depend on everything but the coins.
        right: Guesses that were right.
        alpha: Probability that a mechanism that keeps its claim is accused.

    Raises:
        ValueError: If the counts contradict each other, or alpha is not in (0, 1).
    """
    return _refutes(*_both_ways(curve), canaries, guesses, right, alpha)


def mu_of_guesses(*, canaries: int, guesses: int, right: int, alpha: float) -> float:
    """Return the largest mu of Gaussian DP that the number of right guesses refutes, or 0.

    It is a bound for mechanisms whose trade-off curve is a Gaussian's.

    Raises:
        ValueError: As `refutes`.
    """

    def refuted(mu: float) -> bool:
        # Its own mirror image, and concave.
        return _refutes(*_above(gaussian_trade_off(mu)), canaries, guesses, right, alpha)

    return largest_refuted(refuted, most=_LARGEST_MU, within=1e-3)


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
        more = max(wrong, float(np.interp(good, hits, alarms)))
        good += i / (guesses - i) * (more - wrong)
        wrong = more
        if good + wrong > guesses / canaries:
            return True
    return False


def _both_ways(curve: TradeOff) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return places of the least concave curve above a curve and its mirror image.

    The mirror image is that of the adversary who says "without": it is wrong where the other was
    right. Only a concave curve holds for means over canaries.
    """
    alarms, hits = _above(curve)
    x = np.concatenate([alarms, 1.0 - hits])
    y = np.concatenate([hits, 1.0 - alarms])
    order = np.lexsort((y, x))
    return _concave_above(x[order], y[order])


def _above(curve: TradeOff) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return places between which straight lines lie above a concave curve, closely."""
    small = np.logspace(-15.0, np.log10(0.5), _PLACES)
    alarms = np.concatenate([[0.0], small, 1.0 - small[-2::-1], [1.0]])
    hits = np.maximum.accumulate(np.asarray(curve(alarms), dtype=np.float64))
    # Each place has the height of the next: a chord between two would lie below the curve.
    return alarms, np.append(hits[1:], 1.0)


def _concave_above(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the corners of the least concave curve above points in ascending order of x."""
    kept: list[int] = []
    for place in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (y[b] - y[a]) * (x[place] - x[a]) > (y[place] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(place)
    return x[kept], y[kept]
