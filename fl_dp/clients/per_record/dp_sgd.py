"""DP-SGD with unpredictable randomness, and sums that are bounded by construction.

Each gradient is computed from its record alone (`SingleRecords`), or by Opacus if the user chose
that. Poisson coins and noise come from the operating system's randomness, noise as integers on a
fixed grid; Opacus uses torch's generator, predictable from its output. Clipping and sums are in
float64 (`ClippedGradients`). A record that can't be read, or has no finite gradient, counts as
gradient zero. With Opacus alone it would turn the model into NaN or stop the training, and so show
its presence. An empty sample is a step of noise alone.

Only the start and the noised sums leave, through the optimizer. Nothing is read back from a module
that has seen a record.

Coins of dropout and augmentation are secret, too: each step seeds the process's generators from
the operating system's randomness; they are restored afterwards. Records of a pass draw together,
so a missing record moves the others to other coins. These are independent, unknown and of the same
law, so the law of the others' sum is unchanged.

Not covered: a kernel whose gradient of a record depends on the batch's size, and how long a step
takes.

References:
    Abadi et al. 2016, "Deep Learning with Differential Privacy", algorithm 1.
    Yousefpour et al. 2021, "Opacus: User-Friendly Differential Privacy Library in PyTorch".
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fl_dp.accelerator.noise_source import NoiseSource
from fl_dp.arguments import Arguments, read_fields
from fl_dp.mechanisms import GaussianMechanism, SecureRandom
from fl_dp.option_errors import OptionError, require_positive
from fl_dp.plan import RecordPlan
from fl_dp.plan.noise_left import noise_left_of_records

from .clipped_gradients import moved
from .made_up_records import GRAD_SAMPLE_MODES, gradients_of
from .module_template import ModuleTemplate
from .record_batches import BatchForm
from .record_gradients import RecordGradients
from .record_loss import loss_of_units
from .record_source import RecordSource, Source

logger = logging.getLogger("flwr.fl_dp.client")


def _plain_sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.1)


@dataclass(frozen=True, kw_only=True)
class DPSGD(Arguments):
    """Choices in a client's training; none of them changes the promise.

    Attributes:
        optimizer: Makes a round's optimizer from the parameters that are not frozen. Its state is
            new each round, as clients come and go; momentum and Adam's moments are made of private
            gradients, so they cost nothing.
        criterion: Batch loss with `reduction="mean"`. Training uses each record's own loss. Class
            weights do not divide it by the batch's weights; ignored parts of a record count as
            zero in its mean. `LossInOutputs` for models that compute it.
        expected_batch_size: Divisor of a step's noisy sum: a public constant, usually the sampling
            rate times a typical client's records. None: `rate * records` of this client, rounded
            down, as in Opacus; then its number of records is public.
        grad_sample_mode: `records`: each record alone. `hooks` and `ghost` are Opacus': right where
            every layer's rows are records; they need an example.
        physical_batch_size: Most records in memory at once. None: what fits into this process's
            share.
        example: A made-up batch, as the loader would make it, of at least one record. Training is
            tried on it before any charge. None: errors of training show only in the log.
        input_key: In batches that are mappings: the inputs' key, or a tuple of keys that are the
            model's keyword arguments. None: the only tensor besides the targets.
        target_key: The targets' key. None: `label`, `labels`, `target` or `targets`.
        secure_randomness: False: coins and noise from torch's global generator, as in plain
            Opacus: for comparisons and tests only.
    """

    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = _plain_sgd
    criterion: nn.Module = field(default_factory=nn.CrossEntropyLoss)
    expected_batch_size: float | None = None
    grad_sample_mode: str = "records"
    physical_batch_size: int | None = None
    example: Any = None
    input_key: str | tuple[str, ...] | None = None
    target_key: str | None = None
    secure_randomness: bool = True

    @property
    def declared_gradients(self) -> str | None:
        """The mode, for a node's ledger, if it is right by its author's declaration alone."""
        return None if self.grad_sample_mode == "records" else self.grad_sample_mode

    def gradients(
        self, template: ModuleTemplate, *, unit: str, clipping_norm: float, rng: SecureRandom
    ) -> RecordGradients:
        """Return a model's `RecordGradients`.

        `clipping_norm` is the L2 bound on the gradient of one `unit`, a `record` or a `person`;
        `rng` seeds the coins of dropout and of reading.

        Raises:
            ValueError: The model can't be trained, on the example or by Opacus.
            Exception: Any error of model and loss at the example.
        """
        form = BatchForm(inputs=self.input_key, targets=self.target_key)
        example = None
        if self.example is not None:
            example = moved(form.split(self.example), template.device)
        gradients = gradients_of(
            template,
            loss_of_units(self.criterion, unit),
            mode=self.grad_sample_mode,
            example=example,
        )
        return RecordGradients(
            template,
            gradients,
            clipping_norm=clipping_norm,
            at_once=self.physical_batch_size,
            form=form,
            chance=rng if self.secure_randomness else None,
        )

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A field is out of range.
        """
        read_fields(self, but=["criterion"])
        if self.grad_sample_mode not in GRAD_SAMPLE_MODES:
            raise OptionError(
                f"grad_sample_mode must be one of {', '.join(GRAD_SAMPLE_MODES)}, got "
                f"'{self.grad_sample_mode}'",
                option="grad_sample_mode",
            )
        if self.grad_sample_mode != "records" and self.example is None:
            raise OptionError(
                f"grad_sample_mode='{self.grad_sample_mode}' is compared with gradients of single "
                "records before anything is charged: write example=..., a made-up batch, or "
                "grad_sample_mode='records'",
                option="grad_sample_mode",
            )
        if getattr(self.criterion, "reduction", None) != "mean":
            raise OptionError(
                "the criterion must be a torch loss with reduction='mean', such as "
                "torch.nn.CrossEntropyLoss()",
                option="criterion",
            )
        if self.expected_batch_size is not None:
            require_positive(expected_batch_size=self.expected_batch_size)
        if self.physical_batch_size is not None and self.physical_batch_size < 1:
            raise OptionError(
                f"physical_batch_size must be at least 1, got {self.physical_batch_size}",
                option="physical_batch_size",
            )


