"""DP-SGD by Opacus, with randomness that nobody can predict.

Opacus computes and clips the gradient of each record; its step loop is used as it is. Three things
are different here. The coins of the Poisson samples and the noise come from the operating system's
randomness, the noise as integers on a fixed grid, where Opacus would take torch's generator, which
can be predicted from its output. A record whose gradient is not finite, or can't be computed at
all, counts as one whose gradient is zero: with Opacus alone it would turn the whole model into NaN
or stop the training, and so show that it is there. And samples without a record, which happen, are
steps of noise alone.

What is not covered: gradients are clipped and added up in the model's floating-point numbers, whose
rounding can move a sum by a little more than the clipping norm.

References:
    Abadi et al. 2016, "Deep Learning with Differential Privacy", algorithm 1.
    Yousefpour et al. 2021, "Opacus: User-Friendly Differential Privacy Library in PyTorch".
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, default_collate

from fl_dp.accounting import ExamplePlan
from fl_dp.mechanisms import GaussianMechanism, SecureRandom

logger = logging.getLogger("flwr.fl_dp.client")

GRAD_SAMPLE_MODES = ("hooks", "functorch", "ghost")


def _plain_sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.1)


@dataclass(frozen=True, kw_only=True)
class DPSGD:
    """How a client trains; none of it changes what is promised.

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
        secure_randomness: False: coins and noise come from torch's global generator, as in plain
            Opacus: for comparisons and tests only.
    """

    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = _plain_sgd
    criterion: nn.Module = field(default_factory=nn.CrossEntropyLoss)
    expected_batch_size: float | None = None
    grad_sample_mode: str = "hooks"
    physical_batch_size: int | None = None
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
        size = self.expected_batch_size
        if size is not None and not (math.isfinite(size) and size > 0):
            raise ValueError(f"expected_batch_size must be positive and finite, got {size}")
        if self.physical_batch_size is not None and self.physical_batch_size < 1:
            raise ValueError(
                f"physical_batch_size must be at least 1, got {self.physical_batch_size}"
            )


def train_with_dp_sgd(
    model: nn.Module,
    loader: DataLoader[Any],
    *,
    plan: ExamplePlan,
    how: DPSGD,
    rng: SecureRandom | None = None,
) -> None:
    """Train a model in place for one participation: `plan.steps` steps.

    Privacy: each step is a Gaussian mechanism of the plan's noise multiplier on the sum of the
    clipped gradients of a Poisson sample, for one record, add/remove neighbours, against anyone who
    sees the parameters after it.

    Args:
        model: On its device; comes back unwrapped, in training mode. See `private_module`.
        loader: Whose data set and collation are used; its batch size and its order are not. A batch
            is a pair: inputs (a tensor, a tuple of them, or a mapping of keyword arguments), and
            targets.
        plan: What is charged.
        how: The rest.
        rng: Of noise and coins; a fresh secure one by default.

    Raises:
        ValueError: If Opacus can't train the model, or nothing of it is trainable.
    """
    _require_untied(model, how.grad_sample_mode)
    random = None
    if how.secure_randomness:
        random = rng if rng is not None else SecureRandom()
    parameters = [each for each in model.parameters() if each.requires_grad]
    records = len(loader.dataset)  # type: ignore[arg-type]  # Dataset promises no length
    size = how.expected_batch_size
    if size is None:
        size = max(1, int(records * plan.sampling_rate))
    model.train()
    with (
        _opacus_warnings_left_out(),
        _opacus(model, loader, plan, how, parameters, random) as (
            wrapped,
            optimizer,
            criterion,
            batches,
        ),
    ):
        # Where the noise is ours, nothing is divided before it is in: rounding would count.
        optimizer.expected_batch_size = size if random is None else 1
        if random is None:
            optimizer.attach_step_hook(_FiniteSum(parameters))
        else:
            optimizer.attach_step_hook(_SecureNoise(parameters, plan, size, random))
        step = _Step(
            wrapped,
            optimizer,
            criterion,
            parameters,
            how.grad_sample_mode,
            split=how.physical_batch_size is not None,
        )
        for batch in batches:
            step(batch)


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


@contextmanager
def _opacus_warnings_left_out() -> Iterator[None]:
    """Leave out what is said in every round: that Opacus' own noise is not secure, and of hooks."""
    with warnings.catch_warnings():
        for message in ("Secure RNG turned off", "Full backward hook is firing"):
            warnings.filterwarnings("ignore", message=message)
        yield


