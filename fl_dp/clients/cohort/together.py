"""Training of many clients from one model, in one go where that is as safe and faster.

    >>> for indices, vectors in train_units(model, units, training):
    ...     print(indices, vectors.shape)

For a small model PyTorch's overhead per call exceeds the work. Here each parameter of all clients
is one tensor, with a client in each row, and one `torch.vmap` call computes a step of all. Losses
are summed: none depends on another client's parameters, so the sum's gradient is each one's own.

Clients must not influence each other's updates. Every operation works on each row separately, and
each client has coins of its own. Clients are grouped only by their own data's shapes and number.
Kernels round by the number of rows, so rows are filled up to a power of two: a client's row is then
the same to the bit whatever stands beside it. This is tested on CPUs; a GPU may choose its kernels
by more.

**Together or one by one** follows from the module, the options and the device, and is tried on
made-up records. An exception that only some client's data cause splits the cohort, until that
client is left out; the others' rows are still the same to the bit.
"""

from __future__ import annotations

import copy
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache

from torch import Tensor, nn

from fl_dp.accelerator.free_memory import free_bytes
from fl_dp.model_arrays import distinct_state
from fl_dp.user_code import Contained, SeededWords, own_chance

from .alone import train_alone
from .cohort_size import units_at_once
from .graph_check import capture_for
from .image_layers import ImageLayers, image_layers
from .local_training import LocalTraining, UnitData
from .loss_of_rows import CohortForm
from .made_up_step import OneByOne, tried_step
from .model_entries import Entries
from .trained_rows import CohortTraining

logger = logging.getLogger("flwr.fl_dp.client")


def train_units(
    model: nn.Module,
    units: Sequence[UnitData],
    training: LocalTraining,
    *,
    names: Sequence[str] | None = None,
    at_once: int | None = None,
    images: ImageLayers | None = None,
    graphs: bool = True,
) -> Iterator[tuple[list[int], Tensor]]:
    """Train each client from the same model as `train_alone` would, many at a time.

    Neither the model nor the global random state changes.

    Args:
        model: All clients' first model, on its own device, to which their data move. Its copies
            share nothing with it (`own_copy_of` would say so).
        units: Data that do not fit the model change nothing for others.
        training: What each does.
        names: Entries of `distinct_state` to return, by default all; those of floating point
            count.
        at_once: Train as many clients at once, at least 1, even where one by one is faster; None
            chooses by memory.
        images: How layers of images run; None chooses by device.
        graphs: Whether steps may be CUDA graphs, where a check finds these right.

    Yields:
        Indices into `units`, and their trained models `(len(indices), d)` on the model's device:
        the entries, flat, in float32 (float64 if one is). Indices come in any order, each at most
        once; one whose data do not fit never comes, and says why where it is trained alone.
    """
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once is {at_once}; write at least 1, or None")
    entries = Entries(model, names)
    images = images or image_layers(entries.device)
    of_form: dict[CohortForm, list[int]] = defaultdict(list)
    empty = []
    for index, unit in enumerate(units):
        if len(unit.labels) != len(unit.features):
            continue
        if not len(unit.labels):
            empty.append(index)
        else:
            of_form[CohortForm.of(unit, training)].append(index)
    if empty:
        yield empty, entries.first.expand(len(empty), -1)
    for form, alike in of_form.items():
        try:
            tried = tried_step(model, form, training, images, any_size=at_once is not None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also a native library's panic
            of_class = "" if isinstance(error, OneByOne) else f"{type(error).__name__}: "
            _log_once(of_class + str(error).partition("\n")[0])
            yield from _one_by_one(model, units, alike, training, entries)
            continue
        cohort = CohortTraining(
            model=model,
            form=form,
            training=training,
            entries=entries,
            images=images,
            coins=tried.coins,
        )
        capture = capture_for(cohort) if graphs else None
        # Those with most steps first: rows that are still trained stay at the top.
        waiting = sorted(alike, key=lambda index: -training.steps(len(units[index].labels)))
        size = at_once or units_at_once(tried.unit_bytes, free_bytes(entries.device))
        while waiting:
            chunk = waiting[:size]
            with Contained() as attempt:
                vectors = cohort.rows([units[index] for index in chunk], capture)
            if attempt.failure is None:
                yield chunk, vectors
            elif len(chunk) > 1:
                size = len(chunk) // 2
                continue
            waiting = waiting[len(chunk) :]


def _one_by_one(
    model: nn.Module,
    units: Sequence[UnitData],
    indices: Sequence[int],
    training: LocalTraining,
    entries: Entries,
) -> Iterator[tuple[list[int], Tensor]]:
    for index in indices:
        unit = units[index]
        with Contained() as attempt, own_chance(SeededWords(unit.seed)):
            alone = copy.deepcopy(model)
            train_alone(alone, unit, training)
            vector = entries.flat(distinct_state(alone))
        if attempt.failure is None:
            yield [index], vector.unsqueeze(0)


@cache
def _log_once(reason: str) -> None:
    logger.info("units are trained one by one: %s", reason)
