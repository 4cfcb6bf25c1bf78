"""Results of an experiment: a file for each cell, a CSV, and means over images and seeds."""

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

_PICTURES = ("truth", "recovered", "nearest", "mean")


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What one cell came to.

    Attributes:
        rows: One for each attacked image, as of the CSV.
        truth: The attacked images, pixels from 0 to 1, `(k, channels, height, width)`; of text
            here and below tokens, `(k, length)`.
        recovered: What the attack made of each.
        nearest: The prior's nearest to each.
        mean: The prior's mean image; of text its most frequent token, at every place.
    """

    rows: list[dict[str, Any]]
    truth: NDArray[Any]
    recovered: NDArray[Any]
    nearest: NDArray[Any]
    mean: NDArray[Any]


def keep(found: Found, file: Path) -> None:
    """Write what a cell found; the file is there as a whole or not at all."""
    arrays = {name: getattr(found, name) for name in _PICTURES}
    with written_whole(file) as unfinished, unfinished.open("wb") as stream:
        np.savez_compressed(stream, rows=np.array(json.dumps(found.rows)), **arrays)


def kept(file: Path) -> Found:
    """Return what a cell found before.

    Raises:
        FileNotFoundError: If it is not finished.
        ValueError: If the file is none of these.
    """
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in _PICTURES}
            return Found(rows=json.loads(str(stored["rows"])), **arrays)
    except (KeyError, ValueError, BadZipFile) as error:
        raise ValueError(
            f"{file} is no finished cell ({error}): remove it to do it again"
        ) from error


SCORES = ("mse", "psnr", "ssim")
BASELINES = ("mean_image", "nearest")

_SETTING = ("part", "threat", "attack", "noise_multiplier", "records", "epochs", "network")
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
    """Return whether scores are those of text, from a row of the CSV or a summary's means."""
    return "in_place" in row


def error_of(row: Mapping[str, Any]) -> float:
    """Return what is least where a recovery is best: the MSE, or the share of wrong tokens."""
    return 1.0 - float(row["in_place"]) if is_of_text(row) else float(row["mse"])


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All images of one setting.

    Attributes:
        part: As of `RecoveryCell`, like the next six.
        threat: See there.
        attack: See there.
        noise_multiplier: See there.
        records: See there.
        epochs: See there.
        network: See there.
        epsilon: Of the round; infinite where nothing is promised.
        delta: Of that epsilon.
        unit: What epsilon protects.
        images: How many, or texts, over all seeds.
        means: Of each score of the CSV over seeds, each seed's mean over its images first.
        deviations: Standard deviation of the same over seeds; NaN for one seed.
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
    images: int
    means: dict[str, float]
    deviations: dict[str, float]

    @property
    def fails(self) -> bool:
        """Whether images are no nearer to the true ones than the mean image is, in MSE.

        Of text: whether no more tokens are in place than the most frequent one would be.
        """
        if is_of_text(self.means):
            return self.means["in_place"] <= self.means["guess_in_place"]
        return self.means["mse"] >= self.means["mean_image_mse"]


def summarised(rows: Iterable[Mapping[str, Any]]) -> list[Summary]:
    """Return a summary of each setting, in the order in which they first occur.

    Args:
        rows: Of cells, as of the CSV.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in _SETTING), []).append(row)
    return [_summary(members) for members in groups.values()]


def strongest(
    summaries: Sequence[Summary],
    by: Callable[[Summary], tuple[object, ...]] = lambda each: (each.noise_multiplier,),
) -> list[Summary]:
    """Return of each group of summaries the one whose attack has the least error."""
    best: dict[tuple[object, ...], Summary] = {}
    for each in summaries:
        known = best.get(by(each))
        if known is None or error_of(each.means) < error_of(known.means):
            best[by(each)] = each
    return list(best.values())


def fails_from(summaries: Iterable[Summary]) -> Summary | None:
    """Return the least noise from which on a recovery fails, whatever more noise there is.

    Args:
        summaries: Of one threat model, one for each noise multiplier.

    Returns:
        None where it does not fail at the largest noise that was tried.
    """
    failing = None
    for each in sorted(summaries, key=lambda one: -one.noise_multiplier):
        if not each.fails:
            break
        failing = each
    return failing


def _summary(rows: Sequence[Mapping[str, Any]]) -> Summary:
    seeds = sorted({row["seed"] for row in rows})
    of_seeds = {
        key: [statistics.fmean(row[key] for row in rows if row["seed"] == seed) for seed in seeds]
        for key in (_OF_TEXT if is_of_text(rows[0]) else _OF_IMAGES)
    }
    first = rows[0]
    return Summary(
        **{key: first[key] for key in (*_SETTING, "epsilon", "delta", "unit")},
        images=len(rows),
        means={key: statistics.fmean(values) for key, values in of_seeds.items()},
        deviations={key: _deviation(values) for key, values in of_seeds.items()},
    )


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation; NaN of one value, or where a PSNR is infinite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values)
