"""Results of an experiment: a file per cell, a CSV, and means over images and seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fl_dp.files import written_whole
from fl_dp.guarantee import Against, Guarantee

_PICTURES = ("truth", "recovered", "nearest", "mean")


@dataclass(frozen=True, kw_only=True, eq=False)
class CellResult:
    """Result of one cell; images have pixels from 0 to 1, `(k, channels, height, width)`.

    For text, tokens `(k, length)` stand for images.

    Attributes:
        rows: The CSV's rows, one per attacked image.
        truth: The attacked images.
        nearest: The prior's nearest image to each.
        mean: The prior's mean image; for text its most frequent token, repeated.
    """

    rows: list[dict[str, Any]]
    truth: NDArray[Any]
    recovered: NDArray[Any]
    nearest: NDArray[Any]
    mean: NDArray[Any]


def save_result(result: CellResult, file: Path) -> None:
    """Write a cell's result; the file is whole or absent."""
    arrays = {name: getattr(result, name) for name in _PICTURES}
    with written_whole(file) as unfinished, unfinished.open("wb") as stream:
        np.savez_compressed(stream, rows=np.array(json.dumps(result.rows)), **arrays)


def load_result(file: Path) -> CellResult:
    """A cell's result, from its file.

    Raises:
        FileNotFoundError: If the cell is not finished.
        ValueError: If the file is no result.
    """
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in _PICTURES}
            rows = json.loads(str(stored["rows"]))
            _ = [[row[name] for name in _PROMISE] for row in rows]  # an older version had fewer
            return CellResult(rows=rows, **arrays)
    except (KeyError, ValueError, BadZipFile) as error:
        raise ValueError(
            f"{file} is no finished cell ({error}): remove it to do it again"
        ) from error


SCORES = ("mse", "psnr", "ssim")
BASELINES = ("mean_image", "nearest")

_SETTING = ("part", "threat", "attack", "noise_multiplier", "records", "epochs", "network")
_PROMISE = ("epsilon", "delta", "unit", "neighbours", "against")
_OF_IMAGES = (
    "label_recovered",
    *SCORES,
    *(f"{baseline}_{score}" for baseline in BASELINES for score in SCORES),
)
_OF_TEXT = (
    "in_place",
    "guess_in_place",
    "nearest_in_place",
    "occurring",
    "guess_occurring",
)


def is_of_text(row: Mapping[str, Any]) -> bool:
    """Whether a CSV's row or a summary's means are of text."""
    return "in_place" in row


def error_of(row: Mapping[str, Any]) -> float:
    """A recovery's error: the MSE, or the share of wrong tokens."""
    if is_of_text(row):
        return 1.0 - float(row["in_place"])
    return float(row["mse"])


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All images of one setting; the first seven fields are as in `RecoveryCell`.

    Attributes:
        epsilon: Epsilon of the round at `delta`; infinite where nothing is promised.
        unit: Unit that epsilon protects, of `UNITS`.
        neighbours: Its neighbouring relation.
        against: Its adversary.
        images: Number of images or texts, over all seeds.
        means: Each score's mean over seeds, after the mean over each seed's images.
        deviations: Their standard deviation over seeds; NaN for one seed or an infinite PSNR.
    """

    part: str
    threat: str
    attack: str
    noise_multiplier: float
    records: int
    epochs: int
    network: str
    epsilon: float
    delta: float
    unit: str
    neighbours: str
    against: str
    images: int
    means: dict[str, float]
    deviations: dict[str, float]

    @property
    def guarantee(self) -> Guarantee:
        """The round's promise, as every screen shows it."""
        return Guarantee(
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            neighbours=self.neighbours,
            against=Against(self.against),
        )

    @property
    def fails(self) -> bool:
        """Whether recovered images are no nearer to the true ones than the mean image, in MSE.

        For text: whether no more tokens are in place than with the most frequent one everywhere.
        """
        if is_of_text(self.means):
            return self.means["in_place"] <= self.means["guess_in_place"]
        return self.means["mse"] >= self.means["mean_image_mse"]


def summarised(rows: Iterable[Mapping[str, Any]]) -> list[Summary]:
    """A summary of each setting in the CSV's rows, in order of first occurrence."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in _SETTING), []).append(row)
    return [_summary(members) for members in groups.values()]


def strongest(
    summaries: Sequence[Summary],
    by: Callable[[Summary], tuple[object, ...]] = lambda summary: (summary.noise_multiplier,),
) -> list[Summary]:
    """Each group's summary with the least error."""
    best: dict[tuple[object, ...], Summary] = {}
    for summary in summaries:
        group = by(summary)
        incumbent = best.get(group)
        if incumbent is None or error_of(summary.means) < error_of(incumbent.means):
            best[group] = summary
    return list(best.values())


def fails_from(summaries: Iterable[Summary]) -> Summary | None:
    """The least noise at and above which recovery fails under one threat; else None."""
    failing = None
    for summary in sorted(summaries, key=lambda summary: -summary.noise_multiplier):
        if not summary.fails:
            break
        failing = summary
    return failing


def _summary(rows: Sequence[Mapping[str, Any]]) -> Summary:
    first = rows[0]
    by_seed: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append(row)
    means, deviations = {}, {}
    for key in _OF_TEXT if is_of_text(first) else _OF_IMAGES:
        of_seeds = [statistics.fmean(row[key] for row in by_seed[seed]) for seed in sorted(by_seed)]
        means[key], deviations[key] = statistics.fmean(of_seeds), _deviation(of_seeds)
    return Summary(
        **{key: first[key] for key in (*_SETTING, *_PROMISE)},
        images=len(rows),
        means=means,
        deviations=deviations,
    )


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation; NaN for one value, or if a PSNR is infinite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values)
