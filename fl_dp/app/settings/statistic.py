"""Settings of one statistic over a federation, instead of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from fl_dp.option_errors import OptionError

from .checks import at_least, choices

_FEATURE = ("records", True)


@dataclass(kw_only=True)
class StatisticSettings:
    """One private statistic, which `fl-dp stats` asks for; it costs `privacy.epsilon` alone.

    Attributes:
        query: `count`, `sum`, `mean`, `histogram`, `quantiles` or `top`; null trains.
        values: `labels`, `records` (every feature) or `records.3` (the fourth feature alone).
        low: Smallest value that counts, public; not for `count`, nor for labels in `histogram` and
            `top`.
        high: Largest value that counts, public.
        bins: Bins of a histogram, or steps of the grid of quantiles, between `low` and `high`.
        edges: Public edges of the bins, in place of `low`, `high` and `bins`.
        probabilities: Probabilities of the quantiles; null is 0.25, 0.5 and 0.75.
        top: Labels that `top` names, the most frequent first.
        max_records: A client with more records counts as this many average ones of its own; the
            noise grows with it.
        law: `laplace` or `gaussian`; null takes the smaller noise, and `gaussian` in secure sums.
    """

    query: str | None = None
    values: str = "labels"
    low: float | None = None
    high: float | None = None
    bins: int = 10
    edges: list[float] | None = None
    probabilities: list[float] | None = None
    top: int = 3
    max_records: int = 1
    law: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        choices("statistic", self)
        for key in ("bins", "top", "max_records"):
            at_least(f"statistic.{key}", getattr(self, key), 1)
        name, dot, feature = self.values.partition(".")
        if name not in ("labels", "records") or (dot and (name, feature.isdecimal()) != _FEATURE):
            raise OptionError(
                "statistic.values must be labels, records, or one feature of the records such as "
                f"records.3, got '{self.values}'",
                option="statistic.values",
            )
        self._check_range()
        if self.query is None:
            self._require_defaults()

    def _require_defaults(self) -> None:
        """Check that no key is set where no statistic is asked for."""
        written = [
            f"statistic.{setting.name}={getattr(self, setting.name)}"
            for setting in fields(self)
            if getattr(self, setting.name) != setting.default
        ]
        if written:
            raise OptionError(
                f"{', '.join(written)} is for a statistic, and none is asked for: write statistic."
                "query too, or leave it out",
                options=[text.partition("=")[0] for text in written],
            )

    def _check_range(self) -> None:
        if (self.low is None) != (self.high is None):
            raise OptionError(
                "statistic.low and statistic.high go together: write both, or neither",
                option="statistic.low",
            )
        if self.low is not None and self.high is not None:
            if not (math.isfinite(self.high - self.low) and self.low < self.high):
                raise OptionError(
                    "statistic.low must be below statistic.high, and both finite, got "
                    f"{self.low} and {self.high}",
                    option="statistic.low",
                )
            if self.edges is not None:
                raise OptionError(
                    "statistic.edges says where bins begin and end: leave low and high out",
                    option="statistic.edges",
                )

    @property
    def feature(self) -> int | None:
        """The queried feature of the records, from 0; None for all features, or for labels."""
        _, _, feature = self.values.partition(".")
        return int(feature) if feature else None
