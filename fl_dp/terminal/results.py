"""Results of trainings, and the table of a sweep's that programs read: `results.csv`."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fl_dp.guarantee import Guarantee
from fl_dp.tasks.public_scores import NUMBERS, Score

from .sheets import write_sheet

DEFAULT = "default"
"""Curve of a training that no override distinguishes."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One training; every number is public or covered by its promise.

    `results.csv` has a sweep's, one a line, without the last four.

    Attributes:
        path: The training's folder; `cell` is its name within the sweep's.
        curve: The overrides that distinguish it from its siblings, without the seed, or its curve
            in an experiment's picture; `default` where there are none.
        x: Its position on the axis: a number, `inf`, or a name; None where there is no axis.
        seed: Seed of partition, first weights and shuffling.
        accuracy: Accuracy of the last model; None where the label is a number.
        loss: Loss of the last model: mean cross-entropy in nats, or mean squared error.
        measured_on: The public rows of both: `test`, or `validation` where settings are chosen.
        promise: The promise of its statement.
        noise_multiplier: Noise standard deviation over the clipping norm, in the rounds with the
            least noise; under local noise of one client's message, under DP-SGD of one step.
        noise_of_mean: Noise standard deviation of each coordinate of the mean update, in the same
            rounds; None where it is not Gaussian or is added inside clients' training.
        rounds: Rounds that were charged, or done if nothing is charged.
        seconds: Duration on the machine that ran it; None if it was resumed.
        versions: Versions behind a privacy number, `name version` with semicolons between.
        metrics: Other metrics of the last model on the same rows, one column each.
        of_records: The promise to each record besides; None where `promise` is all.
        bytes_down: Bytes of the arrays in a message to a client; None if no round was done.
        bytes_up: Bytes of the arrays in its reply.
        spent_in_rounds: Epsilon of the rounds alone, where the last model was measured on clients'
            rows as well; else None.
    """

    path: str
    curve: str = DEFAULT
    x: str | None = None
    seed: int
    accuracy: float | None
    loss: float
    measured_on: str = "test"
    promise: Guarantee
    noise_multiplier: float | None = None
    noise_of_mean: float | None = None
    rounds: int
    seconds: float | None = None
    versions: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    of_records: Guarantee | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    spent_in_rounds: float | None = None

    @property
    def cell(self) -> str:
        """The folder's name."""
        return Path(self.path).name

    @property
    def variant(self) -> str:
        """Curve and position, the same for runs that differ in their seed; empty for the usual."""
        curve = "" if self.curve == DEFAULT else self.curve
        return curve if self.x is None else f"{curve} at {self.x}"

    @property
    def epsilon(self) -> float:
        """The epsilon that the statement quotes for all charges; infinite without privacy."""
        promise = self.promise
        return math.inf if promise.epsilon is None or promise.insecure else promise.epsilon

    def number(self, column: str) -> float | None:
        """Return the number in a column; None where it is empty."""
        value = self.metrics.get(column) if column in NUMBERS else getattr(self, column)
        if value is None:
            return None
        return float(value)

    @property
    def score(self) -> Score:
        """The score of the last model."""
        return Score.of(self.accuracy, self.metrics, self.measured_on)

    @property
    def position(self) -> float | None:
        """Its position on the axis as a number; None if it is a name, or there is none."""
        if self.x is None:
            return None
        try:
            return float(self.x)
        except ValueError:
            return None


_PROMISE = ("delta", "unit", "neighbours", "against")
_OF_RESULT = ("cell", "curve", "x", "seed", "accuracy", "loss", "measured_on", "epsilon")
_OF_NOISE = ("noise_multiplier", "noise_of_mean", "rounds", "seconds", "versions")
_COLUMNS = (*_OF_RESULT, *_PROMISE, *_OF_NOISE)


def write_results(results: Iterable[Result], target: Path) -> None:
    """Write `results.csv`, whole or not at all."""
    rows = []
    for result in results:
        cells = {name: getattr(result, name) for name in (*_OF_RESULT, *_OF_NOISE)}
        cells |= {name: getattr(result.promise, name) for name in _PROMISE} | dict(result.metrics)
        rows.append([cells.get(name) for name in (*_COLUMNS, *NUMBERS)])
    write_sheet(target, [*_COLUMNS, *NUMBERS], rows, public=True)


def read_results(source: Path) -> list[Result]:
    """Read what `write_results` wrote; each path is the folder's name.

    Raises:
        OSError: If it can't be read.
        ValueError: If it is another file.
    """
    with source.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    kinds = get_type_hints(Result)
    readers = {name: _reader(kinds[name]) for name in _COLUMNS if name in kinds}
    try:
        return [
            Result(
                path=row["cell"],
                promise=_promise(row),
                metrics=_metrics(row),
                **{name: read(row[name]) for name, read in readers.items()},  # type: ignore[arg-type]  # from text, by each field's own reader
            )
            for row in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{source} is not what a sweep of fl-dp writes: {error!r}") from error


def _promise(row: Mapping[str, str]) -> Guarantee:
    numbers = {name: float(row[name]) for name in ("epsilon", "delta")}
    promise = Guarantee.read({name: row[name] for name in _PROMISE} | numbers)
    assert promise is not None  # it is an object
    return promise


def _metrics(row: Mapping[str, str | None]) -> dict[str, float]:
    return {name: float(text) for name in NUMBERS if (text := row.get(name))}


def _reader(kind: Any) -> Callable[[str], object]:
    """Return a function that reads a field from text; an optional field is None if empty."""
    convert, *optional = get_args(kind) or (kind,)
    return lambda text: convert(text) if text or not optional else None


@dataclass(frozen=True, kw_only=True)
class Point:
    """Results that differ only in their seed, as one point of a picture.

    Attributes:
        x: Their position on the axis.
        mean: Mean over the seeds.
        deviation: Sample standard deviation over the seeds; 0 for one.
    """

    x: str | None
    mean: float
    deviation: float


def points(results: Sequence[Result], curve: str, column: str) -> list[Point]:
    """Return a curve's points in the order of the results, without those that lack a number.

    The column is one of numbers of `Result`, for example `accuracy`.
    """
    by_position: dict[str | None, list[float]] = {}
    for result in results:
        value = result.number(column)
        if result.curve == curve and value is not None:
            by_position.setdefault(result.x, []).append(value)
    drawn = []
    for x, values in by_position.items():
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        drawn.append(Point(x=x, mean=statistics.fmean(values), deviation=deviation))
    return drawn


def least_noise(statement: Mapping[str, Any]) -> float | None:
    """Return the noise multiplier of the rounds with the least noise; None without noise."""
    of_rounds = statement.get("noise_multipliers")
    return min(of_rounds) if of_rounds else statement.get("noise_multiplier")


def noise_of_mean(
    statement: Mapping[str, Any], *, scheme: str | None, cohort: float
) -> float | None:
    """Return the standard deviation of the noise on a coordinate of the mean update.

    Args:
        statement: A statement, read from JSON.
        scheme: Noise that the clients add; None if they add none.
        cohort: Expected number of clients of a round.

    Returns:
        The standard deviation in the rounds with the least noise; None where it is not Gaussian or
        is added inside clients' training.
    """
    noise = least_noise(statement)
    if noise is None or "denominator" not in statement:
        return None  # noise of DP-SGD, or none
    on_sum = noise * float(statement["clipping_norm"])
    if scheme is not None:
        if scheme != "gaussian":
            return None
        on_sum *= math.sqrt(cohort)  # each message has its own noise
    return on_sum / float(statement["denominator"])
