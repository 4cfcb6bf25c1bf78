"""Sums of clipped gradients over chosen records of a data set, whatever single records do.

`ClippedGradients` adds up what a batch has. Here batches are made, and records that can't be read,
collated or trained on are left out: alone. DP-SGD inside a client takes its steps with such sums,
and a node of a secure sum sends one.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fl_dp.tasks.models.index_ranges import require_targets
from fl_dp.user_code import Contained

from .clipped_gradients import ClippedGradients, GhostGradients, MixesRecords
from .record_batches import Batch, BatchForm, RecordBatches
from .record_workers import batches_of_workers

logger = logging.getLogger("flwr.fl_dp.client")

GRAD_SAMPLE_MODES = ("hooks", "functorch", "ghost")


class RecordGradients:
    """The clipped gradients of chosen records, added up.

    Privacy: as of `ClippedGradients`, for one record, zero-out or add/remove neighbours.

    Attributes:
        records: How many there are to choose from; 0 before `read`.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        *,
        clipping_norm: float,
        mode: str,
        at_once: int | None,
        form: BatchForm,
    ) -> None:
        """Put a model, which comes into training mode, and Opacus' hooks together.

        Args:
            model: On its device; `close` takes the hooks away.
            criterion: Loss of a batch, of which each record's own is used.
            clipping_norm: L2 bound on the gradient of one record.
            mode: One of `GRAD_SAMPLE_MODES`.
            at_once: Most records at once in memory; None: all that are chosen.
            form: Where a batch has its inputs and its targets.

        Raises:
            ValueError: If Opacus can't train the model.
        """
        _require_untied(model, mode)
        model.train()
        kind = GhostGradients if mode == "ghost" else ClippedGradients
        self._clipped = kind(
            model,
            LossOfEach(criterion),
            clipping_norm=clipping_norm,
            functorch=mode == "functorch",
        )
        self._device = next(each for each in model.parameters() if each.requires_grad).device
        self._at_once = at_once
        self._form = form
        self._loader: DataLoader[Any] | None = None
        self.records = 0
        self._failures = 0

    @property
    def contributing(self) -> int:
        """Records whose gradient is in the present sum."""
        return self._clipped.records

    def close(self) -> None:
        """Give the model back as it was."""
        self._clipped.close()

    def read(self, loader: DataLoader[Any]) -> None:
        """Choose the data set, and count its records."""
        self._loader = loader
        self.records = len(loader.dataset)  # type: ignore[arg-type]  # Dataset has no length

    def sum_each(
        self, samples: Iterable[list[int]], take: Callable[[Sequence[Tensor]], None]
    ) -> None:
        """Hand out the sum over each sample of records, of those that were read.

        Args:
            samples: Numbers of records; none is a sample, too.
            take: Gets a sum: of each parameter that is not frozen, float64 of its shape.
        """
        ends: deque[bool] = deque()
        self._clipped.start_again()
        with warnings.catch_warnings():
            # PyTorch says it in every round of Opacus' hooks.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            for batches in self._batches(_split(samples, self._at_once, ends)):
                for inputs, targets in batches:
                    self._add(inputs, targets)
                if not ends.popleft():
                    continue
                take(self._clipped.totals)
                self._clipped.start_again()
        if self._failures:
            logger.error(
                "%d gradients of records could not be computed; each counted as zero. If it was "
                "every one, fl_dp.clients.check_training says why",
                self._failures,
            )

    def _batches(self, samples: Iterable[list[int]]) -> Iterable[list[Batch]]:
        loader = self._loader
        assert loader is not None  # read before
        records = RecordBatches(loader.dataset, loader.collate_fn, self._form)
        if loader.num_workers:
            return batches_of_workers(records, samples, loader)
        return DataLoader(
            records,
            batch_sampler=samples,
            collate_fn=_as_it_is,
            pin_memory=loader.pin_memory,
            generator=loader.generator,
        )

    def _add(self, inputs: Any, targets: Tensor) -> None:
        """Add a batch; if that fails, record by record, so that one fails alone."""
        if not len(targets):
            return
        inputs, targets = _moved((inputs, targets), self._device)
        with Contained() as attempt:
            self._clipped.add(inputs, targets)
            return
        if isinstance(attempt.failure, torch.OutOfMemoryError):
            logger.warning(
                "%d records at once don't fit into the device's memory, so they are taken one by "
                "one: write physical_batch_size (dp_sgd.physical_batch_size), or "
                "grad_sample_mode='ghost'",
                len(targets),
            )
        for row in range(len(targets)):
            # Said once, as it may be every record, in every step.
            said = None if self._failures else "a record has no gradient, and counts as zero"
            with Contained(said) as attempt:
                self._clipped.add(_rows(inputs, [row]), targets[[row]])
            self._failures += attempt.failure is not None


def _require_untied(model: nn.Module, grad_sample_mode: str) -> None:
    """Check that ghost clipping sees each parameter once.

    Raises:
        ValueError: If two layers share one.
    """
    every = sum(1 for _ in model.named_parameters(remove_duplicate=False))
    if grad_sample_mode == "ghost" and every > sum(1 for _ in model.parameters()):
        raise ValueError(
            "two layers of the model share a parameter, for which ghost clipping has no rule: "
            "write grad_sample_mode='hooks' or 'functorch'"
        )


def _split(
    samples: Iterable[list[int]], at_once: int | None, ends: deque[bool]
) -> Iterator[list[int]]:
    """Yield samples in parts that fit into memory, and note for each whether its sample ends."""
    for sample in samples:
        most = at_once or max(1, len(sample))
        # At least one part: a step whose sample is empty gets its noise all the same.
        parts = np.array_split(np.array(sample, np.int64), max(1, math.ceil(len(sample) / most)))
        for number, part in enumerate(parts, start=1):
            ends.append(number == len(parts))
            yield part.tolist()


class LossOfEach(nn.Module):
    """A criterion as each record's own loss.

    A mean that is taken in the criterion can be over something else: class weights divide every
    record's gradient by the weights of the batch.
    """

    def __init__(self, criterion: nn.Module) -> None:
        """Take a criterion with a `reduction`, which is copied."""
        super().__init__()
        self._criterion = copy(criterion)
        self._criterion.reduction = "none"  # type: ignore[assignment]  # no tensor, torch thinks

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the losses, `(n,)`.

        Raises:
            IndexError: If a label is none of the classes, on any device.
            ValueError: If a loss of probabilities gets something else.
            MixesRecords: If the criterion does not give each record one.
        """
        require_targets(self._criterion, outputs, targets)
        losses: Tensor = self._criterion(outputs, targets)
        broadcast = isinstance(outputs, Tensor) and outputs.ndim < targets.ndim
        if broadcast or losses.ndim > targets.ndim or losses.shape[:1] != targets.shape[:1]:
            raise MixesRecords(
                f"targets of shape {tuple(targets.shape)} give losses of shape "
                f"{tuple(losses.shape)}: the criterion has to give each record a loss of its own; "
                "let outputs and targets have the same shape, or targets be classes"
            )
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def _as_it_is(batches: Any) -> Any:
    return batches


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: _moved(each, device) for name, each in batch.items()}
    return tuple(_moved(each, device) for each in batch)


def _rows(inputs: Any, rows: list[int]) -> Any:
    if isinstance(inputs, Tensor):
        return inputs[rows]
    if isinstance(inputs, Mapping):
        return {name: _rows(each, rows) for name, each in inputs.items()}
    return tuple(_rows(each, rows) for each in inputs)
