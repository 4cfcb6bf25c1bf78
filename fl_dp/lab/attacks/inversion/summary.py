"""Means over images and seeds of what an experiment found, and where each recovery fails."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCORES = ("mse", "psnr", "ssim")
BASELINES = ("mean_image", "nearest")

_SETTING = ("part", "threat", "attack", "noise_multiplier", "records", "epochs", "network")
_MEASURED = (
    "label_recovered",
    *SCORES,
    *(f"{baseline}_{score}" for baseline in BASELINES for score in SCORES),
)


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
        delta: That goes with it.
        unit: What epsilon protects.
        images: How many, over all seeds.
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
        """Whether images are no nearer to the true ones than the mean image is, in MSE."""
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
        for key in _MEASURED
    }
    first = rows[0]
    return Summary(
        **{key: first[key] for key in (*_SETTING, "epsilon", "delta", "unit")},
        images=len(rows),
        means={key: statistics.fmean(values) for key, values in of_seeds.items()},
        deviations={
            key: statistics.stdev(values) if len(values) > 1 else math.nan
            for key, values in of_seeds.items()
        },
    )
