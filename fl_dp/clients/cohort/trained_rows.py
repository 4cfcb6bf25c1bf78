"""The training of a cohort, all clients' steps at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fl_dp.model_modes import set_training_mode

from .cohort_size import filled_up
from .entries import Entries
from .image_layers import ImageLayers
from .loss_of_rows import Form, LossOfRows
from .made_up_step import Tried
from .mask_coins import MaskCoins
from .optimizers import first_rows, optimizer_of, step
from .training import LocalTraining, UnitData


def trained_rows(
    model: nn.Module,
    units: Sequence[UnitData],
    form: Form,
    tried: Tried,
    training: LocalTraining,
    entries: Entries,
    images: ImageLayers,
) -> Tensor:
    """The trained rows of a cohort, whose clients are sorted by falling steps."""
    model = copy.deepcopy(model)  # what it stores must not reach the next cohort
    set_training_mode(model)
    device = entries.device
    x = torch.cat([unit.features for unit in units]).to(device)
    y = torch.cat([unit.labels for unit in units]).to(device)
    counts = [len(unit.labels) for unit in units]
    steps = [training.steps(count) for count in counts]
    batches, weights = _batches(units, counts, steps, form, training)
    batches, weights = batches.to(device), weights.to(device, entries.dtype)
    coins = MaskCoins([unit.seed for unit in units], device, step=tried.coins)
    loss_of_rows = LossOfRows(model, training.loss, form, images, coins)
    trained = entries.first.repeat(len(units), 1)
    active, rows = len(units), filled_up(len(units))
    leaves = entries.leaves(rows)
    optimizer = optimizer_of(training.optimizer, list(leaves.values()))
    for number in range(steps[0]):
        left = sum(own > number for own in steps)
        if left < active:  # a finished client's row is taken out before it could move
            _take_out(leaves, trained, slice(left, active), entries)
            active = left
            if (fewer := filled_up(active)) < rows:
                rows = fewer
                optimizer, first = first_rows(
                    training.optimizer, optimizer, list(leaves.values()), rows
                )
                leaves = dict(zip(leaves, first, strict=True))
        coins.begin_step(number, steps, rows=rows)
        batch = batches[number, :rows]
        loss = loss_of_rows(leaves, x[batch], y[batch], weights[number, :rows])
        step(optimizer, list(leaves.values()), loss)
    _take_out(leaves, trained, slice(0, active), entries)
    return trained


def _take_out(
    leaves: dict[str, nn.Parameter], trained: Tensor, rows: slice, entries: Entries
) -> None:
    for name, leaf in leaves.items():
        if (columns := entries.columns.get(name)) is not None:
            trained[rows, columns] = leaf.detach()[rows].flatten(1).to(trained.dtype)


def _batches(
    units: Sequence[UnitData],
    counts: Sequence[int],
    steps: Sequence[int],
    form: Form,
    training: LocalTraining,
) -> tuple[Tensor, Tensor]:
    """The rows of each step and their weights in the mean, `(steps, clients, width)`.

    Rows are counted through the cohort. Batches are filled up with a row of the same batch, of
    weight zero: zeros as records might divide by zero.
    """
    shape = (steps[0], filled_up(len(units)), form.width)
    rows, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float64)
    before = 0
    for index, (unit, count) in enumerate(zip(units, counts, strict=True)):
        for number, batch in enumerate(training.batches(count, unit.seed)):
            rows[number, index, : len(batch)] = before + batch
            rows[number, index, len(batch) :] = before + batch[0]
            weights[number, index, : len(batch)] = 1.0 / len(batch)
        before += count
    return torch.from_numpy(rows), torch.from_numpy(weights)
