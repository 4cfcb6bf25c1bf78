"""The ROC of an attack, and what it comes to at low false-positive rates.

A mean over all candidates hides the few that an attack finds with certainty, so the rates that
count are those at few false alarms (Carlini et al. 2022, section III).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from fl_dp.accounting.trade_off import TradeOff
from fl_dp.lab.audit.bounds import Confusion, clopper_pearson


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """Rates of an attack at one threshold.

    Intervals are Clopper-Pearson's, for trials that do not depend on one another. The threshold is
    an order statistic of the negatives, whose true false-positive rate has just the law that the
    interval's upper end is made of; it does not look at the positives. So the intervals hold
    although the threshold was found on the negatives that it is counted on.

    Attributes:
        asked: The false-positive rate that it is for.
        threshold: Who scores higher is called a member.
        counts: How often the attack was right and wrong.
    """

    asked: float
    threshold: float
    counts: Confusion

    @property
    def tpr(self) -> float:
        """The share of members that were found."""
        return self.counts.true_positives / self.counts.positives

    @property
    def fpr(self) -> float:
        """The share of others that were called members."""
        return self.counts.false_positives / self.counts.negatives

    def tpr_interval(self, alpha: float) -> tuple[float, float]:
        """Return where the true-positive rate lies, with confidence `1 - alpha`."""
        return clopper_pearson(self.counts.true_positives, self.counts.positives, alpha=alpha)

    def exceeds(self, allowed: TradeOff, alpha: float) -> bool:
        """Tell whether the attack does better than a guarantee allows.

        Args:
            allowed: The curve that no attack lies above.
            alpha: Probability of a false accusation, if trials do not depend on one another.
        """
        least, largest = self.counts.rates(alpha)
        return least > float(allowed(largest))


@dataclass(frozen=True, eq=False)
class Roc:
    """Scores of an attack on members and on others.

    Attributes:
        members: Of those that were part of the training, `(n,)`.
        others: Of those that were not, `(m,)`.
    """

    members: NDArray[np.float64]
    others: NDArray[np.float64]
    _falling: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the scores.

        Raises:
            ValueError: If there are none of one kind, or one is NaN.
        """
        for name in ("members", "others"):
            scores = getattr(self, name)
            if not len(scores) or np.isnan(scores).any():
                raise ValueError(f"an ROC needs scores of {name}, none of them NaN")
        object.__setattr__(self, "_falling", np.sort(self.others)[::-1])

    @property
    def auc(self) -> float:
        """The probability that a member scores higher than another; a tie counts half."""
        ranks = rankdata(np.concatenate([self.members, self.others]))
        n, m = len(self.members), len(self.others)
        return float((ranks[:n].sum() - n * (n + 1) / 2.0) / (n * m))

    def at(self, fpr: float) -> OperatingPoint:
        """Return the most powerful threshold with at most that share of false positives.

        Raises:
            ValueError: If the rate is not in [0, 1].
        """
        if not 0.0 <= fpr <= 1.0:
            raise ValueError(f"a false-positive rate lies in [0, 1], got {fpr}")
        spared = math.floor(fpr * len(self.others) * (1.0 + 1e-12))  # 0.01 * 100 is not quite 1
        threshold = float(self._falling[spared]) if spared < len(self.others) else -math.inf
        return OperatingPoint(
            asked=fpr,
            threshold=threshold,
            counts=Confusion(
                true_positives=int((self.members > threshold).sum()),
                positives=len(self.members),
                false_positives=int((self.others > threshold).sum()),
                negatives=len(self.others),
            ),
        )

    def curve(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return false- and true-positive rates from (0, 0) to (1, 1), one a threshold."""
        thresholds = np.unique(np.concatenate([self.members, self.others]))[::-1]
        rates = [
            1.0 - np.searchsorted(np.sort(scores), thresholds, side="left") / len(scores)
            for scores in (self.others, self.members)
        ]
        return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])