@contextmanager
def _opacus(
    model: nn.Module,
    loader: DataLoader[Any],
    plan: ExamplePlan,
    how: DPSGD,
    parameters: list[nn.Parameter],
    random: SecureRandom | None,
) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Wrap model, optimizer, loss and data as Opacus does, and take its hooks away afterwards."""
    batches = _poisson_batches(loader, plan, random)
    criterion = _LossOfEach(how.criterion)
    engine = PrivacyEngine(accountant="rdp")
    made = engine.make_private(
        module=model,
        optimizer=how.optimizer(parameters),
        criterion=criterion,
        data_loader=batches,
        # Opacus adds none where the noise is ours.
        noise_multiplier=plan.noise_multiplier if random is None else 0.0,
        max_grad_norm=plan.clipping_norm,
        # The batches are Poisson samples already, at the plan's rate.
        poisson_sampling=False,
        grad_sample_mode=how.grad_sample_mode,
    )
    ghost = how.grad_sample_mode == "ghost"
    wrapped, optimizer, *rest = made
    optimizer.attach_step_hook(None)  # the plan's ledger counts, not Opacus' accountant
    wrapped.forbid_grad_accumulation()
    try:
        with _split(batches, how.physical_batch_size, optimizer) as physical:
            yield wrapped, optimizer, rest[0] if ghost else criterion, physical
    finally:
        wrapped.to_standard_module()


@contextmanager
def _split(batches: DataLoader[Any], physical_batch_size: int | None, optimizer: Any) -> Any:
    if physical_batch_size is None:
        yield batches
        return
    with BatchMemoryManager(
        data_loader=batches, max_physical_batch_size=physical_batch_size, optimizer=optimizer
    ) as physical:
        yield physical


class _SecretSampler(UniformWithReplacementSampler):  # type: ignore[misc]  # Opacus has no types
    """Poisson samples by coins of the operating system's randomness; also of no records at all."""

    def __init__(self, records: int, plan: ExamplePlan, random: SecureRandom) -> None:
        super().__init__(
            num_samples=max(1, records), sample_rate=plan.sampling_rate, steps=plan.steps
        )
        self._records = records
        self._random = random

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.steps):
            coins = self._random.bernoulli(self.sample_rate, self._records)
            yield np.flatnonzero(coins).tolist()


def _poisson_batches(
    loader: DataLoader[Any], plan: ExamplePlan, random: SecureRandom | None
) -> DataLoader[Any]:
    records = len(loader.dataset)  # type: ignore[arg-type]  # as above
    sampler = (
        UniformWithReplacementSampler(
            num_samples=max(1, records), sample_rate=plan.sampling_rate, steps=plan.steps
        )
        if random is None
        else _SecretSampler(records, plan, random)
    )
    collate = loader.collate_fn if loader.collate_fn is not None else default_collate
    return DataLoader(
        loader.dataset,
        batch_sampler=sampler,
        collate_fn=_Collation(collate),
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
    )


@dataclass(frozen=True)
class _Collation:
    """Makes a batch of records, and None of no records."""

    collate: Callable[[Any], Any]

    def __call__(self, records: Any) -> Any:
        return self.collate(records) if len(records) else None


class MixesRecords(ValueError):
    """A loss is not of one record alone, so that clipping would not bound a record's influence."""


class _LossOfEach(nn.Module):
    """A criterion as the mean over records of each one's own loss.

    A mean that is taken in the criterion can be over something else: class weights divide every
    record's gradient by the weights of the batch, and Opacus' ghost clipping takes a column of
    losses for a matrix.
    """

    def __init__(self, criterion: nn.Module) -> None:
        super().__init__()
        self._criterion = copy(criterion)
        self._criterion.reduction = "none"  # type: ignore[assignment]  # no tensor, torch thinks
        self.reduction = "mean"  # Opacus sets it to "none" to take the mean itself

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        losses: Tensor = self._criterion(outputs, targets)
        broadcast = isinstance(outputs, Tensor) and outputs.ndim < targets.ndim
        if broadcast or losses.ndim > targets.ndim or losses.shape[:1] != targets.shape[:1]:
            raise MixesRecords(
                f"targets of shape {tuple(targets.shape)} give losses of shape "
                f"{tuple(losses.shape)}: the criterion has to give each record a loss of its own; "
                "let outputs and targets have the same shape, or targets be classes"
            )
        losses = losses.flatten(1).mean(1) if losses.ndim > 1 else losses
        return losses.mean() if self.reduction == "mean" else losses


class _NotFinite(Exception):
    """The sum of a step has no finite value; no parameter has changed."""


