"""A classifier of two classes measured on all data: AUC and accuracy, from histograms.

>>> query = ScoreHistograms(bins=20)
>>> query.contribution([[1, 0.9], [0, 0.2]])  # on a client: label and score of each record
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .query import CountingQuery, Estimate
from .values import records

_UNKNOWN = 0.5
_NOTE = "a class's noisy count is within its noise: these are the middle and half of the range"


@dataclass(frozen=True, kw_only=True)
class ScoreHistograms(CountingQuery):
    """Histograms of a classifier's scores, one per true class, with AUC and accuracy.

    A record adds one to its score's bin in its label's histogram: all bins together have one
    count's sensitivity. AUC is that of the binned scores. Two of one bin count half: it is off by
    at most half the share of pairs in one bin.

    Privacy: see `Query`; a client's vector has an L1 and an L2 norm of at most `max_records`.

    Attributes:
        bins: Number of bins of equal width over [0, 1]; even, so that one half begins at 1/2.
    """

    kind: ClassVar[str] = "scores"
    bins: int = 20

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: `bins` is no even number from 2 to 65536.
        """
        super().__post_init__()
        bins: object = self.bins  # it may have come from a message
        if isinstance(bins, bool) or not isinstance(bins, int | np.integer):
            raise ValueError(f"bins must be a whole number, got {bins!r}")
        if bins < 2 or bins % 2 or bins > 2**16:
            raise ValueError(f"bins must be an even number from 2 to 65536, got {bins}")
        object.__setattr__(self, "bins", int(bins))

    @property
    def dimension(self) -> int:
        """One number per bin and class."""
        return 2 * self.bins

    def _total(self, values: object) -> tuple[NDArray[np.float64], int]:
        rows = records(values, 2)
        rows = rows[np.isin(rows[:, 0], (0.0, 1.0))]
        scores = np.clip(rows[:, 1], 0.0, 1.0)
        bins = np.minimum((scores * self.bins).astype(np.intp), self.bins - 1)
        bins += self.bins * rows[:, 0].astype(np.intp)
        return np.bincount(bins, minlength=self.dimension).astype(np.float64), len(rows)

    def estimates(self, total: NDArray[np.float64], noise_std: float) -> dict[str, Estimate]:
        """The estimates `auc`, `accuracy`, and the counts `negatives` and `positives`.

        Errors are to first order in the noise. If a class's count is within its noise, AUC and
        accuracy are 1/2, with a note.
        """
        negative, positive = total[: self.bins], total[self.bins :]
        n, p = float(negative.sum()), float(positive.sum())
        count_error = noise_std * math.sqrt(self.bins)
        counts = {
            name: Estimate(value=np.asarray(count), error=np.asarray(count_error))
            for name, count in (("negatives", n), ("positives", p))
        }
        if not min(n, p) > count_error:
            unknown = Estimate(
                value=np.asarray(_UNKNOWN),
                error=np.asarray(_UNKNOWN),
                error_is="half the range",
                note=_NOTE,
            )
            return {"auc": unknown, "accuracy": unknown, **counts}
        # Share of the other class that each bin is above, or below; half of its own bin.
        above = (np.cumsum(negative) - negative / 2.0) / n
        below = (p - np.cumsum(positive) + positive / 2.0) / p
        auc = float(positive @ above) / p
        spread = np.concatenate([(below - auc) / n, (above - auc) / p])
        right = np.zeros(self.dimension)
        right[: self.bins // 2] = right[-(self.bins // 2) :] = 1.0
        accuracy = float(total @ right) / (n + p)
        accuracy_error = noise_std * float(np.linalg.norm(right - accuracy)) / (n + p)
        return {
            "auc": _share(auc, noise_std * float(np.linalg.norm(spread))),
            "accuracy": _share(accuracy, accuracy_error),
            **counts,
        }


def _share(value: float, error: float) -> Estimate:
    return Estimate(value=np.asarray(np.clip(value, 0.0, 1.0)), error=np.asarray(error))
