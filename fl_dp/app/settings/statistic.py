"""Keys of `statistic`: one statistic over a federation, instead of a training.

`fl-dp stats` asks for it; it costs `privacy.epsilon` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from math import prod
from typing import TYPE_CHECKING, Annotated

import numpy as np

from fl_dp.option_errors import OptionError
from fl_dp.statistics import Count, Frequencies, Histogram, Mean, Quantiles, Query, Sum
from fl_dp.statistics.histograms import Category
from fl_dp.statistics.query import Estimate
from fl_dp.tasks.datasets import Form

from . import checks
from .data import TaskOption
from .option import Option, key, made_by, option

if TYPE_CHECKING:
    from fl_dp.statistics import NoiseChoice

_KEY = key(tracked=False)
_FEATURE = ("records", True)
_QUARTILES = (0.25, 0.5, 0.75)


def _values(key: str, value: str) -> None:
    name, dot, feature = value.partition(".")
    if name not in ("labels", "records") or (dot and (name, feature.isdecimal()) != _FEATURE):
        raise OptionError(
            f"{key} must be labels, records, or one feature of the records such as records.3, "
            f"got '{value}'",
            option=key,
        )


def asked_query(
    task: TaskOption,
    form: Callable[[], Form],
    *,
    query: str | None = None,
    values: Annotated[str, _values] = "labels",
    low: float | None = None,
    high: float | None = None,
    bins: checks.Count = 10,
    edges: tuple[float, ...] | None = None,
    probabilities: tuple[float, ...] | None = None,
    max_records: checks.Count = 1,
) -> Query:
    """Return the query that is asked.

    Args:
        task: The data.
        form: Finds their shapes, which may need them.
        query: `count`, `sum`, `mean`, `histogram`, `quantiles` or `top`; None trains.
        values: `labels`, `records` (every feature) or `records.3` (the fourth feature alone).
        low: Smallest value that counts, public; not for `count`, nor for labels in `histogram` and
            `top`.
        high: Largest value that counts, public.
        bins: Bins of a histogram, or steps of the grid of quantiles, between `low` and `high`.
        edges: Public edges of the bins, in place of `low`, `high` and `bins`.
        probabilities: Probabilities of the quantiles; None is 0.25, 0.5 and 0.75.
        max_records: A client with more records counts as this many average ones of its own; the
            noise grows with it.

    Raises:
        ValueError: Range, edges or classes are missing; the text says what to write.
    """
    of_classes = values == "labels" and task.label_range is None
    features = _num_features(values, task, form)
    if query == "count":
        return Count(max_records=max_records)
    if query == "top" and not of_classes:
        raise OptionError(
            "statistic.query=top names labels that are classes: write statistic.values=labels, "
            "without task.label_range",
            option="values",
        )
    if query == "top" or (query == "histogram" and of_classes and edges is None and low is None):
        classes = tuple(range(form().num_classes))
        return Frequencies(categories=classes, max_records=max_records)
    if edges is None or query in ("sum", "mean"):
        if low is None or high is None:
            raise OptionError(
                f"{query} needs the range of its values, which is public and never read off the "
                "data: write statistic.low and statistic.high",
                option="low",
            )
        if query in ("sum", "mean"):
            kind = Sum if query == "sum" else Mean
            return kind(lows=(low,) * features, highs=(high,) * features, max_records=max_records)
        edges = tuple(np.linspace(low, high, bins + 1).tolist())
    if features > 1:
        raise OptionError(
            f"{query} is of one number a record, and records of task={task.name} have {features}: "
            "write statistic.values=records.0 or another of them",
            option="values",
        )
    if query == "histogram":
        return Histogram(edges=edges, max_records=max_records)
    if probabilities is None:
        probabilities = _QUARTILES
    return Quantiles(probabilities=probabilities, grid=edges, max_records=max_records)


def _num_features(values: str, task: TaskOption, form: Callable[[], Form]) -> int:
    """Number of features that are asked about."""
    if values == "labels":
        return 1
    width = prod(form().input_shape)
    _, _, feature = values.partition(".")
    if feature and int(feature) >= width:
        raise OptionError(
            f"records of task={task.name} have {width} features, counted from 0: write "
            f"statistic.values=records.{width - 1} or a smaller one",
            option="values",
        )
    return 1 if feature else width


def ranked(
    query: Frequencies, counts: Estimate, *, top: checks.Count = 3
) -> tuple[tuple[Category, float], ...]:
    """Return the most frequent labels with their counts.

    Args:
        query: What was asked.
        counts: Its answer.
        top: Labels that `top` names, the most frequent first.
    """
    return query.ranked(counts, min(top, query.dimension))


def chosen_noise(
    query: Query, epsilon: float, delta: float, *, law: str | None = None
) -> NoiseChoice:
    """Return the query with its noise.

    Args:
        query: What is asked.
        epsilon: Its price.
        delta: That of Gaussian noise.
        law: `laplace` or `gaussian`; None takes the smaller noise, and `gaussian` in secure sums.
    """
    from fl_dp.statistics import choose_noise  # with SciPy

    return choose_noise(query, epsilon, delta, law=law)


class StatisticOption(Option):
    """One private statistic; without `query` none is asked."""

    def __post_init__(self) -> None:
        """Check the values, and that no key is set where no statistic is asked for."""
        super().__post_init__()
        low, high = self.low, self.high
        if (low is None) != (high is None):
            raise OptionError(
                "statistic.low and statistic.high go together: write both, or neither",
                option="statistic.low",
            )
        if low is not None and not (math.isfinite(high - low) and low < high):
            raise OptionError(
                "statistic.low must be below statistic.high, and both finite, got "
                f"{low} and {high}",
                option="statistic.low",
            )
        if low is not None and self.edges is not None:
            raise OptionError(
                "statistic.edges says where bins begin and end: leave low and high out",
                option="statistic.edges",
            )
        written = [
            setting.name
            for setting in fields(self)
            if getattr(self, setting.name) != setting.default
        ]
        if self.query is None and written:
            texts = [f"statistic.{name}={getattr(self, name)}" for name in written]
            raise OptionError(
                f"{', '.join(texts)} is for a statistic, and none is asked for: write statistic."
                "query too, or leave it out",
                options=[f"statistic.{name}" for name in written],
            )


STATISTIC = option(
    "statistic",
    "",
    made_by(
        asked_query,
        query=_KEY,
        values=_KEY,
        low=_KEY,
        high=_KEY,
        bins=_KEY,
        edges=_KEY,
        probabilities=_KEY,
        max_records=_KEY,
    ),
    made_by(ranked, top=_KEY),
    made_by(chosen_noise, law=_KEY),
    base=StatisticOption,
)
