"""Votes on candidates: the exponential mechanism over all clients' scores draws one winner.

>>> query = Vote(candidates=8)
>>> query.contribution([0.2, 0.7, ...])  # on a client: its score of each candidate, in [0, 1]
>>> choice = choose_noise(query, epsilon=0.4, delta=1e-5)  # on the server
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .query import Query
from .values import vector

_STEPS = 2.0**30  # scores are summed in whole steps, so that sums are exact in any order


@dataclass(frozen=True, kw_only=True)
class Vote(Query):
    """The candidate that clients like best; each client scores every candidate in [0, 1].

    A reply other than one finite number in [0, 1] per candidate is no vote: it counts as zero for
    each.

    Privacy: see `Query`, but for the norms: the range bounds the draw. A client of scores `s` adds
    `s_i` to the utility of candidate `i`. So the log-ratio of the two laws differs between any two
    candidates by at most `rate * (max s - min s) <= rate`. Half a point less for each candidate is
    the same draw, and moves every utility by at most `sensitivity = 1/2` either way. The number of
    candidates does not matter.

    Attributes:
        max_records: Always 1: a client has one vote.
        candidates: Number of candidates, at least 2; public.

    Reference:
        McSherry and Talwar 2007; for the range Dong, Durfee and Rogers 2020.
    """

    kind: ClassVar[str] = "vote"
    sensitivity: ClassVar[float] = 0.5
    candidates: int

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: There are fewer than two candidates, or `max_records` is not 1.
        """
        super().__post_init__()
        count: object = self.candidates  # it may have come from a message
        if isinstance(count, bool) or not isinstance(count, int) or count < 2:
            raise ValueError(f"a vote needs at least 2 candidates, got {count!r}")
        if self.max_records != 1:
            raise ValueError(f"a client has one vote, got max_records={self.max_records}")

    @property
    def dimension(self) -> int:
        """One score per candidate."""
        return self.candidates

    @property
    def l1_sensitivity(self) -> float:
        """Every candidate at the best score."""
        return float(self.candidates)

    @property
    def l2_sensitivity(self) -> float:
        """Every candidate at the best score."""
        return float(np.sqrt(self.candidates))

    @property
    def max_units(self) -> int:
        """Number of encoded vectors that can be summed exactly."""
        return int(2.0**53 / _STEPS)

    def _total(self, values: object) -> tuple[NDArray[np.float64], int]:
        scores = vector(values, self.candidates)
        if _is_vote(scores):
            return scores, 1
        return np.zeros(self.candidates), 0

    def encode(self, contribution: ArrayLike) -> NDArray[np.float64]:
        """Count one client's scores in whole steps; zeros if they are no vote.

        Returns:
            Integer-valued float64, shape `(candidates,)`. Sums of up to `max_units` are exact, in
            any order.
        """
        scores = vector(contribution, self.candidates)
        if not _is_vote(scores):
            return np.zeros(self.candidates)
        return np.floor(scores * _STEPS)  # never above the score: its range is charged

    def utilities(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """Each candidate's utility in votes, for the exponential mechanism alone.

        `total` is the sum of `encode`d vectors, shape `(candidates,)`.
        """
        return total / _STEPS


def _is_vote(scores: NDArray[np.float64]) -> bool:
    return bool(np.all((scores >= 0.0) & (scores <= 1.0)))  # false for NaN
