"""Gradients of single records, each computed from that record alone.

A fresh copy of the model gets each record as a batch of one, all at once under `vmap`. Layers note
what the gradients of their weights and biases are made of (`noted_layers`). A parameter that is
used in any other way gets a copy for each record, and with that a gradient for each. Where `vmap`
can't follow the model, autograd takes one record after the other, each on its own copy of the
model. Either way no record's gradient depends on others.

    >>> gradients = SingleRecords(ModuleTemplate(model), LossOfEach(nn.CrossEntropyLoss()))
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Hashable, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.func import debug_unwrap

from fl_dp.user_code import Contained

from .clipped_gradients import Clip, clipped_sum, mapped, outputs_of, rows_of
from .module_template import ModuleTemplate
from .noted_gradients import NotedGradient, clipped_sums_of
from .noted_layers import NotedLayers
from .own_copies import own_copy_of
from .record_loss import LossOfEach
from .vmap_rules import NoOwnRules
from .watched_pass import WatchedPass

logger = logging.getLogger("flwr.fl_dp.client")


@dataclass(eq=False)
class SingleRecords:
    """Gradients by `vmap` over records, or by autograd record by record: `Gradients`.

    A batch that `vmap` can't follow raises; its records then come here one by one. One that `vmap`
    can't follow goes through autograd. So each record decides for itself alone. Which layers note
    in a batch goes by its shapes alone.

    Attributes:
        one_by_one: Never use `vmap`.
        copied: Parameters of which each record has a copy, whatever their use.
    """

    _template: ModuleTemplate
    _loss: LossOfEach
    _: KW_ONLY
    one_by_one: bool = False
    copied: Collection[str] = ()
    _warned: bool = field(default=False, init=False)
    _copied_at: dict[Hashable, Set[str]] = field(default_factory=dict, init=False)
    """By shapes of a record, which alone decide it: other parameters that need copies."""

    def __post_init__(self) -> None:
        """Check that each pass gets a loss of its own, as it gets a model.

        Raises:
            ValueError: A part of the loss can't be copied, or is shared by its copies.
        """
        own_copy_of(self._loss)

    @property
    def held(self) -> Collection[str]:
        """See `Gradients.held`."""
        return self._template.parameters.keys() - self._noting()

    def clipped_sums(self, inputs: Any, targets: Tensor, clip: Clip) -> Sequence[Tensor | None]:
        """See `Gradients.clipped_sums`."""
        if self.one_by_one:
            return clipped_sum(self.by_autograd(inputs, targets), clip)
        if len(targets) > 1:
            return self.by_notes(inputs, targets, clip)
        with Contained() as attempt:
            return self.by_notes(inputs, targets, clip)
        gradients = self.by_autograd(inputs, targets)
        if not self._warned:
            logger.warning(
                "vmap can't follow the model (%s), so that records are trained on one after the "
                "other: right, and slower. Write DPSGD(example=...), of which this is found out "
                "once. Often faster: WithFullMask, batch_first=True, DPLSTM and DPGRU",
                type(attempt.failure).__name__,
            )
            self._warned = True
        return clipped_sum(gradients, clip)

    def by_notes(self, inputs: Any, targets: Tensor, clip: Clip) -> Sequence[Tensor | None]:
        """The same of all records at once, without gradients of records where layers note them.

        Raises:
            Exception: Any error of model and loss at these records, or of `vmap` at their code.
        """
        noted, copies = self._passed(inputs, targets)
        sums = clipped_sums_of(noted, copies, len(targets), clip, device=self._template.device)
        return [
            sums[name].reshape(parameter.shape) if name in sums else None
            for name, parameter in self._template.parameters.items()
        ]

    def noted(self, inputs: Any, targets: Tensor) -> Collection[str]:
        """The parameters of which these records need no copies.

        Raises:
            Exception: Any error of model and loss at these records, or of `vmap` at their code.
        """
        return self._passed(inputs, targets)[0].keys()

    def _passed(
        self, inputs: Any, targets: Tensor
    ) -> tuple[dict[str, NotedGradient], dict[str, Tensor]]:
        """Return noted parameters' gradients, and others' as `(n, *shape)`."""
        shapes = _shapes(inputs, targets)
        copied = self._copied_at.get(shapes, frozenset())
        while True:
            one_pass = _Pass(self._template, self._loss, self._noting(copied), len(targets))
            noted, copies, elsewhere = one_pass.gradients(inputs, targets)
            if not elsewhere:
                return noted, copies
            copied = copied | elsewhere  # this form of records uses them in other ways, too
            if len(targets) > 1:  # a single record may draw coins that decide it
                self._copied_at[shapes] = copied

    def _noting(self, copied: Set[str] = frozenset()) -> frozenset[str]:
        """Weights of layers, and biases of such, but those that are copied."""
        if self.one_by_one:
            return frozenset()
        parameters = self._template.parameters.items()
        weights = {name for name, value in parameters if value.ndim > 1}
        weights |= self._template.parameters.keys() & self._template.scales
        weights = weights.difference(self.copied, copied)
        biases = {name for name, _ in parameters if name.replace("bias", "weight") in weights}
        return frozenset(weights | biases.difference(self.copied, copied))

    def by_autograd(self, inputs: Any, targets: Tensor) -> list[Tensor]:
        """Return each parameter's gradients, `(n, *shape)`, of one record after the other.

        Raises:
            Exception: Any error of model and loss at these records.
        """
        rows = [slice(row, row + 1) for row in range(len(targets))]
        gradients = [self._of_one(rows_of(inputs, row), targets[row]) for row in rows]
        return [torch.stack(parts) for parts in zip(*gradients, strict=True)]

    def _of_one(self, inputs: Any, targets: Tensor) -> list[Tensor]:
        model, criterion = self._template.copy(), copy.deepcopy(self._loss)
        batch_of = criterion.batch_of
        inputs, targets = mapped(lambda tensor: batch_of(tensor[0]).clone(), (inputs, targets))
        named = dict(model.named_parameters())
        trained = [named[name] for name in self._template.parameters]
        with WatchedPass(1), torch.enable_grad():
            criterion(outputs_of(model, inputs), targets).sum().backward()
        return [torch.zeros_like(part) if part.grad is None else part.grad for part in trained]


def _shapes(inputs: Any, targets: Tensor) -> Hashable:
    """Equal for records of the same form, however many there are."""
    shapes: list[Hashable] = []

    def add(tensor: Tensor) -> Tensor:
        shapes.append((tensor.shape[1:], tensor.dtype))
        return tensor

    mapped(add, (inputs, targets))
    return tuple(shapes)


def _copies(tensor: Tensor, records: int) -> Tensor:
    """One for each record, in memory of its own, as a forward pass may write into it."""
    return tensor.detach().repeat(records, *[1] * tensor.ndim)


class _Pass:
    """One forward and backward pass of several records, each a batch of one."""

    def __init__(
        self, template: ModuleTemplate, loss: LossOfEach, taken: Set[str], records: int
    ) -> None:
        self._template, self._criterion = template, copy.deepcopy(loss)
        self._shared, self._copies = {}, {}
        for name, weight in template.detached().items():
            if name in taken:
                self._shared[name] = weight.requires_grad_()
            else:
                self._copies[name] = _copies(weight, records).requires_grad_()
        # Such as the vectors that spectral normalisation writes into, beside the weight's copies.
        self._buffers = {
            name: _copies(buffer, records)
            for name, buffer in template.buffers_beside(
                name for name, copies in self._copies.items() if copies.ndim > 2
            )
        }
        noted = {name: NotedGradient() for name in taken}
        self._noted = noted  # no cycle through self: a pass's notes would wait for the collector
        self._layers = NotedLayers(
            records, self._shared, lambda name, use: noted[name].add(use), template.device
        )
        self._gradients: Sequence[Tensor | None] = ()

    def gradients(
        self, inputs: Any, targets: Tensor
    ) -> tuple[dict[str, NotedGradient], dict[str, Tensor], set[str]]:
        """Return noted weights' gradients, other parameters', and weights to be copied.

        A weight with a gradient besides the noted uses is used in another way, too.
        """
        with self._layers, NoOwnRules(), torch.enable_grad():
            torch.vmap(self._backward, randomness="different")(
                self._copies, self._buffers, (inputs, targets)
            )
        noted = {name: gradient for name, gradient in self._noted.items() if gradient.is_used}
        pairs = zip([*self._copies, *self._shared], self._gradients, strict=False)
        by_name = {name: gradient for name, gradient in pairs if gradient is not None}
        copies = {name: by_name[name] for name in self._copies if name in by_name}
        return noted, copies, by_name.keys() - copies.keys()

    def _backward(
        self, copies: dict[str, Tensor], buffers: dict[str, Tensor], record: tuple[Any, Tensor]
    ) -> Tensor:
        batch_of = self._criterion.batch_of
        alone, target = mapped(lambda tensor: batch_of(tensor).clone(), record)
        model = self._template.copy_with(copies | buffers | self._shared)
        loss: Tensor = self._criterion(outputs_of(model, alone), target).sum()
        # Below vmap, but within it, as checkpointed parts run again in the backward pass; and not
        # by torch.autograd.grad, in which our modes would miss that.
        losses = debug_unwrap(loss)
        if losses.requires_grad:
            leaves = (self._layers.token, *self._copies.values(), *self._shared.values())
            ones = torch.ones_like(losses)
            with torch.autocast(losses.device.type, enabled=False):
                _, *self._gradients = _engine_run_backward(
                    (losses,), (ones,), False, False, leaves, True, accumulate_grad=False
                )
        return loss
