"""The training of a cohort, all clients' steps at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fl_dp.model_modes import set_training_mode

from .cohort_optimizers import first_rows, optimizer_of, step
from .cohort_size import filled_up
from .image_layers import ImageLayers
from .local_training import LocalTraining, UnitData
from .loss_of_rows import CohortForm, LossOfRows
from .mask_coins import MaskCoins
from .model_entries import Entries
from .step_graph import FEWEST_REPLAYS, Capture, captured


@dataclass(frozen=True, kw_only=True)
class CohortTraining:
    """What clients of one cohort have in common.

    Attributes:
        model: All clients' first model.
        form: Of each one's records and steps.
        training: What each does.
        entries: Those of the model.
        images: How layers of images run.
        coins: What one client's dropout needs for a step.
    """

    model: nn.Module
    form: CohortForm
    training: LocalTraining
    entries: Entries
    images: ImageLayers
    coins: int

    def rows(self, units: Sequence[UnitData], capture: Capture | None = None) -> Tensor:
        """The trained rows of clients, who are sorted by falling steps.

        With `capture`, steps of one number of rows are replayed after the first.
        """
        model = copy.deepcopy(self.model)  # what it stores must not reach the next cohort
        set_training_mode(model)
        training, entries, device = self.training, self.entries, self.entries.device
        x = torch.cat([unit.features for unit in units]).to(device)
        y = torch.cat([unit.labels for unit in units]).to(device)
        counts = [len(unit.labels) for unit in units]
        steps = [training.steps(count) for count in counts]
        batches, weights = _batches(units, counts, steps, self.form, training)
        batches, weights = batches.to(device), weights.to(device, entries.dtype)
        coins = MaskCoins([unit.seed for unit in units], device, step=self.coins)
        loss_of_rows = LossOfRows(model, training.loss, self.form, self.images, coins)
        trained = entries.first.repeat(len(units), 1)
        # A finished client's row is taken out before it could move.
        active = [sum(own > number for own in steps) for number in range(steps[0])]
        rows = [filled_up(left) for left in active]
        leaves = entries.leaves(rows[0])
        optimizer = optimizer_of(training.optimizer, list(leaves.values()))

        def take(batch: Tensor, shares: Tensor, drawn: Tensor) -> None:
            coins.use(drawn)
            loss = loss_of_rows(leaves, x[batch], y[batch], shares)
            step(optimizer, list(leaves.values()), loss)

        take_step: Callable[..., None] = take
        for number, (left, size) in enumerate(zip(active, rows, strict=True)):
            before = number - 1 if number else 0
            if left < active[before]:
                _take_out(leaves, trained, slice(left, active[before]), entries)
            if size < rows[before]:
                optimizer, first = first_rows(
                    training.optimizer, optimizer, list(leaves.values()), size
                )
                leaves, take_step = dict(zip(leaves, first, strict=True)), take
            drawn = coins.of_step(number, steps, rows=size)
            inputs = batches[number, :size], weights[number, :size], drawn
            # The first step of a size makes what is made once, such as moments.
            is_second = number and rows.index(size) == number - 1
            if capture and is_second and rows[number:].count(size) >= FEWEST_REPLAYS:
                take_step = captured(take, inputs, capture) or take
            take_step(*inputs)
        _take_out(leaves, trained, slice(0, active[-1]), entries)
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
    form: CohortForm,
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