class _FiniteSum:
    """Stops a step whose sum is not finite."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters

    def __call__(self, optimizer: Any) -> None:
        norms = torch._foreach_norm(
            [each.grad for each in self._parameters if each.grad is not None]
        )
        if not torch.isfinite(torch.stack(norms)).all():
            raise _NotFinite


class _SecureNoise:
    """Adds the noise of a step on an integer grid, in place of Opacus' own."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        plan: ExamplePlan,
        expected_batch_size: float,
        random: SecureRandom,
    ) -> None:
        self._parameters = parameters
        self._size = expected_batch_size
        self._random = random
        coordinates = sum(each.numel() for each in parameters)
        # Rounding the sum to the grid can move it by a step in each coordinate.
        grid = GaussianMechanism(
            noise_multiplier=plan.noise_multiplier, clipping_norm=plan.clipping_norm
        ).grid
        slack = 1.0 + grid * math.sqrt(coordinates) / plan.clipping_norm
        self._mechanism = GaussianMechanism(
            noise_multiplier=plan.noise_multiplier * slack, clipping_norm=plan.clipping_norm
        )

    def __call__(self, optimizer: Any) -> None:
        gradients = [each.grad for each in self._parameters]
        flat = torch.cat([each.reshape(-1) for each in gradients if each is not None])
        steps = flat.detach().cpu().numpy().astype(np.float64)
        if not np.isfinite(steps).all():
            raise _NotFinite
        steps *= 1.0 / self._mechanism.grid
        released = self._mechanism.release(np.trunc(steps, out=steps), self._random)
        released *= 1.0 / self._size
        private = torch.from_numpy(released).to(flat)
        start = 0
        for gradient in gradients:
            if gradient is not None:
                stop = start + gradient.numel()
                gradient.copy_(private[start:stop].view_as(gradient))
                start = stop


class _Step:
    """One physical batch: gradients, and the optimizer's step where its logical batch ends."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        criterion: Any,
        parameters: Sequence[nn.Parameter],
        grad_sample_mode: str,
        *,
        split: bool,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._criterion = criterion
        self._parameters = parameters
        self._ghost = grad_sample_mode == "ghost"
        self._split = split
        self._device = parameters[0].device

    def __call__(self, batch: Any) -> None:
        rows = 0
        if batch is not None:
            inputs, targets = _moved(batch, self._device)
            rows = len(targets)
        if rows and not self._usable(inputs, targets):
            rows = self._leave_out(inputs, targets)
        if not rows:
            self._contribute_nothing()
        try:
            self._optimizer.step()
        except _NotFinite:
            if not self._leave_out(inputs, targets):
                self._contribute_nothing()
            self._step_or_noise()
        self._optimizer.zero_grad()

    def _step_or_noise(self) -> None:
        """Step with the records that are left, or with noise alone; never stop for their sake."""
        try:
            self._optimizer.step()
        except _NotFinite:
            self._optimizer.zero_grad()
            self._contribute_nothing()
            self._optimizer.step()

    def _backward(self, inputs: Any, targets: Tensor) -> None:
        self._criterion(_forward(self._model, inputs), targets).backward()

    def _usable(self, inputs: Any, targets: Tensor) -> bool:
        """Compute the gradients and return whether they can be used, as far as it is known.

        Where batches are split, a gradient that is not finite would spoil what the optimizer has
        added up before, so each is looked at. Otherwise the sum is, before it changes anything.
        """
        try:
            self._backward(inputs, targets)
        except (MixesRecords, NotImplementedError):
            raise  # of the model, whatever the records are
        except torch.OutOfMemoryError as error:  # of the sample, not of one record
            raise MemoryError(
                f"{len(targets)} records at once don't fit into the device's memory: write "
                "physical_batch_size (dp_sgd.physical_batch_size), or grad_sample_mode='ghost'"
            ) from error
        except Exception:
            logger.exception("no gradient of this batch; its records are looked at one by one")
            self._forget_pass()
            return False
        return not self._split or self._finite()

    def _finite(self) -> bool:
        """Whether the gradient of each record of the last pass is finite."""
        # The sum of the batch can be finite where a gradient in it is not: it is scaled down.
        name = "grad" if self._ghost else "grad_sample"
        gradients = [getattr(each, name) for each in self._parameters]
        norms = torch._foreach_norm([each for each in gradients if each is not None])
        return bool(torch.isfinite(torch.stack(norms)).all())

    def _forget_pass(self) -> None:
        """Take away what Opacus kept of a pass that did not end: the next would add to it."""
        for module in self._model.modules():
            if hasattr(module, "activations"):
                module.activations.clear()
            if hasattr(module, "max_batch_len"):
                del module.max_batch_len
        for each in self._parameters:
            each._forward_counter = 0  # type: ignore[attr-defined]  # Opacus' own
            if hasattr(each, "_current_grad_sample"):
                del each._current_grad_sample
        self._model.enable_hooks()

    def _leave_out(self, inputs: Any, targets: Tensor) -> int:
        """Leave out the records without a finite gradient, and return how many are left."""
        kept = []
        for row in range(len(targets)):
            self._optimizer.zero_grad()
            if self._usable(_rows(inputs, [row]), targets[[row]]) and self._finite():
                kept.append(row)
        self._optimizer.zero_grad()
        if kept:
            self._backward(_rows(inputs, kept), targets[kept])
        return len(kept)

    def _contribute_nothing(self) -> None:
        for each in self._parameters:
            if self._ghost:
                each.grad = torch.zeros_like(each)
            else:
                each.grad_sample = each.new_zeros((0, *each.shape))  # type: ignore[attr-defined]  # Opacus' own


def _forward(model: Any, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


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
