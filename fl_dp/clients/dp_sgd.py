"""DP-SGD by Opacus' gradients, with randomness that nobody can predict and sums that are bounded.

Opacus computes the gradient of each record. What is done with it is done here. The coins of the
Poisson samples and the noise come from the operating system's randomness, the noise as integers on
a fixed grid, where Opacus would take torch's generator, which can be predicted from its output.
Gradients are clipped and added up in float64 (`ClippedGradients`). A record that can't be read, or
whose gradient is not finite or can't be computed at all, counts as one whose gradient is zero: with
Opacus alone it would turn the whole model into NaN or stop the training, and so show that it is
there. And samples without a record, which happen, are steps of noise alone.

What is not covered: a kernel that computes a record's gradient differently in batches of other
sizes, and how long a step takes.

References:
    Abadi et al. 2016, "Deep Learning with Differential Privacy", algorithm 1.
    Yousefpour et al. 2021, "Opacus: User-Friendly Differential Privacy Library in PyTorch".
"""

from __future__ import annotations

import logging
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader

from fl_dp.mechanisms import GaussianMechanism, SecureRandom
from fl_dp.mechanisms.checks import require_positive
from fl_dp.plan import RecordPlan

from .clipped_gradients import ClippedGradients, GhostGradients, MixesRecords
from .record_batches import Batch, BatchForm, RecordBatches

logger = logging.getLogger("flwr.fl_dp.client")

GRAD_SAMPLE_MODES = ("hooks", "functorch", "ghost")


def _plain_sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.1)


@dataclass(frozen=True, kw_only=True)
class DPSGD:
    """Choices in a client's training; none of them changes what is promised.

    Attributes:
        optimizer: Makes the optimizer of one round from the parameters that are not frozen. Its
            state starts anew each round, as clients come and go; momentum or Adam's moments of one
            round are computed from private gradients, so they cost nothing.
        criterion: Loss of a batch with `reduction="mean"`. What is used is each record's own loss:
            class weights do not divide it by the weights of the batch, and what is ignored in a
            record counts as zero in its mean.
        expected_batch_size: What the noisy sum of a step is divided by: a public constant, usually
            the sampling rate times a typical client's records. None: `rate * records` of this
            client, rounded down, as Opacus does; then how many records a client has is public.
        grad_sample_mode: `hooks` (fastest for most), `functorch` (any layer), or `ghost` (gradients
            of single records are never in memory: for large models).
        physical_batch_size: At most so many records at once in memory; None: the whole sample.
        input_key: Where batches are mappings: the key of the inputs, or a tuple of keys that are
            the model's keyword arguments. None: the only tensor besides the targets.
        target_key: The key of the targets. None: `label`, `labels`, `target` or `targets`.
        secure_randomness: False: coins and noise come from torch's global generator, as in plain
            Opacus: for comparisons and tests only.
    """

    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = _plain_sgd
    criterion: nn.Module = field(default_factory=nn.CrossEntropyLoss)
    expected_batch_size: float | None = None
    grad_sample_mode: str = "hooks"
    physical_batch_size: int | None = None
    input_key: str | tuple[str, ...] | None = None
    target_key: str | None = None
    secure_randomness: bool = True

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        if self.grad_sample_mode not in GRAD_SAMPLE_MODES:
            raise ValueError(
                f"grad_sample_mode must be one of {', '.join(GRAD_SAMPLE_MODES)}, got "
                f"'{self.grad_sample_mode}'"
            )
        if getattr(self.criterion, "reduction", None) != "mean":
            raise ValueError(
                "the criterion must be a torch loss with reduction='mean', such as "
                "torch.nn.CrossEntropyLoss()"
            )
        if self.expected_batch_size is not None:
            require_positive(expected_batch_size=self.expected_batch_size)
        if self.physical_batch_size is not None and self.physical_batch_size < 1:
            raise ValueError(
                f"physical_batch_size must be at least 1, got {self.physical_batch_size}"
            )


