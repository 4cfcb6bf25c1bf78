"""A rehearsal for a data set's owner: can DP-SGD train on these records, each by itself?

In training nothing may raise for a record's sake, so what never works is noise alone and a line in
the node's log. Here it raises. Run it where the data are; what it says may hold data.

    >>> check_training(model, loader)
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from .clipped_gradients import ClippedGradients, MixesRecords
from .dp_sgd import DPSGD
from .fit_for_dp_sgd import require_trainable_privately
from .record_batches import Batch, BatchForm, RecordBatches
from .record_gradients import LossOfEach

_TOLERANCE = 1e-3
"""Relative; float32 gradients of one batch and of its records differ by about 1e-6."""


def check_training(
    model: nn.Module, loader: DataLoader[Any], dp_sgd: DPSGD | None = None, *, records: int = 8
) -> None:
    """Check on the first few records that each one's gradient is its own, in any batch.

    Args:
        model: As for `OpacusClient`; it is copied, and nothing is kept of it.
        loader: Likewise.
        dp_sgd: How to train; `DPSGD()` by default.
        records: How many to look at. With collations that pad, take some of different lengths.

    Raises:
        MixesRecords: If their gradients add up to something else than that of their batch.
        ValueError: If DP-SGD can't train the model, or batches have no inputs and targets.
        Exception: Whatever data set, collation, model and loss raise.
    """
    how = DPSGD() if dp_sgd is None else dp_sgd
    require_trainable_privately(model)
    model = copy.deepcopy(model).train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0  # its coins would differ
    form = BatchForm(inputs=how.input_key, targets=how.target_key)
    batches = RecordBatches(loader.dataset, loader.collate_fn, form)
    rows = list(range(min(records, len(loader.dataset))))  # type: ignore[arg-type]  # no length
    alone = [batch for row in rows if (batch := batches.alone(row)) is not None]
    if not alone:
        raise ValueError("there are no records to look at")
    apart = torch.stack([_gradient(model, how, [batch]) for batch in alone]).sum(0)
    together = _gradient(model, how, batches.__getitems__(rows))
    if not torch.allclose(together, apart, rtol=0.0, atol=_TOLERANCE * float(apart.norm())):
        raise MixesRecords(
            f"the gradient of {len(alone)} records in one batch is not the sum of those of each "
            "alone: the model mixes the records of a batch, or a collation that was declared "
            "RecordWise does, for instance by padding to the longest (FixedLengthPadding pads to a "
            "fixed length)"
        )


def _gradient(model: nn.Module, how: DPSGD, batches: list[Batch]) -> Tensor:
    """Return the sum of the records' gradients, hardly clipped, float64."""
    gradients = ClippedGradients(
        model,
        LossOfEach(how.criterion),
        clipping_norm=1e10,
        functorch=how.grad_sample_mode == "functorch",
    )
    try:
        for inputs, targets in batches:
            gradients.add(inputs, targets)
        return torch.cat([each.reshape(-1) for each in gradients.totals])
    finally:
        gradients.close()
