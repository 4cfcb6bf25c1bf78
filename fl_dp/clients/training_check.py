"""A rehearsal for a data set's owner: can DP-SGD train on these records, each by itself?

In training nothing may raise because of a record: a model that never works yields noise alone, and
a line in the node's log. Here it raises. Run it where the data are; its errors may hold data.

    >>> check_training(model, loader)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fl_dp.user_code import own_chance

from .per_record.clipped_gradients import mapped, moved, rows_of
from .per_record.dp_sgd import DPSGD
from .per_record.fit_for_dp_sgd import require_trainable_privately
from .per_record.made_up_records import WithoutChance, gradients_of
from .per_record.module_template import ModuleTemplate
from .per_record.persons import Persons, batches_of
from .per_record.record_batches import Batch, BatchForm
from .per_record.record_loss import LossOfEach, MixesRecords, loss_of_units
from .per_record.record_source import RecordSource, Source
from .per_record.single_records import SingleRecords

_TOLERANCE = 1e-3
"""Relative; float32 gradients of one batch and of its records differ by about 1e-6."""


def check_training(
    model: nn.Module, loader: Source, dp_sgd: DPSGD | None = None, *, records: int = 8
) -> None:
    """Check on the first records, or persons, that each has a gradient, whatever the others are.

    Args:
        model: As for `OpacusClient`; only a copy is used.
        loader: A data set or a loader, as for `OpacusClient`.
        dp_sgd: How to train; `DPSGD()` by default. Its mode is tried on these records, too.
        records: How many to check. With collations that pad, take some of different lengths.

    Raises:
        MixesRecords: Gradients differ in a batch and alone.
        ValueError: The model can't be trained, the loader would not be used whole, there is no
            record, or batches have no inputs and targets.
        Exception: Any error of data set, collation, model and loss.
    """
    how = dp_sgd or DPSGD()
    require_trainable_privately(model)
    template = ModuleTemplate(model)
    form = BatchForm(inputs=how.input_key, targets=how.target_key)
    dataset = loader.dataset if isinstance(loader, DataLoader) else loader
    unit = "person" if isinstance(dataset, Persons) else "record"
    source, loss = RecordSource(loader, unit=unit), loss_of_units(how.criterion, unit)
    batches = batches_of(source.loader, form)
    rows = list(range(min(records, len(source))))
    alone = [batch for batch in map(batches.alone, rows) if batch is not None]
    if not alone:
        raise ValueError("there are no records to look at")
    gradients_of(
        template,
        loss,
        mode=how.grad_sample_mode,
        example=moved(_rows_of(alone[0], unit), template.device),
    )
    together = batches.__getitems__(rows)
    apart, joined = _gradient(template, loss, alone), _gradient(template, loss, together)
    if not torch.allclose(joined, apart, rtol=0.0, atol=_TOLERANCE * float(apart.norm())):
        raise MixesRecords(
            f"{len(alone)} records read together have other gradients than each read alone: a "
            "collation that was declared RecordWise mixes them, for instance by padding to the "
            "longest (FixedLengthPadding pads to a fixed length)"
        )


def _rows_of(batch: Batch, unit: str) -> Batch:
    """Return the records of a batch of one record or person."""
    if unit == "record":
        return batch
    inputs, targets = mapped(lambda tensor: tensor[0], batch)
    return inputs, targets


def _gradient(template: ModuleTemplate, loss: LossOfEach, batches: list[Batch]) -> Tensor:
    """The sum of the records' gradients, float64, flat, on the CPU."""
    size = sum(parameter.numel() for parameter in template.parameters.values())
    total = torch.zeros(size).double()
    with own_chance(), WithoutChance():
        alone = SingleRecords(template, loss)
        for batch in batches:
            inputs, targets = moved(batch, template.device)
            for start in range(len(targets)):
                row = slice(start, start + 1)
                torch.manual_seed(0)  # chance besides dropout is the same in both ways of reading
                gradients = alone.by_autograd(rows_of(inputs, row), targets[row])
                total += torch.cat([part.double().flatten() for part in gradients]).cpu()
    return total
