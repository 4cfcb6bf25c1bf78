"""A model measured on all clients' data: loss, accuracy, or any metrics, and the record count.

>>> query = Evaluation(names=("loss", "accuracy"), lows=(0.0, 0.0), highs=(5.0, 1.0))
>>> query.contribution([120, 0.31, 0.92])  # on a client: number of records, then its metrics
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fl_dp.documents import real_number

from .query import Estimate, SumQuery, as_tuple
from .sums import RangedQuery
from .values import records

_COUNT = "count"


@dataclass(frozen=True, kw_only=True)
class Evaluation(RangedQuery, SumQuery):
    """Means of metrics that each client measures on its own records.

    A client's metrics are shifted and scaled to [-1, 1] and count once per record, at most
    `max_records` times; with 1, every client weighs the same. A client without records, or with a
    missing or NaN metric, adds nothing, not even to the count.

    Privacy: see `Query`; a client's vector of `d` metrics has an L2 norm of at most `sqrt(d + 1)
    max_records`.

    Attributes:
        names: The metrics' names at clients; their ranges are `lows` and `highs`.
    """

    kind: ClassVar[str] = "evaluation"
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: Names and ranges do not pair up, or a name is empty, repeated, or the
                answer's `count`.
        """
        super().__post_init__()
        names = as_tuple("names", self.names)
        object.__setattr__(self, "names", names)
        if len(names) != self.features:
            raise ValueError(f"{len(names)} names and {self.features} ranges: give one of each")
        for name in names:
            if not isinstance(name, str) or not name or name == _COUNT:
                raise ValueError(f"a metric needs a name, and not '{_COUNT}', got {name!r}")
        if len(set(names)) < len(names):
            raise ValueError(f"each metric is measured once, got {', '.join(names)}")

    @property
    def dimension(self) -> int:
        """One number per metric, and the count."""
        return self.features + 1

    @property
    def l1_sensitivity(self) -> float:
        """Every metric at an end of its range."""
        return self.max_records * (self.features + 1.0)

    @property
    def l2_sensitivity(self) -> float:
        """Every metric at an end of its range."""
        return self.max_records * math.sqrt(self.features + 1.0)

    def measured(self, report: Mapping[str, object], *, examples: object) -> NDArray[np.float64]:
        """A client's contribution, from what it reports of its measurement.

        Args:
            report: Its metrics by name; other names than `names` are not read.
            examples: Its number of records, as it reports it.

        Returns:
            As `contribution`; zero, also in the count, if a number is missing or none.
        """
        metrics = (real_number(report.get(name)) for name in self.names)
        return self.contribution([real_number(examples), *metrics])

    def _total(self, values: object) -> tuple[NDArray[np.float64], int]:
        rows = records(values, self.features + 1)
        if len(rows) != 1:  # a NaN leaves a row out
            return np.zeros(self.dimension), 0
        weight = math.floor(min(max(float(rows[0, 0]), 0.0), self.max_records))
        metrics = self._scaled(np.clip(rows[0, 1:], self.lows, self.highs))
        return weight * np.append(metrics, 1.0), weight

    def estimates(self, total: NDArray[np.float64], noise_std: float) -> dict[str, Estimate]:
        """The mean of each metric by its name, and `count`.

        The count is of clients, or of records if `max_records` is above 1. A count within its
        noise says nothing: means are then their ranges' middles, with a note.
        """
        count = float(total[-1])
        means = self._means(total[:-1], count, noise_std)
        estimates: dict[str, Estimate] = {}
        for index, name in enumerate(self.names):
            estimates[name] = Estimate(
                value=np.asarray(means.value[index]),
                error=np.asarray(means.error[index]),
                error_is=means.error_is,
                note=means.note,
            )
        estimates[_COUNT] = Estimate(value=np.asarray(count), error=np.asarray(noise_std))
        return estimates
