"""Input of membership attacks: confidences of many models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp


@dataclass(frozen=True, kw_only=True, eq=False)
class Observations:
    """Confidences of models trained alike, each on its own random half of candidates.

    Attributes:
        members: Bool `(models, candidates)`: whether a candidate was in a training. The coins are
            fair and independent: otherwise a score could show more than what was learned.
        candidates: Float64 `(models, candidates)`: logit-scaled confidences (`logit_confidence`),
            or a client's mean of them (`mean_per_client`).
        population: Float64 `(models, others)`: confidences of others that no model was trained on.
    """

    members: NDArray[np.bool_]
    candidates: NDArray[np.float64]
    population: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Check that everything belongs together.

        Raises:
            ValueError: If shapes differ, there are fewer than 3 models, no candidates or no
                population, or a confidence is not finite.
        """
        models = len(self.members)
        if self.members.shape != self.candidates.shape or len(self.population) != models:
            raise ValueError(
                f"members {self.members.shape}, candidates {self.candidates.shape} and population "
                f"{self.population.shape} do not belong together: give one row for each model, and "
                "one column for each candidate"
            )
        if models < 3:
            raise ValueError(
                f"{models} models are too few: give at least 3, a target and two for reference"
            )
        for name in ("candidates", "population"):
            values = getattr(self, name)
            if not values.shape[1]:
                raise ValueError(f"there are no {name}: give at least one column")
            if not np.isfinite(values).all():
                raise ValueError(
                    f"confidences of {name} are not finite: a model diverged, train it with "
                    "smaller steps"
                )

    @property
    def models(self) -> int:
        """Number of models."""
        return len(self.members)

    def references(self, target: int) -> NDArray[np.int64]:
        """The rows of all models but the target, int64 `(models - 1,)`."""
        return np.delete(np.arange(self.models), target)


def logit_confidence(
    logits: NDArray[np.floating], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The logit-scaled confidence in the right label, `log(p / (1 - p))`, float64 `(n,)`.

    Over models it is close to a Gaussian, unlike the loss (Carlini et al. 2022, section IV). It is
    computed from logits, `(n, classes)`: a `p` close to 1 would lose its digits.
    """
    wide = np.array(logits, dtype=np.float64)
    rows = np.arange(len(labels))
    right = wide[rows, labels]
    wide[rows, labels] = -np.inf
    return np.asarray(right - logsumexp(wide, axis=1), np.float64)


def mean_per_client(
    confidences: NDArray[np.float64], clients: NDArray[np.int64], num_clients: int
) -> NDArray[np.float64]:
    """Each client's mean confidence, float64 `(models, num_clients)`.

    Confidences are of records, `(models, records)`; `clients`, `(records,)`, has each record's
    client in `0..num_clients - 1`.

    Raises:
        ValueError: If a client has no record.
    """
    counts = np.bincount(clients, minlength=num_clients)
    if not counts.all():
        raise ValueError(f"client {int(np.argmin(counts))} has no record to be known by")
    sums = [np.bincount(clients, row, minlength=num_clients) for row in confidences]
    return np.asarray(np.stack(sums) / counts, np.float64)
