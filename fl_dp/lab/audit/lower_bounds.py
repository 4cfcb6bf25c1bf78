"""Lower bounds on epsilon from how often an adversary was right.

    >>> counts = Confusion(true_positives=500, positives=1000, false_positives=50, negatives=1000)
    >>> epsilon_lower_bound(counts, alpha=0.05, delta=1e-5)
    1.969...
    >>> gaussian_epsilon_of(gdp_lower_bound(counts, alpha=0.05), delta=1e-5)
    6.672...

A positive is a trial with the secret. The adversary's threshold must not be chosen on the trials
counted here, or `alpha`, the probability that a bound fails, means nothing.

Clopper-Pearson intervals hold for any mechanism. The route over Gaussian DP is far stronger. It is
a bound only where the mechanism's own trade-off curve is Gaussian, as for one or many composed
Gaussian releases.

Reference:
    Jagielski, Ullman and Oprea 2020, arXiv 2006.07709 (Clopper-Pearson); Nasr et al. 2023, arXiv
        2302.07956 (Gaussian DP).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.special import betainccinv, betaincinv, ndtri

from fl_dp.accounting.gaussian_formulas import gaussian_epsilon
from fl_dp.option_errors import require_probability


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Counts of trials: whether the secret was included, and whether the adversary said so.

    Attributes:
        true_positives: Trials with the secret where the adversary said so.
        positives: Trials with the secret.
        false_positives: Trials without the secret where the adversary said the same.
        negatives: Trials without the secret.

    Raises:
        ValueError: If a count is negative or above its trials, or there are no trials.
    """

    true_positives: int
    positives: int
    false_positives: int
    negatives: int

    def __post_init__(self) -> None:
        """Check the counts."""
        _require_counts(self.true_positives, self.positives)
        _require_counts(self.false_positives, self.negatives)

    def rates(self, alpha: float) -> tuple[float, float]:
        """The least true-positive and the largest false-positive rate, each at alpha / 2."""
        least, _ = clopper_pearson(self.true_positives, self.positives, alpha=alpha)
        _, largest = clopper_pearson(self.false_positives, self.negatives, alpha=alpha)
        return least, largest


def clopper_pearson(successes: int, trials: int, *, alpha: float) -> tuple[float, float]:
    """The exact two-sided interval of a rate; each end fails with at most alpha / 2.

    Raises:
        ValueError: If successes are not in [0, trials], trials < 1, or alpha is not in (0, 1).
    """
    _require_counts(successes, trials)
    require_probability(alpha=alpha)
    low = betaincinv(successes, trials - successes + 1, alpha / 2.0) if successes else 0.0
    high = 1.0
    if successes < trials:
        high = float(betainccinv(successes + 1, trials - successes, alpha / 2.0))
    return float(low), high


def epsilon_lower_bound(counts: Confusion, *, alpha: float, delta: float) -> float:
    """The least epsilon that explains the counts; never below 0.

    The larger of two bounds, from `TPR <= e^epsilon FPR + delta` and `TNR <= e^epsilon FNR +
    delta`. Both use the same two intervals: no confidence is lost. It is too large with
    probability at most `alpha`, if the threshold of `counts` was chosen on other trials.

    Raises:
        ValueError: If alpha is not in (0, 1) or delta not in [0, 1).
    """
    if not 0.0 <= delta < 1.0:
        raise ValueError(f"delta must lie in [0, 1), got {delta}")
    hit, alarm = counts.rates(alpha)
    # TPR <= e^eps FPR + delta, and the same of the true- and false-negative rates.
    ratios = [_log_ratio(hit - delta, alarm), _log_ratio(1.0 - alarm - delta, 1.0 - hit)]
    return max(0.0, *ratios)


def gdp_lower_bound(counts: Confusion, *, alpha: float) -> float:
    """The least mu of Gaussian DP that explains the counts: `Phi^-1(TPR) - Phi^-1(FPR)`.

    A bound for mechanisms with a Gaussian trade-off curve; 0 if nothing was shown.

    Raises:
        ValueError: If alpha is not in (0, 1).
    """
    hit, alarm = counts.rates(alpha)
    if hit == 0.0 or alarm == 1.0:
        return 0.0
    return max(0.0, float(ndtri(hit) - ndtri(alarm)))


def gaussian_epsilon_of(mu: float, *, delta: float) -> float:
    """The epsilon at `delta` of a mu-GDP mechanism: 0 for mu 0, infinity without noise."""
    if math.isinf(mu):
        return math.inf
    return gaussian_epsilon(1.0 / mu, delta) if mu > 0.0 else 0.0


def most_that_clopper_pearson_shows(
    positives: int, negatives: int, *, alpha: float, delta: float
) -> float:
    """The bound of an adversary that is always right: an audit shows no larger epsilon."""
    perfect = Confusion(
        true_positives=positives, positives=positives, false_positives=0, negatives=negatives
    )
    return epsilon_lower_bound(perfect, alpha=alpha, delta=delta)


def largest_refuted(refutes: Callable[[float], bool], *, most: float, within: float) -> float:
    """The largest value up to `most` that is refuted, from below; 0 if not even 0 is.

    `refutes` holds for all values below some value, and for none above. The result lies at most
    `within` below the true value.
    """
    if not refutes(0.0):
        return 0.0
    low, high = 0.0, most
    while high - low > within:
        middle = (low + high) / 2.0
        if refutes(middle):
            low = middle
        else:
            high = middle
    return low


def _log_ratio(hit: float, alarm: float) -> float:
    return math.log(hit / alarm) if hit > 0.0 else -math.inf


def _require_counts(successes: int, trials: int) -> None:
    if not (trials >= 1 and 0 <= successes <= trials):
        raise ValueError(f"successes must lie between 0 and trials, got {successes} of {trials}")
