"""The ROC of an attack, and its rates at few false positives.

A mean over all candidates hides the few that an attack identifies with certainty. So rates at few
false alarms count (Carlini et al. 2022, section III).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from fl_dp.accounting.trade_off import TradeOff
from fl_dp.app.pictures import COLOURS, PALE, new_picture, nudge, save_picture
from fl_dp.lab.audit.lower_bounds import Confusion, clopper_pearson


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """Rates of an attack at one threshold.

    Intervals are Clopper-Pearson's, for independent trials. They hold although the threshold comes
    from the negatives counted at it: it is their order statistic, and its true false-positive rate
    has the law of the interval's upper end.

    Attributes:
        target_fpr: The requested false-positive rate.
        threshold: Candidates that score higher are called members.
        counts: How often the attack was right or wrong.
    """

    target_fpr: float
    threshold: float
    counts: Confusion

    @property
    def tpr(self) -> float:
        """The share of members called members."""
        return self.counts.true_positives / self.counts.positives

    @property
    def fpr(self) -> float:
        """The share of others called members."""
        return self.counts.false_positives / self.counts.negatives

    def tpr_interval(self, alpha: float) -> tuple[float, float]:
        """The true-positive rate's interval, with confidence `1 - alpha`."""
        return clopper_pearson(self.counts.true_positives, self.counts.positives, alpha=alpha)

    def exceeds(self, allowed: TradeOff, alpha: float) -> bool:
        """Whether the attack lies above `allowed`, the curve of a guarantee.

        `alpha` is the probability of a false accusation, if trials are independent.
        """
        least, largest = self.counts.rates(alpha)
        return least > float(allowed(largest))


@dataclass(frozen=True, eq=False)
class Roc:
    """Scores of an attack on members, `(n,)`, and on others, `(m,)`."""

    members: NDArray[np.float64]
    others: NDArray[np.float64]
    _falling: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the scores.

        Raises:
            ValueError: If one kind has none, or one is NaN.
        """
        for name in ("members", "others"):
            scores = getattr(self, name)
            if not len(scores) or np.isnan(scores).any():
                raise ValueError(f"an ROC needs scores of {name}, none of them NaN")
        object.__setattr__(self, "_falling", np.sort(self.others)[::-1])

    @property
    def auc(self) -> float:
        """The probability that a member outscores another; a tie counts half."""
        ranks = rankdata(np.concatenate([self.members, self.others]))
        n, m = len(self.members), len(self.others)
        return float((ranks[:n].sum() - n * (n + 1) / 2.0) / (n * m))

    def at(self, fpr: float) -> OperatingPoint:
        """The most powerful threshold with at most this share of false positives.

        Raises:
            ValueError: If the rate is not in [0, 1].
        """
        if not 0.0 <= fpr <= 1.0:
            raise ValueError(f"a false-positive rate lies in [0, 1], got {fpr}")
        spared = math.floor(fpr * len(self.others) * (1.0 + 1e-12))  # 0.01 * 100 is not quite 1
        threshold = float(self._falling[spared]) if spared < len(self.others) else -math.inf
        return OperatingPoint(
            target_fpr=fpr,
            threshold=threshold,
            counts=Confusion(
                true_positives=int((self.members > threshold).sum()),
                positives=len(self.members),
                false_positives=int((self.others > threshold).sum()),
                negatives=len(self.others),
            ),
        )

    def curve(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """False- and true-positive rates from (0, 0) to (1, 1), a pair per threshold."""
        thresholds = np.unique(np.concatenate([self.members, self.others]))[::-1]
        rates = [
            1.0 - np.searchsorted(np.sort(scores), thresholds, side="left") / len(scores)
            for scores in (self.others, self.members)
        ]
        return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


_INK = "#20262b"


def plot_roc(
    rocs: Mapping[str, Roc],
    allowed: Mapping[str, TradeOff],
    target: Path,
    *,
    title: str,
    rates: Sequence[float],
    alpha: float,
) -> bool:
    """Draw attacks below what a guarantee allows, both axes logarithmic.

    No attack lies above the `allowed` curves, the tightest last; there are none without a promise.
    False-positive `rates` are marked, with intervals of false-alarm rate `alpha`; the axes end at
    half of the least. `target` is a PNG's path.

    Returns:
        Whether it was drawn: False without matplotlib.
    """
    picture = new_picture((1.0, 0.45), size=(9.0, 5.0))
    if picture is None:
        return False
    figure, (axes, key) = picture
    key.axis("off")  # the legend has a panel of its own: curves are everywhere
    least = min(rates) / 2.0
    grid = np.geomspace(least, 1.0, 400)
    for (name, curve), style in zip(allowed.items(), ("--", "-"), strict=False):
        axes.plot(grid, curve(grid), style, color=_INK, linewidth=1.6)
        key.plot([], [], style, color=_INK, linewidth=1.6, label=name)
    if allowed:
        *_, tightest = allowed.values()
        axes.fill_between(grid, tightest(grid), 1.0, color=_INK, alpha=0.06, linewidth=0)
    for index, (name, roc) in enumerate(rocs.items()):
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(*roc.curve(), color=colour, linewidth=1.4, drawstyle="steps-post")
        key.plot([], [], color=colour, linewidth=1.4, label=name)
        for point in map(roc.at, rates):
            low, high = point.tpr_interval(alpha)
            ends = [[max(point.tpr - low, 0.0)], [max(high - point.tpr, 0.0)]]
            at = [point.target_fpr], [point.tpr]
            drawn = axes.errorbar(*at, yerr=ends, color=colour, capsize=2.5, marker="o", ms=3)
            nudge(drawn, index, len(rocs))
    axes.plot(grid, grid, ":", color=PALE, linewidth=1.2)
    key.plot([], [], ":", color=PALE, linewidth=1.2, label="guessing")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(least, 1.0),
        ylim=(least, 1.05),
        xlabel="false-positive rate",
        ylabel="true-positive rate",
        title=title,
    )
    axes.title.set_fontsize(10)
    save_picture(figure, target)
    return True