def train_with_dp_sgd(
    model: nn.Module,
    loader: DataLoader[Any],
    *,
    plan: RecordPlan,
    how: DPSGD,
    rng: SecureRandom | None = None,
) -> None:
    """Train a model in place for one participation: `plan.steps` steps.

    Privacy: each step is a Gaussian mechanism of the plan's noise multiplier on the sum of the
    clipped gradients of a Poisson sample, for one record, add/remove neighbours, against anyone who
    sees the parameters after it. A record that can't be read, collated or trained on counts as one
    whose gradient is zero, alone.

    Args:
        model: On its device; comes back unwrapped, in training mode. See `private_module`.
        loader: Whose data set and collation are used; its batch size and its order are not. A batch
            is a tuple, targets last, or a mapping (`DPSGD.input_key`); inputs are a tensor, a tuple
            of them, or a mapping of keyword arguments. A collation of your own gets one record at a
            time, unless it is `RecordWise`.
        plan: What is charged.
        how: The rest.
        rng: Of noise and coins; a fresh secure one by default.

    Raises:
        ValueError: If Opacus can't train the model, or nothing of it is trainable.
        Exception: Whatever `len(loader.dataset)`, the optimizer or a worker of the loader raises.
    """
    with Participation(model, plan=plan, how=how, rng=rng) as participation:
        participation.read(loader)
        participation.train()


def train_on_noise(
    model: nn.Module,
    *,
    records: int,
    plan: RecordPlan,
    how: DPSGD,
    rng: SecureRandom | None = None,
) -> None:
    """Take the steps of one participation in which no record has a gradient.

    Args:
        model: Changed in place.
        records: How many there are, for a denominator that is not a constant; 0 if unknown.
        plan: What is charged.
        how: As in training.
        rng: Of the noise; a fresh secure one by default.
    """
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = how.optimizer(parameters)
    noise = _Noise(parameters, plan, how, records, SecureRandom() if rng is None else rng)
    nothing = [torch.zeros_like(each, dtype=torch.float64) for each in parameters]
    for _ in range(plan.steps):
        noise.release(nothing)
        optimizer.step()
    optimizer.zero_grad()


class Participation:
    """The steps of one participation, prepared: nothing of that depends on a record.

    As a context it takes Opacus' hooks off the model in the end, whatever happens.

    Attributes:
        records: How many there are; 0 before `read`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        plan: RecordPlan,
        how: DPSGD,
        rng: SecureRandom | None = None,
    ) -> None:
        """Wrap a model and make the optimizer.

        Raises:
            ValueError: If Opacus can't train the model, or nothing of it is trainable.
            TypeError: If `how.optimizer` makes none.
        """
        _require_untied(model, how.grad_sample_mode)
        model.train()
        self._plan = plan
        self._how = how
        self._rng = rng
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._optimizer = how.optimizer(self._parameters)
        if not isinstance(self._optimizer, Optimizer):
            raise TypeError(
                f"DPSGD(optimizer=...) made a {type(self._optimizer).__name__}: let it return a "
                "torch.optim.Optimizer of the parameters that it gets"
            )
        kind = GhostGradients if how.grad_sample_mode == "ghost" else ClippedGradients
        self._gradients = kind(
            model,
            LossOfEach(how.criterion),
            clipping_norm=plan.clipping_norm,
            functorch=how.grad_sample_mode == "functorch",
        )
        self.records = 0
        self._failures = 0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Give the model back as it was."""
        self._gradients.close()

    def read(self, loader: DataLoader[Any]) -> None:
        """Choose the records, and count them."""
        self._loader = loader
        self.records = len(loader.dataset)  # type: ignore[arg-type]  # Dataset has no length

    def train(self) -> None:
        """Take the steps, with the records that were read. See `train_with_dp_sgd`."""
        plan, how = self._plan, self._how
        random = SecureRandom() if self._rng is None else self._rng
        noise = _Noise(self._parameters, plan, how, self.records, random)
        samples = _poisson_samples(self.records, plan, random if how.secure_randomness else None)
        ends: deque[bool] = deque()
        self._gradients.start_again()
        with warnings.catch_warnings():
            # PyTorch says it in every round of Opacus' hooks.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            for batches in self._batches(_split(samples, how, ends)):
                for inputs, targets in batches:
                    self._add(inputs, targets)
                if not ends.popleft():
                    continue
                noise.release(self._gradients.totals)
                self._optimizer.step()
                self._gradients.start_again()
        self._optimizer.zero_grad()
        if self._failures:
            logger.error(
                "%d gradients of records could not be computed; each counted as zero. If it was "
                "every one, fl_dp.clients.check_training says why",
                self._failures,
            )

    def _batches(self, samples: Iterable[list[int]]) -> Iterable[list[Batch]]:
        loader = self._loader
        form = BatchForm(inputs=self._how.input_key, targets=self._how.target_key)
        return DataLoader(
            RecordBatches(loader.dataset, loader.collate_fn, form),
            batch_sampler=samples,
            collate_fn=_as_it_is,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
        )

    def _add(self, inputs: Any, targets: Tensor) -> None:
        """Add a batch; if that fails, record by record, so that one fails alone."""
        if not len(targets):
            return
        inputs, targets = _moved((inputs, targets), self._parameters[0].device)
        try:
            self._gradients.add(inputs, targets)
            return
        except torch.OutOfMemoryError:
            logger.warning(
                "%d records at once don't fit into the device's memory, so they are taken one by "
                "one: write physical_batch_size (dp_sgd.physical_batch_size), or "
                "grad_sample_mode='ghost'",
                len(targets),
            )
        except Exception:
            logger.debug("no gradients of this batch; its records are taken one by one")
        for row in range(len(targets)):
            try:
                self._gradients.add(_rows(inputs, [row]), targets[[row]])
            except Exception:
                if not self._failures:  # it may be every record, in every step
                    logger.exception("a record has no gradient, and counts as zero")
                self._failures += 1


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


