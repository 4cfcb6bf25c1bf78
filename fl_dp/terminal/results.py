"""Results of a sweep as a table that programs read: `results.csv`, one line per training."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fl_dp.guarantee import Guarantee
from fl_dp.tasks.public_scores import NUMBERS, Score

from .sheets import write_sheet


@dataclass(frozen=True, kw_only=True)
class Result:
    """One training of a sweep; a line of `results.csv`, where None is an empty field.

    Attributes:
        cell: The training's folder within the sweep's.
        curve: The curve on which it lies.
        x: Its position on the axis: a number, `inf`, or a name; None where there is no axis.
        seed: Seed of partition, first weights and shuffling.
        accuracy: Accuracy of the last model; None where the label is a number.
        loss: Loss of the last model: mean cross-entropy in nats, or mean squared error.
        measured_on: The public rows of both: `test` or `validation`.
        epsilon: The epsilon that the statement quotes for all charges; infinite without privacy.
        delta: The delta of that epsilon.
        unit: The privacy unit, `client` or `record`; None where nothing is promised.
        neighbours: The neighbouring relation, for example `zero-out`; None as above.
        against: The adversary, in a few words; None as above.
        noise_multiplier: Noise standard deviation over the clipping norm, in the rounds with the
            least noise; under local noise of one client's message, under DP-SGD of one step.
        noise_of_mean: Noise standard deviation of each coordinate of the mean update, in the same
            rounds; None where it is not Gaussian or is added inside clients' training.
        rounds: Rounds that were charged, or done if nothing is charged.
        seconds: Duration on the machine that ran it; None if it was resumed.
        versions: Versions behind a privacy number, `name version` with semicolons between.
        metrics: Other metrics of the last model on the same rows, one column each.
    """

    cell: str
    curve: str
    x: str | None
    seed: int
    accuracy: float | None
    loss: float
    measured_on: str
    epsilon: float
    delta: float
    unit: str | None
    neighbours: str | None
    against: str | None
    noise_multiplier: float | None
    noise_of_mean: float | None
    rounds: int
    seconds: float | None
    versions: str
    metrics: Mapping[str, float] = field(default_factory=dict)

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
    def promise(self) -> Guarantee | None:
        """The promise; None where nothing is promised."""
        guarantee = Guarantee.read(asdict(self))
        return guarantee if guarantee is not None and guarantee.promises else None

    @property
    def position(self) -> float | None:
        """Its position on the axis as a number; None if it is a name, or there is none."""
        if self.x is None:
            return None
        try:
            return float(self.x)
        except ValueError:
            return None


def write_results(results: Iterable[Result], target: Path) -> None:
    """Write `results.csv`, whole or not at all."""
    names = [field.name for field in fields(Result) if field.name != "metrics"]
    columns = [*names, *NUMBERS]
    documents = (asdict(result) | dict(result.metrics) for result in results)
    rows = ([document.get(name) for name in columns] for document in documents)
    write_sheet(target, columns, rows, public=True)


def read_results(source: Path) -> list[Result]:
    """Read what `write_results` wrote.

    Raises:
        OSError: If it can't be read.
        ValueError: If it is another file.
    """
    with source.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    kinds = get_type_hints(Result)
    readers = {name: _reader(kind) for name, kind in kinds.items() if name != "metrics"}
    try:
        return [
            Result(metrics=_metrics(row), **{key: read(row[key]) for key, read in readers.items()})  # type: ignore[arg-type]  # from text, by each field's own reader
            for row in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{source} is not what a sweep of fl-dp writes: {error!r}") from error


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
