"""One run, many canaries: what guesses about the canaries of one training say of its privacy.

Each canary was put in or left out by a fair coin of its own. After the training an adversary
guesses some of the coins, those that it is surest of, and leaves out the others.

Against (epsilon, delta) (Steinke et al.): the adversary is right about each with a probability of
at most `e^epsilon / (1 + e^epsilon)`, whatever it knows of the other coins, but for what delta
adds.

    >>> epsilon_of_guesses(canaries=1000, guesses=100, right=95, alpha=0.05, delta=1e-5)
    2.165...

Against a trade-off curve (Mahloujifar et al.): (epsilon, delta) stands for a law of two cases, and
delta for a chance to learn everything. A curve says more, so the same guesses show more, and at any
confidence.

    >>> refutes(trade_off(history), canaries=1000, guesses=100, right=99, alpha=1e-6)

Let `p_j` be the probability of j right guesses. Where the guess about one canary is right, turning
its coin round makes it wrong; the curve bounds how much likelier the one may be than the other. So
with `r_i = sum_{j >= i} (j / m) p_j` and `h_i = sum_{j >= i} ((c - j) / m) p_j`, for m canaries and
c guesses, `r_{i+1} <= curve(h_i)`, and `r_0 + h_0 = c / m`. From the tail that was seen, the least
`r_0 + h_0` is followed downwards: if it is above `c / m`, the tail was less likely than alpha.

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


_PLACES = 5000  # of a curve, on either side


def p_value_of_guesses(
    epsilon: float, delta: float, *, canaries: int, guesses: int, right: int
) -> float:
    """Return an upper bound on the probability of `right` guesses under (epsilon, delta).

    Args:
        epsilon: At least 0.
        delta: In [0, 1).
        canaries: Coins that were flipped.
        guesses: Coins that were guessed.
        right: Guesses that were right.

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
    """Return the largest epsilon that the number of right guesses refutes, or 0.

    Args:
        canaries: Coins that were flipped.
        guesses: Coins that were guessed.
        right: Guesses that were right.
        alpha: Probability that the bound is too large.
        delta: Of the guarantee.

    Raises:
        ValueError: As `p_value_of_guesses`, or if alpha is not in (0, 1).
    """
    require_probability(alpha=alpha)

    def refuted(epsilon: float) -> bool:
        value = p_value_of_guesses(epsilon, delta, canaries=canaries, guesses=guesses, right=right)
        return value <= alpha

    return largest_refuted(refuted, most=_LARGEST, within=1e-7)


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


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Guesses about coins, the surest ones.

    Attributes:
        count: How many coins were guessed.
        right: How many of them rightly.
    """

    count: int
    right: int


def guess(scores: NDArray[np.float64], there: NDArray[np.bool_], *, count: int) -> Guesses:
    """Guess the coins of the highest scores to be in and those of the lowest to be out.

    Args:
        scores: One for each canary, larger where it seems to have been in.
        there: The coins.
        count: How many coins to guess, half of them at either end.

    Raises:
        ValueError: If there are fewer canaries than guesses.
    """
    if not 2 <= count <= len(scores):
        raise ValueError(f"can guess between 2 and {len(scores)} coins, got {count}")
    order = np.argsort(scores, kind="stable")
    low, high = order[: count // 2], order[len(order) - (count - count // 2) :]
    return Guesses(count=count, right=int((~there[low]).sum() + there[high].sum()))


def finding_of_one_run(
    scores: NDArray[np.float64],
    there: NDArray[np.bool_],
    *,
    claim: float,
    delta: float,
    alpha: float,
    curve: TradeOff | None = None,
    shares: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4),
) -> Finding:
    """Return what one training is proof of, the best of several numbers of guesses.

    Each number has its share of alpha, so that choosing the best costs what it should.

    Args:
        scores: One for each canary, larger where it seems to have been in.
        there: The coins, fair and independent.
        claim: Epsilon that is claimed for one canary.
        delta: Of the claim.
        alpha: Probability that a training that keeps its claim is accused.
        curve: Trade-off curve of what was charged: the guesses are compared with it, too, and a
            Gaussian bound that contradicts a curve that holds is left out.
        shares: Of the canaries, that are guessed.

    Raises:
        ValueError: If there are too few canaries, or scores that are not finite.
    """
    if not np.isfinite(scores).all():
        raise ValueError("scores of canaries must be finite")
    canaries = len(scores)
    counts = sorted({max(2, round(share * canaries)) for share in shares})
    # Each number of guesses has its part, and so has each of two ways to judge it.
    level = alpha / len(counts) / (1 if curve is None else 2)

    def bound(count: int, right: int) -> float:
        return epsilon_of_guesses(
            canaries=canaries,
            guesses=count,
            right=right,
            alpha=level,
            delta=delta,
        )

    def seen(each: Guesses) -> dict[str, Any]:
        return {"canaries": canaries, "guesses": each.count, "right": each.right, "alpha": level}

    made = [guess(scores, there, count=count) for count in counts]
    bounds = [bound(each.count, each.right) for each in made]
    best = int(np.argmax(bounds))
    shown, caught = {"one_run": bounds[best]}, False
    if curve is not None:
        caught = any(refutes(curve, **seen(each)) for each in made)
        mu = max(mu_of_guesses(**seen(each)) for each in made)
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
        seen=f"{made[best].right} of {made[best].count} guesses right, of {canaries} canaries",
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
