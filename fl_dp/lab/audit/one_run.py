"""One run, many canaries: a lower bound on epsilon from guesses about the canaries of one training.

Each canary was put in or left out by a fair coin of its own. After the training an adversary
guesses some of the coins, those that it is surest of, and leaves out the others. Under
(epsilon, delta) it is right about each with a probability of at most `e^epsilon / (1 + e^epsilon)`,
whatever it knows of the other coins, but for what delta adds.

    >>> epsilon_of_guesses(canaries=1000, guesses=100, right=95, alpha=0.05, delta=1e-5)
    2.165...

Reference:
    Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", arXiv
    2305.08846, theorem 5.2 and appendix D. `one_run_curve.py` has the refinement for f-DP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom

from fl_dp.accounting.trade_off import TradeOff
from fl_dp.mechanisms.checks import require_probability

from .bounds import gaussian_epsilon_of, largest_refuted
from .one_run_curve import mu_of_guesses, refutes
from .verdict import Finding

_LARGEST = 60.0  # epsilon beyond which nobody looks


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
