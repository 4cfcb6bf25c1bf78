"""Quantiles over a public grid: exponential mechanisms draw them, or a noisy sum gives them.

>>> query = Quantiles(probabilities=(0.25, 0.5, 0.75), grid=tuple(range(121)))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_dp.mechanisms import clip_by_norm
from fl_dp.mechanisms.clipping import Norm
from fl_dp.option_errors import OptionError

from .query import Estimate, SumQuery, as_numbers, require_increasing
from .values import records

_STEPS = 2.0**30  # mass is summed in whole steps, so that sums are exact in any order
# Q(2.498) = 0.05 / 8: by Levy's inequality, sums from either end stay within 2.498 sqrt(d)
# deviations with probability 0.95.
_WALK = 2.498


@dataclass(frozen=True, kw_only=True)
class Quantiles(SumQuery):
    """Quantiles of one number per record, each chosen from a public grid.

    A client spreads its mass, at most 1, over the grid, each record at the nearest point: with
    `max_records=1`, quantiles are those of the average client's distribution. A point is better
    the less mass would have to move past it to make it the quantile. For probability `p` its
    utility is minus the distance of `p W` from `[L, L + M]`, where `W` is all mass, `L` that left
    of the point and `M` that at it. (With one-sided ranks, a point with all the mass would score
    no better than any other.)

    Privacy: see `Query`; a client of mass `(l, m, r)` left of, at and right of a point moves the
    ends of that interval, seen from `p W`, by `(1 - p) l - p (m + r)` and `(1 - p)(l + m) - p r`.
    Both lie in `[-p, 1 - p]`, so one client moves every utility by at most `max(p, 1 - p)`.

    Exponential mechanisms need the exact sum. Under a secure sum no party has it: quantiles are
    then computed from the sum with Gaussian noise (`estimates`), all together for one price. They
    are less exact the finer the grid, as noise adds up over its points.

    Attributes:
        max_records: A client's mass is its number of records over this, at most 1.
        probabilities: Increasing, each between 0 and 1. Epsilon is shared evenly.
        grid: The candidates, increasing; values beyond the ends count at the ends. Public: never
            take it from the data. A draw's rank error grows with the logarithm of the grid's size,
            so a finer grid costs little; from a noisy sum it grows with the square root.

    Reference:
        McSherry and Talwar 2007, "Mechanism Design via Differential Privacy"; for quantiles: Smith
        2011, "Privacy-preserving statistical estimation with optimal convergence rates".
    """

    kind: ClassVar[str] = "quantiles"
    probabilities: tuple[float, ...]
    grid: tuple[float, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A probability is not between 0 and 1, the grid has fewer than two points,
                or either is not strictly increasing.
        """
        super().__post_init__()
        object.__setattr__(self, "probabilities", as_numbers("probabilities", self.probabilities))
        object.__setattr__(self, "grid", as_numbers("grid", self.grid))
        require_increasing("probabilities", self.probabilities, at_least=1)
        require_increasing("grid", self.grid, at_least=2)
        for probability in self.probabilities:
            if not 0.0 < probability < 1.0:
                raise OptionError(
                    f"probabilities must lie between 0 and 1, ends excluded, got {probability}",
                    option="probabilities",
                )

    @property
    def dimension(self) -> int:
        """One number per grid point."""
        return len(self.grid)

    @property
    def l1_sensitivity(self) -> float:
        """A client's mass."""
        return 1.0

    @property
    def l2_sensitivity(self) -> float:
        """A client's mass, all at one point."""
        return 1.0

    @property
    def max_units(self) -> int:
        """Number of encoded vectors that can be summed exactly."""
        return int(2.0**53 / _STEPS)  # a client's mass of 1 is _STEPS whole steps

    def _total(self, values: object) -> tuple[NDArray[np.float64], int]:
        grid = np.array(self.grid)
        between = grid[:-1] + np.diff(grid) / 2.0
        indices = np.searchsorted(between, records(values, 1)[:, 0], side="left")
        counts = np.bincount(indices, minlength=grid.size).astype(np.float64)
        return counts / self.max_records, indices.size

    def sensitivity(self, probability: float) -> float:
        """The most by which one client moves any utility for that probability."""
        return max(probability, 1.0 - probability)

    def encode(self, contribution: ArrayLike) -> NDArray[np.float64]:
        """Bound one client's mass, whatever it sent, and count it in whole steps.

        Returns:
            Integer-valued float64 of the same shape, not negative. Sums of up to `max_units` are
            exact, in any order.
        """
        # Truncated, so that a client's steps never exceed a mass of 1, which is the sensitivity.
        mass = np.maximum(clip_by_norm(contribution, 1.0, Norm.L1), 0.0)
        return np.trunc(mass * _STEPS)

    def utilities(self, total: NDArray[np.float64], probability: float) -> NDArray[np.float64]:
        """Each grid point's utility; not private, for the exponential mechanism alone.

        `total` is the sum of `encode`d vectors, shape `(dimension,)`.

        Returns:
            Minus a distance in clients (units of mass), float64, shape `(dimension,)`.
        """
        # u = -dist(p W, [L, L + M]) with W all mass, L that left of a point and M that at it.
        up_to = np.cumsum(total)
        target = probability * up_to[-1]
        missed = np.maximum((up_to - total) - target, target - up_to)
        return np.asarray(-np.maximum(missed, 0.0) / _STEPS)

    def estimates(self, total: NDArray[np.float64], noise_std: float) -> dict[str, Estimate]:
        """`quantiles`, shape `(len(probabilities),)`.

        The noisy sums from the left are made to increase, halfway between the least curve above
        them and the greatest below: nowhere further from the true ones.
        """
        up_to = np.cumsum(total)
        above = np.maximum.accumulate(up_to)
        below = np.minimum.accumulate(up_to[::-1])[::-1]
        increasing, mass = (above + below) / 2.0, float(up_to[-1])
        targets = np.array(self.probabilities) * mass
        indices = np.searchsorted(increasing, targets, side="left")
        quantiles = np.array(self.grid)[np.minimum(indices, len(self.grid) - 1)]
        worst = _WALK * noise_std * math.sqrt(len(self.grid))
        note = "" if mass > worst else "the mass of all clients is within its noise"
        return {
            "quantiles": Estimate(
                value=np.sort(quantiles),  # a negative mass would reverse their order
                error=np.full(len(self.probabilities), worst),
                error_is="rank error in clients, not exceeded with probability 0.95",
                note=note,
            )
        }
