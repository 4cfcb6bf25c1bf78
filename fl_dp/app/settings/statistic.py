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
from fl_dp.tasks.datasets import DataFormat, Form
from fl_dp.tasks.datasets.columns import Column, described_columns
from fl_dp.tasks.datasets.names import listed

from . import checks
from .data import TaskOption
from .option import Option, key, made_by, option

if TYPE_CHECKING:
    from fl_dp.statistics import NoiseChoice

_KEY = key(tracked=False)
_QUARTILES = (0.25, 0.5, 0.75)


def _values(key: str, value: str) -> None:
    name, _, feature = value.partition(".")
    if value not in ("labels", "records", "missing") and not (name == "records" and feature):
        raise OptionError(
            f"{key} must be labels, records, one feature of the records such as records.3, a "
            f"column of the schema such as records.age, or missing, got '{value}'",
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
        values: `labels`, `records` (every feature), `records.3` (the fourth feature alone),
            `records.age` (a column of the schema), or `missing` (1 where a cell has no value).
        low: Smallest value that counts, public; not for `count`, nor for labels in `histogram` and
            `top`. None: the lower end of the column's range.
        high: Largest value that counts, public.
        bins: Bins of a histogram, or steps of the grid of quantiles, between `low` and `high`.
        edges: Public edges of the bins, in place of `low`, `high` and `bins`.
        probabilities: Probabilities of the quantiles; None is 0.25, 0.5 and 0.75.
        max_records: A client with more records counts as this many average ones of its own; the
            noise grows with it.

    Raises:
        ValueError: Range, edges or classes are missing; the text says what to write.
    """
    column, features = _asked_values(values, task, form)
    if query == "count":
        return Count(max_records=max_records)
    categories: tuple[Category, ...] = ()
    if values == "labels" and task.label_range is None:
        categories = tuple(range(form().num_classes))
    elif column is not None and column.categories is not None:
        categories = column.names
        if query not in ("histogram", "top") or edges is not None or low is not None:
            raise OptionError(
                f"{values} is a category: write statistic.query=histogram or top, without a range",
                option="values",
            )
    if query == "top" and not categories:
        raise OptionError(
            "statistic.query=top names labels that are classes, or categories of a schema: write "
            "statistic.values=labels, without task.label_range",
            option="values",
        )
    if query == "top" or (query == "histogram" and categories and edges is None and low is None):
        return Frequencies(categories=categories, max_records=max_records)
    if values == "missing":
        low, high = 0.0, 1.0
    elif column is not None and column.range is not None and low is None:
        low, high = column.range
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
            f"{query} is of one number a record, and {values} of task={task.name} have {features}: "
            "write statistic.query=mean, or statistic.values=records.0 or another of them",
            option="values",
        )
    if query == "histogram":
        return Histogram(edges=edges, max_records=max_records)
    if probabilities is None:
        probabilities = _QUARTILES
    return Quantiles(probabilities=probabilities, grid=edges, max_records=max_records)


def _asked_values(
    values: str, task: TaskOption, form: Callable[[], Form]
) -> tuple[Column | None, int]:
    """The schema's column that is asked about, if one is, and the numbers that a record has."""
    if values == "labels":
        return None, 1
    width = prod(form().input_shape)
    _, _, name = values.partition(".")
    if values == "records":
        return None, width
    if name.isdecimal():
        if int(name) < width:
            return None, 1
        raise OptionError(
            f"records of task={task.name} have {width} features, counted from 0: write "
            f"statistic.values=records.{width - 1} or a smaller one",
            option="values",
        )
    columns = described_columns(task.make_by(DataFormat)) if task.is_own else {}
    if width != sum(column.width for column, _ in columns.values()):
        raise OptionError(
            f"statistic.values={values} is of columns that a schema describes, and none describes "
            f"the records of task={task.name}: write records.0 or another of them",
            option="values",
        )
    if values == "missing":
        names = columns_that_may_lack(task)
        if names:
            return None, len(names)
        raise OptionError(
            "no column of the schema may lack a value: write missing: ['*'] at those that may",
            option="values",
        )
    if name not in columns:
        raise OptionError(
            f"the schema describes no column '{name}', or its facts are blank: write public "
            f"candidates for it, or one of {listed([*columns])}",
            option="values",
        )
    column, _ = columns[name]
    if column.range is None and column.categories is None:
        raise OptionError(
            f"{values} is free text, of which nothing is counted: ask about a number or a category",
            option="values",
        )
    return column, 1


def columns_that_may_lack(task: TaskOption) -> tuple[str, ...]:
    """Names of the schema's columns of which a cell may have no value."""
    columns = described_columns(task.make_by(DataFormat)).items()
    return tuple(name for name, (column, _) in columns if column.missing is not None)


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
