"""Whether replays of a CUDA graph are right, on made-up records: else steps stay as they are.

A module may compute on the host with numbers that change from step to step, which a graph would
repeat. So each module's first graph in a process is compared with plain steps, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

import torch
from torch import Tensor

from fl_dp.user_code import Contained

from .cohort_optimizers import keeps_no_count
from .local_training import UnitData
from .step_graph import Capture, cuda_graph, log_eager
from .trained_rows import CohortTraining

_EPOCHS = 3
_confirmed: dict[Hashable, bool] = {}


def capture_for(cohort: CohortTraining) -> Capture | None:
    """How a cohort's steps are captured; None: they are not.

    It follows from the module, the options and the device. Of optimizers SGD alone is captured:
    others count their steps on the host.
    """
    if cohort.entries.device.type != "cuda" or not keeps_no_count(cohort.training.optimizer):
        return None
    with Contained():
        return cuda_graph if _is_confirmed(cohort) else None
    return None


def _is_confirmed(cohort: CohortTraining) -> bool:
    options = str(cohort.training.optimizer), cohort.training.loss, cohort.form, cohort.images.dim
    kinds = tuple(map(type, cohort.model.modules()))
    shapes = tuple(tuple(values.shape) for values in cohort.model.state_dict().values())
    key = str(cohort.model), kinds, shapes, options, cohort.entries.device
    if key not in _confirmed:
        _confirmed[key] = False  # also if the check raises
        _confirmed[key] = is_right(cohort, cuda_graph)
    return _confirmed[key]


def is_right(cohort: CohortTraining, capture: Capture) -> bool:
    """Whether replays train made-up units as plain steps do, to the bit."""
    replays = 0

    def counted(function: Callable[[], None]) -> Callable[[], None]:
        replay = capture(function)

        def replay_and_count() -> None:
            nonlocal replays
            replays += 1
            replay()

        return replay_and_count

    width, training = cohort.form.width, cohort.training
    batches = 2 if width == training.batch_size else 1  # with fewer rows there is one batch
    made_up = replace(cohort, training=replace(training, epochs=_EPOCHS * 2 // batches))
    units = [_unit(cohort, batches * width, seed) for seed in range(2)]
    plain, replayed = made_up.rows(units), made_up.rows(units, counted)
    if not replays:
        return False  # the log says why
    if not torch.equal(plain, replayed):
        log_eager("replays differ from plain steps on made-up records")
        return False
    return True


def _unit(cohort: CohortTraining, count: int, seed: int) -> UnitData:
    """Random numbers, or indices 0 and 1."""
    generator = torch.Generator().manual_seed(seed)

    def values(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        if dtype.is_floating_point:
            return torch.randn(count, *shape, generator=generator).to(dtype)
        return torch.randint(2, (count, *shape), generator=generator).to(dtype)

    form = cohort.form
    return UnitData(features=values(*form.features), labels=values(*form.labels), seed=seed)
