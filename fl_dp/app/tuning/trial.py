"""Short trial of a candidate on a few records: a small federation on one client.

The client deals its records to at most four stand-ins, which train like clients of the run. The
mean of their clipped updates gets a real round's noise, then the run's server optimizer. So a
candidate does badly here, too, if its signal drowns in noise or its clients disagree. The noise
protects nobody: a score leaves the client, bounded and charged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_dp.app.settings import Settings
from fl_dp.app.settings.optimizers import sgd
from fl_dp.app.settings.option import Option
from fl_dp.mechanisms import clip_by_norm
from fl_dp.model_arrays import get_arrays, set_arrays
from fl_dp.tasks.datasets.forms import SCALED_LABELS
from fl_dp.tasks.training import evaluate, train_locally


class ServerStep:
    """State of a server optimizer over a trial's rounds."""

    def __init__(self, settings: Option, rounds: int) -> None:
        """Start before the first of `rounds` rounds."""
        self._settings = settings
        self._last = rounds
        self._rounds = 0
        self._mean: NDArray[np.float64] | float = 0.0
        self._squares: NDArray[np.float64] | float = 0.0

    def of(self, update: NDArray[np.float64]) -> NDArray[np.float64]:
        """The model's change for a round's mean update, in its shape."""
        chosen, remaining = self._settings, 1.0 - self._rounds / self._last
        self._rounds += 1
        rate: float | None = chosen.get("learning_rate")
        if rate is None:  # fedavg
            return update
        if chosen.linear_decay:
            rate *= remaining
        if chosen.get("momentum") is not None:
            self._mean = chosen.momentum * self._mean + update
            return np.asarray(rate * self._mean)
        if chosen.get("beta_1") is None:
            self._mean, self._squares = update, self._squares + update**2
        else:
            self._mean = chosen.beta_1 * self._mean + (1.0 - chosen.beta_1) * update
            self._squares = self._decayed(chosen, update**2)
            if chosen.option != "fedyogi":
                later = self._rounds + 1.0  # as Flower counts
                rate *= math.sqrt(1.0 - chosen.beta_2**later) / (1.0 - chosen.beta_1**later)
        return np.asarray(rate * self._mean / (np.sqrt(self._squares) + chosen.tau))

    def _decayed(self, chosen: Option, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """The next running squares of `fedadam` or `fedyogi`."""
        before, decay = self._squares, chosen.beta_2
        if chosen.option == "fedyogi":
            return np.asarray(before - (1.0 - decay) * squares * np.sign(before - squares))
        return np.asarray(decay * before + (1.0 - decay) * squares)


_HELD_OUT = 3  # one record in three is kept for the score
_STAND_INS = 4


@dataclass(frozen=True, kw_only=True)
class TrialRounds:
    """Public rounds of a trial, with the real training's noise.

    Attributes:
        most: Rounds of a trial; fewer if the real training has fewer.
        multiplier: Noise multiplier of a round.
        denominator: Public divisor of a round's sum.
    """

    most: int
    multiplier: float
    denominator: float

    def std(self, clipping_norm: float) -> float:
        """The noise's standard deviation on each coordinate of a round's mean."""
        return self.multiplier * clipping_norm / self.denominator


def trial_score(
    settings: Settings,
    features: NDArray[Any],
    labels: NDArray[Any],
    *,
    rounds: TrialRounds,
    seed: int,
    build: Callable[[], nn.Module],
) -> float:
    """Score a candidate, in `settings`, on records that its trial did not train on.

    Up to a third of the records is measured: only those whose label another record has, too, as
    most clients lack some labels. Where labels are numbers, any third is measured.

    Features are `(n, ...)`, labels `(n,)`. All candidates have the same `seed`, of split, order of
    records and noise. `build` returns the candidate's model with its first weights.

    Returns:
        Share of the client's other labels ranked below the right one, in [0, 1]: an accuracy for
        two labels. For numbers: 1 minus the mean absolute error, as a share of their range. NaN if
        no record can be spared, or with one label.
    """
    of_numbers = np.issubdtype(labels.dtype, np.floating)
    classes = np.zeros_like(labels) if of_numbers else labels
    measured, trained = _split(classes, seed)
    trained_labels = np.unique(labels[trained])
    if not len(measured) or (len(trained_labels) < 2 and not of_numbers):
        return math.nan
    parts = [trained[first::_STAND_INS] for first in range(min(_STAND_INS, len(trained)))]
    stand_ins = [(features[rows], labels[rows]) for rows in parts]
    model = build()
    _train(model, settings, stand_ins, rounds=rounds, seed=seed)
    if of_numbers:
        low, high = SCALED_LABELS
        rows = features[measured], labels[measured]
        _, error = evaluate(model, *rows, label_range=SCALED_LABELS)
        return 1.0 - error / (high - low)
    return _ranked_right(model, features[measured], labels[measured], trained_labels)


def _split(labels: NDArray[Any], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows to measure, and those to train on, with every label."""
    most, remaining = len(labels) // _HELD_OUT, Counter(labels.tolist())
    measured: list[int] = []
    trained: list[int] = []
    for row in np.random.default_rng(seed).permutation(len(labels)):
        label = int(labels[row])
        if len(measured) < most and remaining[label] > 1:
            remaining[label] -= 1
            measured.append(int(row))
        else:
            trained.append(int(row))
    return np.array(measured, dtype=np.int64), np.array(trained, dtype=np.int64)


def _train(
    model: nn.Module,
    settings: Settings,
    stand_ins: list[tuple[NDArray[Any], NDArray[Any]]],
    *,
    rounds: TrialRounds,
    seed: int,
) -> None:
    """Train a model in place by rounds of the stand-ins."""
    count, norm = min(rounds.most, settings.rounds), settings.clipping.norm
    # The total noise is that of the run: with less, steps and norms would win that drown later.
    std = rounds.std(norm) * math.sqrt(settings.rounds / count)
    draws = np.random.default_rng(seed)
    step, shapes = ServerStep(settings.server_optimizer, count), list(get_arrays(model).values())
    current = _flat(model)
    for number in range(count):
        total = np.zeros_like(current)
        # One by one: with a handful of stand-ins, a batch takes longer.
        for features, labels in stand_ins:
            set_arrays(model, _shaped(current, shapes))
            train_locally(
                model, features, labels, seed=seed + number, **settings.client.arguments(sgd)
            )
            total += clip_by_norm(_flat(model) - current, norm)
        mean = total / len(stand_ins) + std * draws.standard_normal(current.size)
        current = current + step.of(mean)
    set_arrays(model, _shaped(current, shapes))


def _flat(model: nn.Module) -> NDArray[np.float64]:
    """A model's numbers in one vector."""
    parts = [array.ravel() for array in get_arrays(model).values()]
    return np.concatenate(parts).astype(np.float64)


def _shaped(flat: NDArray[np.float64], arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """A vector in the arrays' shapes and types."""
    ends = np.cumsum([array.size for array in arrays])[:-1]
    return [
        part.reshape(array.shape).astype(array.dtype)
        for part, array in zip(np.split(flat, ends), arrays, strict=True)
    ]


def _ranked_right(
    model: nn.Module,
    features: NDArray[Any],
    labels: NDArray[np.int64],
    trained_labels: NDArray[np.int64],
) -> float:
    """The share of other trained labels with a lower logit than the right; ties halve."""
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(np.ascontiguousarray(features)).to(device)).cpu().numpy()
    right, others = logits[np.arange(len(labels)), labels][:, None], logits[:, trained_labels]
    # The right label is among the trained ones, and its tie with itself does not count.
    above = (right > others).sum(axis=1) + 0.5 * ((right == others).sum(axis=1) - 1)
    return float(np.mean(above) / (len(trained_labels) - 1))