def _poisson_samples(
    records: int, plan: RecordPlan, random: SecureRandom | None
) -> Iterator[list[int]]:
    """Yield the records of each step, by coins of the operating system's randomness or torch's."""
    if random is None:
        yield from UniformWithReplacementSampler(
            num_samples=max(1, records), sample_rate=plan.sampling_rate, steps=plan.steps
        )
        return
    for _ in range(plan.steps):
        yield np.flatnonzero(random.bernoulli(plan.sampling_rate, records)).tolist()


def _split(samples: Iterable[list[int]], how: DPSGD, ends: deque[bool]) -> Iterator[list[int]]:
    """Yield samples in parts that fit into memory, and note for each whether its sample ends."""
    for sample in samples:
        most = how.physical_batch_size or max(1, len(sample))
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
            MixesRecords: If the criterion does not give each record one.
        """
        losses: Tensor = self._criterion(outputs, targets)
        broadcast = isinstance(outputs, Tensor) and outputs.ndim < targets.ndim
        if broadcast or losses.ndim > targets.ndim or losses.shape[:1] != targets.shape[:1]:
            raise MixesRecords(
                f"targets of shape {tuple(targets.shape)} give losses of shape "
                f"{tuple(losses.shape)}: the criterion has to give each record a loss of its own; "
                "let outputs and targets have the same shape, or targets be classes"
            )
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


class _Noise:
    """Makes of a step's sum the gradient that the optimizer gets: noise, then the denominator."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: RecordPlan,
        how: DPSGD,
        records: int,
        random: SecureRandom,
    ) -> None:
        self._parameters = parameters
        self._std = plan.noise_multiplier * plan.clipping_norm
        size = how.expected_batch_size
        self._size = max(1, int(records * plan.sampling_rate)) if size is None else size
        self._secure = how.secure_randomness
        self._random = random
        coordinates = sum(each.numel() for each in parameters)
        # Rounding the sum to the grid can move it by a step in each coordinate.
        planned = GaussianMechanism(
            noise_multiplier=plan.noise_multiplier, clipping_norm=plan.clipping_norm
        )
        slack = 1.0 + planned.grid * math.sqrt(coordinates) / plan.clipping_norm
        self._mechanism = replace(planned, noise_multiplier=plan.noise_multiplier * slack)

    def release(self, totals: Sequence[Tensor]) -> None:
        """Set the parameters' gradients to the private mean."""
        if not self._secure:
            for each, total in zip(self._parameters, totals, strict=True):
                noise = torch.normal(0.0, self._std, each.shape, device=each.device)
                each.grad = ((total + noise) / self._size).to(each.dtype)
            return
        steps = torch.cat([each.reshape(-1) for each in totals]).cpu().numpy()
        steps *= 1.0 / self._mechanism.grid
        drawn = self._mechanism.noise(steps.size, self._random)
        released = self._mechanism.release(np.trunc(steps, out=steps), drawn)
        # Nothing is divided before the noise is in: rounding would count.
        released *= 1.0 / self._size
        sizes = [each.numel() for each in self._parameters]
        private = torch.split(torch.from_numpy(released), sizes)
        for each, part in zip(self._parameters, private, strict=True):
            each.grad = part.view_as(each).to(each)


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
