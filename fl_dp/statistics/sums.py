"""Counts, sums and means.

>>> query = Mean(lows=(0.0, -1.0), highs=(100.0, 1.0))
>>> query.contribution([[37.0, 0.5], [40.0, 0.25]])  # on a client
>>> choice = choose_noise(query, epsilon=1.0, delta=1e-5)  # on the server
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .query import CountingQuery, Estimate, Query, SumQuery, as_numbers
from .values import count_records, records

_SMALLEST_WIDTH = 1e-250  # below it float64 can't scale a range to one


@dataclass(frozen=True, kw_only=True)
class Count(CountingQuery):
    """Number of records, at most `max_records` of each client; with 1, of clients with data.

    Privacy: see `Query`; a client moves the count by at most `max_records`.

    Attributes:
        nonnegative: Whether a negative noisy count is reported as 0. This biases small counts;
            leave it out for sums of many counts.
    """

    kind: ClassVar[str] = "count"
    nonnegative: bool = False

    @property
    def dimension(self) -> int:
        """One number."""
        return 1

    def _total(self, values: object) -> tuple[NDArray[np.float64], int]:
        count = count_records(values)
        return np.array([float(count)]), count

    def estimates(self, total: NDArray[np.float64], noise_std: float) -> dict[str, Estimate]:
        """The estimate `count`."""
        value = np.maximum(total[0], 0.0) if self.nonnegative else total[0]
        return {"count": Estimate(value=np.asarray(value), error=np.asarray(noise_std))}


@dataclass(frozen=True, kw_only=True)
class RangedQuery(Query):
    """A query about numeric features, each with a public range.

    Attributes:
        lows: Smallest value of each feature, in its units. Public: never take it from the data.
        highs: Largest value of each feature; values beyond count as the range's end.
    """

    lows: tuple[float, ...]
    highs: tuple[float, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A range lacks an end, is empty or not finite.
        """
        super().__post_init__()
        object.__setattr__(self, "lows", as_numbers("lows", self.lows))
        object.__setattr__(self, "highs", as_numbers("highs", self.highs))
        if len(self.lows) != len(self.highs):
            raise ValueError(
                f"{len(self.lows)} lows and {len(self.highs)} highs: give one of each a feature"
            )
        for index, (low, high) in enumerate(zip(self.lows, self.highs, strict=True)):
            if not _SMALLEST_WIDTH <= high - low < math.inf:
                raise ValueError(
                    f"feature {index} ranges from {low} to {high}: the low end must be below the "
                    "high one, and the width within float64"
                )

    @property
    def features(self) -> int:
        """Number of features per record."""
        return len(self.lows)

    @property
    def _middle(self) -> NDArray[np.float64]:
        return np.array(self.lows) / 2.0 + np.array(self.highs) / 2.0

    @property
    def _half(self) -> NDArray[np.float64]:
        return np.array(self.highs) / 2.0 - np.array(self.lows) / 2.0

    def _clipped(self, values: object) -> NDArray[np.float64]:
        """The records, each number within its range, shape `(n, features)`."""
        return np.clip(records(values, self.features), self.lows, self.highs)

    def _scaled(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Records with each range as [-1, 1]; a missing value counts as its middle."""
        return np.clip((rows - self._middle) / self._half, -1.0, 1.0)

    def _means(self, sums: NDArray[np.float64], count: float, noise_std: float) -> Estimate:
        """Each feature's mean, from the noisy sum of `_scaled` records and their number.

        The error is to first order in the noise. If the count is within its own noise, the mean is
        the range's middle, and the error half the range.
        """
        if not count > noise_std:
            note = "the noisy count is within its noise: these are the middle and half of the range"
            return Estimate(
                value=self._middle, error=self._half, error_is="half the range", note=note
            )
        mean = np.clip(sums / count, -1.0, 1.0)
        share = noise_std / count
        return Estimate(
            value=self._middle + self._half * mean,
            error=self._half * share * np.sqrt(1.0 + mean**2),
        )


@dataclass(frozen=True, kw_only=True)
class Sum(RangedQuery, SumQuery):
    """The sum of each feature over all records, at most `max_records` of each client.

    A feature is divided by its range's largest magnitude: its noise is in proportion to that, not
    to another feature's. Privacy: see `Query`; a client's vector of `d` features has an L1 norm of
    at most `d max_records` and an L2 norm of at most `sqrt(d) max_records`.
    """

    kind: ClassVar[str] = "sum"

    @property
    def dimension(self) -> int:
        """One number per feature."""
        return self.features

    @property
    def l1_sensitivity(self) -> float:
        """Every feature at the end of its range."""
        return float(self.max_records * self.features)

    @property
    def l2_sensitivity(self) -> float:
        """Every feature at the end of its range."""
        return self.max_records * math.sqrt(self.features)

    @property
    def _scales(self) -> NDArray[np.float64]:
        return np.maximum(np.abs(self.lows), np.abs(self.highs))

    def _total(self, values: object) -> tuple[NDArray[np.float64], int]:
        rows = self._clipped(values) / self._scales
        return rows.sum(axis=0), len(rows)

    def estimates(self, total: NDArray[np.float64], noise_std: float) -> dict[str, Estimate]:
        """The estimate `sum`, shape `(features,)`."""
        return {"sum": Estimate(value=total * self._scales, error=noise_std * self._scales)}


@dataclass(frozen=True, kw_only=True)
class Mean(RangedQuery, SumQuery):
    """The mean and standard deviation of each feature, as for normalisation.

    Each feature is shifted and scaled to `u` in [-1, 1]. A record adds `(u, 1 - u^2)` per feature,
    and 1 to the count: numbers of records and clients need not be public. Squares are counted down
    from 1 because `u^2 + (1 - u^2)^2 <= 1`: they lengthen no vector in L2, and with Gaussian noise
    the standard deviations are free.

    Privacy: see `Query`; a client's vector over `d` features has an L2 norm of at most `sqrt(d +
    1) max_records`, and an L1 norm of at most `(5 d / 4 + 1) max_records`, as `|u| + 1 - u^2` is
    largest at `|u| = 1/2`.
    """

    kind: ClassVar[str] = "mean"

    @property
    def dimension(self) -> int:
        """Two numbers per feature, and the count."""
        return 2 * self.features + 1

    @property
    def l1_sensitivity(self) -> float:
        """Every feature halfway between the middle and an end of its range."""
        return self.max_records * (1.25 * self.features + 1.0)

    @property
    def l2_sensitivity(self) -> float:
        """Every feature at an end, or in the middle, of its range."""
        return self.max_records * math.sqrt(self.features + 1.0)

    def _total(self, values: object) -> tuple[NDArray[np.float64], int]:
        scaled = self._scaled(self._clipped(values))
        sums = (scaled.sum(axis=0), (1.0 - scaled**2).sum(axis=0), [float(len(scaled))])
        return np.concatenate(sums), len(scaled)

    def estimates(self, total: NDArray[np.float64], noise_std: float) -> dict[str, Estimate]:
        """The estimates `mean` and `std`, shape `(features,)`, and `count`.

        Errors are to first order in the noise; see `_means` for a count within its noise. A
        standard deviation that may be zero is reported at its error's upper end: dividing by it
        never magnifies noise.
        """
        half, count = self._half, float(total[-1])
        mean = self._means(total[: self.features], count, noise_std)
        counted = Estimate(value=np.asarray(count), error=np.asarray(noise_std))
        if mean.note:
            spread = Estimate(value=half, error=half, error_is=mean.error_is, note=mean.note)
            return {"mean": mean, "std": spread, "count": counted}
        share = noise_std / count
        centred = np.clip(total[: self.features] / count, -1.0, 1.0)
        below_one = np.clip(total[self.features : -1] / count, 0.0, 1.0)
        # var = 1 - T/n - (S/n)^2, with independent noise of one size on T, S and n.
        gradient = np.sqrt(1.0 + 4.0 * centred**2 + (below_one + 2.0 * centred**2) ** 2)
        variance_error = share * gradient
        variance = np.clip(1.0 - centred**2 - below_one, variance_error, 1.0)
        std = np.sqrt(variance)
        return {
            "mean": mean,
            "std": Estimate(value=half * std, error=half * variance_error / (2.0 * std)),
            "count": counted,
        }