def train_with_dp_sgd(
    model: nn.Module,
    loader: Source,
    *,
    plan: RecordPlan,
    how: DPSGD,
    rng: SecureRandom | None = None,
) -> None:
    """Train a model in place for one participation: `plan.steps` steps.

    Privacy: each step is a Gaussian mechanism of the plan's noise multiplier on the sum of the
    clipped gradients of a Poisson sample, for one record, add/remove neighbours, against anyone who
    sees the parameters after it. A record that can't be read, collated or trained on has gradient
    zero, alone.

    Args:
        model: A model on its device; only its trained parameters change, at the end.
        loader: A data set, or a loader of all of it, whose batch size and order are not used; see
            `RecordSource`; of `Persons` where they are the plan's unit. A batch is a tuple, targets
            last, or a mapping (`DPSGD.input_key`); inputs are a tensor, a tuple of them, or a
            mapping of keyword arguments. Your own collation gets one record at a time, unless it is
            `RecordWise`.
        plan: The plan that is charged.
        how: All other choices.
        rng: Source of noise and coins; a fresh secure one by default.

    Raises:
        ValueError: The model can't be trained, or the loader would not be used whole.
        Exception: Any error of the data set's `len`, the optimizer or a worker of the loader.
    """
    records = RecordSource(loader, unit=plan.unit)
    participation = PrivateSteps(model, plan=plan, how=how, rng=rng)
    participation.read(records)
    participation.train()
    participation.template.write_to(model)


def train_on_noise(
    model: nn.Module,
    *,
    records: int,
    plan: RecordPlan,
    how: DPSGD,
    rng: SecureRandom | None = None,
) -> None:
    """Take the steps of a participation in which no record has a gradient.

    Args:
        model: Changed in place.
        records: Number of records, for a denominator that is not a constant; 0 if unknown.
        plan: As in training.
        how: As in training.
        rng: Source of the noise; a fresh secure one by default.
    """
    template = ModuleTemplate(model)
    parameters = list(template.parameters.values())
    optimizer = how.optimizer(parameters)
    noise = _Noise(parameters, plan, how, records, rng or SecureRandom())
    zeros = template.zeros()
    for _ in range(plan.steps):
        noise.release(zeros)
        optimizer.step()
    template.write_to(model)


class PrivateSteps:
    """A participation's steps, prepared without a look at any record.

    Attributes:
        template: Holds the parameters, which the steps change.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        plan: RecordPlan,
        how: DPSGD,
        rng: SecureRandom | None = None,
    ) -> None:
        """Copy a model and make the optimizer.

        Raises:
            ValueError: The model can't be trained (see `DPSGD.gradients`), or the optimizer moves
                nothing, or to no number.
            TypeError: `how.optimizer` makes no optimizer, or one that needs a closure.
        """
        self.template = ModuleTemplate(model)
        self._plan = plan
        self._how = how
        self._rng = rng or SecureRandom()
        self._parameters = list(self.template.parameters.values())
        _require_moving(how, self._parameters)
        self._optimizer = _optimizer_of(how, self._parameters)
        self._gradients = how.gradients(
            self.template, unit=plan.unit, clipping_norm=plan.clipping_norm, rng=self._rng
        )

    @property
    def records(self) -> int:
        """Number of records; 0 before `read`."""
        return self._gradients.records

    def read(self, source: RecordSource) -> None:
        """Choose the records, and count them."""
        self._gradients.read(source)

    def train(self) -> None:
        """Take the steps with the records read; see `train_with_dp_sgd`."""
        plan, how = self._plan, self._how
        noise = _Noise(self._parameters, plan, how, self.records, self._rng)
        coins = self._rng if how.secure_randomness else None
        samples = _poisson_samples(self.records, plan, coins)

        def step(totals: Sequence[Tensor]) -> None:
            noise.release(totals)
            self._optimizer.step()

        self._gradients.sum_each(samples, step)


def _optimizer_of(how: DPSGD, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The optimizer of parameters.

    Raises:
        TypeError: `how.optimizer` makes none, or one that needs a closure.
    """
    optimizer = how.optimizer(parameters)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"DPSGD(optimizer=...) made a {type(optimizer).__name__}: let it return a "
            "torch.optim.Optimizer of the parameters that it gets"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(optimizer).__name__} evaluates the loss of a batch by itself, which "
            "no noise would cover: let DPSGD(optimizer=...) make another one, such as SGD"
        )
    return optimizer


