"""Sums of clipped gradients over chosen records of a data set, whatever single records do.

`ClippedGradients` adds up a batch. This file makes batches, and leaves out, alone, records that
can't be read, collated or trained on. DP-SGD inside a client steps with such sums; a node of a
secure sum sends one.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fl_dp.accelerator.free_memory import free_bytes
from fl_dp.machine import free_memory, processors
from fl_dp.mechanisms import SecureRandom
from fl_dp.user_code import own_chance

from .clipped_gradients import ClippedGradients, Gradients
from .module_template import ModuleTemplate
from .persons import batches_of
from .record_batches import Batch, BatchForm
from .record_source import RecordSource
from .record_workers import batches_of_workers

logger = logging.getLogger("flwr.fl_dp.client")

_ON_CPU = 1 << 25
"""Bytes of one parameter's gradients; each pass maps and clears larger blocks again."""
_MOST_ON_CPU, _MOST, _MOST_ROWS = 64, 1024, 256
_PERSONS = 8
"""How many times as many persons are read at once as records are."""
_COPIES = 6
"""Copies of a record's gradient that a pass may hold, its activations included."""


class RecordGradients:
    """The clipped gradients of chosen records, added up.

    Privacy: as `ClippedGradients`, for one record, zero-out or add/remove neighbours.

    Attributes:
        records: Number of records in the data set; 0 before `read`.
    """

    def __init__(
        self,
        template: ModuleTemplate,
        gradients: Gradients,
        *,
        clipping_norm: float,
        at_once: int | None,
        form: BatchForm,
        chance: SecureRandom | None,
    ) -> None:
        """Take a model.

        Args:
            template: The model.
            gradients: Computes its gradients.
            clipping_norm: L2 bound on one record's gradient.
            at_once: Most records in memory at once; None: what fits.
            form: Where a batch has inputs and targets.
            chance: Seeds the coins of dropout and of reading for each sample. None: the process's
                generators stay as they are.
        """
        self._at_once = at_once
        if not at_once:
            at_once = records_at_once(template, gradients)
        self._clipped = ClippedGradients(
            template, gradients, clipping_norm=clipping_norm, at_once=at_once
        )
        self._form = form
        self._chance = chance
        self._source: RecordSource | None = None
        self.records = 0

    @property
    def contributing(self) -> int:
        """Number of records in the present sum."""
        return self._clipped.records

    def read(self, source: RecordSource) -> None:
        """Choose the data set, and count its records."""
        self._source = source
        self.records = len(source)

    def sum_each(
        self, samples: Iterable[list[int]], take: Callable[[Sequence[Tensor]], None]
    ) -> None:
        """Pass on the sum over each sample of the records that were read.

        Args:
            samples: Numbers of records; an empty list is a sample, too.
            take: Receives a sum: for each parameter that is not frozen, float64 of its shape.
        """
        chance = nullcontext(_seed_nothing) if self._chance is None else own_chance(self._chance)
        with chance as seed_again:
            self._sum_each(samples, take, seed_again)
        if self._clipped.failures:
            logger.error(
                "%d gradients of records could not be computed; each counted as zero. If it was "
                "every one, fl_dp.clients.check_training says why",
                self._clipped.failures,
            )

    def _sum_each(
        self,
        samples: Iterable[list[int]],
        take: Callable[[Sequence[Tensor]], None],
        seed_again: Callable[[], None],
    ) -> None:
        ends: deque[bool] = deque()
        self._clipped.start_again()
        at_once = self._at_once
        if at_once is not None and self._source is not None and self._source.unit == "person":
            at_once *= _PERSONS  # only those with as many rows go through the model together
        for batches in self._batches(_split(samples, at_once, ends)):
            for inputs, targets in batches:
                self._clipped.add(inputs, targets)
            if not ends.popleft():
                continue
            take(self._clipped.totals)
            self._clipped.start_again()
            seed_again()

    def _batches(self, samples: Iterable[list[int]]) -> Iterable[list[Batch]]:
        assert self._source is not None  # read before
        loader = self._source.loader
        records = batches_of(loader, self._form)
        if loader.num_workers:
            return batches_of_workers(records, samples, loader)
        return DataLoader(
            records,
            batch_sampler=samples,
            collate_fn=_unchanged,
            pin_memory=loader.pin_memory,
            generator=loader.generator,
        )


def _split(
    samples: Iterable[list[int]], at_once: int | None, ends: deque[bool]
) -> Iterator[list[int]]:
    """Yield samples in parts that fit into memory; note for each whether its sample ends."""
    for sample in samples:
        most = at_once or max(1, len(sample))
        # At least one part, as a step with an empty sample gets its noise, too.
        parts = np.array_split(np.array(sample, np.int64), max(1, math.ceil(len(sample) / most)))
        for number, part in enumerate(parts, start=1):
            ends.append(number == len(parts))
            yield part.tolist()


def records_at_once(template: ModuleTemplate, gradients: Gradients) -> int:
    """How many records' gradients fit into this process's share of memory."""
    parameters = template.parameters
    held = [parameters[name] for name in gradients.held]
    sizes = [parameter.numel() * parameter.element_size() for parameter in held]
    device, fitting = template.device, _MOST if len(held) == len(parameters) else _MOST_ROWS
    if sizes:
        fitting = min(fitting, _free_bytes(device) // (2 * _COPIES * sum(sizes)))
    if device.type == "cpu":
        fitting = min(fitting, _ON_CPU // max(sizes, default=1), _MOST_ON_CPU)
    return max(1, fitting)


def _free_bytes(device: torch.device) -> int:
    """This process's share of the free memory, in bytes."""
    if (of_gpu := free_bytes(device)) is not None:
        return of_gpu
    free = free_memory()
    if free is None:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return int(min(1.0, torch.get_num_threads() / processors()) * free)


def _seed_nothing() -> None:
    """Do nothing."""


def _unchanged(batches: Any) -> Any:
    return batches
