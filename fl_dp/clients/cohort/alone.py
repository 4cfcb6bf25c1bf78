"""One client's training on a module of its own, with the coins that it has in a cohort."""

from __future__ import annotations

import torch
from torch import nn

from fl_dp.model_modes import modes_back, set_training_mode

from .cohort_optimizers import optimizer_of, step
from .layers import ModelLayers
from .local_training import LocalTraining, UnitData, require_one_a_record
from .mask_coins import MaskCoins


def train_alone(model: nn.Module, data: UnitData, training: LocalTraining) -> None:
    """Train a module in place on the records of one client, which move to its device.

    Without records it stays as it is. Dropout takes coins of the client's seed; any other chance
    is that of the process. Indices of classes and tables are clamped to their range.

    Args:
        model: This client's own, see `own_copy_of`; returns to its mode (train or eval).
        data: Features and labels of one number of records.
        training: What to do.

    Raises:
        ValueError: There is not one label a record, or not one loss.
    """
    count = len(data.labels)
    if len(data.features) != count:
        raise ValueError(
            f"{len(data.features)} rows of features but {count} labels; give one label a row"
        )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not (count and parameters):
        return
    device = parameters[0].device
    features, labels = data.features.to(device), data.labels.to(device)
    optimizer = optimizer_of(training.optimizer, parameters)
    coins, width = MaskCoins([data.seed], device), training.width(count)
    with modes_back(model):
        set_training_mode(model)
        for batch in training.batches(count, data.seed):
            rows = torch.from_numpy(batch).to(device)
            x, y = features[rows], labels[rows]  # copies, into which a module may write
            with ModelLayers(coins, padding=width / len(batch)):
                losses = training.loss(model(x), y)
            require_one_a_record(losses, len(batch))
            step(optimizer, parameters, losses.mean())
    for parameter in parameters:
        parameter.grad = None