def _require_moving(how: DPSGD, parameters: Sequence[nn.Parameter]) -> None:
    """Take one step of a made-up gradient, with other parameters of the same shapes.

    Raises:
        ValueError: It moves none of them, or to a number that is not finite.
        Exception: Any error of the optimizer.
    """
    trial = [nn.Parameter(torch.ones_like(parameter)) for parameter in parameters]
    with torch.no_grad():
        for parameter in trial:  # a tiny step shows at 0, and one that scales a weight at 1
            if parameter.numel():
                parameter[(0,) * parameter.ndim] = 0.0
            parameter.grad = torch.ones_like(parameter)
    before = [parameter.detach().clone() for parameter in trial]
    _optimizer_of(how, trial).step()
    if all(torch.equal(*pair) for pair in zip(trial, before, strict=True)):
        raise ValueError(
            "a step of DPSGD(optimizer=...) moves no parameter, so a budget would be spent for "
            "nothing: give it a learning rate above 0, and the parameters that it gets"
        )
    if not all(bool(parameter.isfinite().all()) for parameter in trial):
        raise ValueError(
            "a step of DPSGD(optimizer=...) leaves numbers that are not finite: give it a finite "
            "learning rate"
        )


def _poisson_samples(
    records: int, plan: RecordPlan, random: SecureRandom | None
) -> Iterator[list[int]]:
    """Yield each step's records, by coins of `random`; None: torch's."""
    if random is None:
        yield from UniformWithReplacementSampler(
            num_samples=max(1, records), sample_rate=plan.sampling_rate, steps=plan.steps
        )
        return
    for _ in range(plan.steps):
        yield np.flatnonzero(random.bernoulli(plan.sampling_rate, records)).tolist()


@lru_cache(maxsize=1024)  # logs each line once
def _log_noise(plan: RecordPlan, coordinates: int, batch_size: float) -> None:
    """Log the noise in one client's training, relative to its gradients."""
    noise = noise_left_of_records(
        plan, coordinates, batch_size=batch_size, clients=1.0, rounds=plan.participations
    )
    logger.info("DP-SGD of this client alone: %s", noise.in_words)


class _Noise:
    """Turns a step's sum into the optimizer's gradient: adds noise, then divides."""

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
        self._size: float = max(1, int(records * plan.sampling_rate))
        if how.expected_batch_size is not None:
            self._size = how.expected_batch_size
        self._secure = how.secure_randomness
        self._random = random
        coordinates = sum(parameter.numel() for parameter in parameters)
        # Rounding the sum to the grid can move it by a step in each coordinate.
        planned = GaussianMechanism(
            noise_multiplier=plan.noise_multiplier, clipping_norm=plan.clipping_norm
        )
        _log_noise(plan, coordinates, self._size)
        slack = 1.0 + planned.grid * math.sqrt(coordinates) / plan.clipping_norm
        self._mechanism = replace(planned, noise_multiplier=plan.noise_multiplier * slack)

    def release(self, totals: Sequence[Tensor]) -> None:
        """Set the parameters' gradients to the private mean."""
        if not self._secure:
            for parameter, total in zip(self._parameters, totals, strict=True):
                noise = torch.normal(0.0, self._std, parameter.shape, device=parameter.device)
                parameter.grad = ((total + noise) / self._size).to(parameter.dtype)
            return
        total = torch.cat([total.reshape(-1) for total in totals])
        # Divided after the noise is added: a division before it would round the sum.
        released = private_sum(total, self._mechanism, self._random).mul_(1.0 / self._size)
        sizes = [parameter.numel() for parameter in self._parameters]
        for parameter, part in zip(self._parameters, torch.split(released, sizes), strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)


def private_sum(total: Tensor, mechanism: GaussianMechanism, rng: SecureRandom) -> Tensor:
    """Release a sum on its own device, to the bit as `GridMechanism.release` does on the CPU.

    Privacy: the mechanism's. Each coordinate gets noise of its own, drawn here for this sum alone.

    Args:
        total: Float64 `(d,)`, in the gradients' units; overwritten, and rounded towards zero.
        mechanism: Its grid is a power of two, so nothing but the addition rounds.
        rng: Source of the noise, which `NoiseSource` draws.

    Returns:
        The private sum in the gradients' units, in the memory of `total`.
    """
    steps = total.mul_(1.0 / mechanism.grid).trunc_()
    noise = NoiseSource(steps.device).integers(mechanism.law, steps.numel(), rng)
    steps.add_(noise).mul_(mechanism.grid)
    noise.zero_()
    return steps
