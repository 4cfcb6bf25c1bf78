"""Gradients of single records, each computed from that record alone.

A fresh copy of the model gets each record as a batch of one, all at once under `vmap`. Layers note
what the gradients of their weights are made of (`noted_layers`); of every other parameter each
record has its own copy, and with that its own gradient. Where `vmap` can't follow the model,
autograd takes one record after the other, each on its own copy of the model. Either way no
record's gradient depends on others.

    >>> gradients = SingleRecords(ModuleTemplate(model), LossOfEach(nn.CrossEntropyLoss()))
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Hashable, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.func import debug_unwrap, grad, vmap

from fl_dp.clients.per_record.index_ranges import IndicesInRange
from fl_dp.user_code import Contained

from .clipped_gradients import Clip, clipped_sum, lacks_memory, mapped, outputs_of, rows_of
from .coins_of_records import CoinsOfRecords
from .module_template import ModuleTemplate
from .noted_gradients import NotedGradient, clipped_sums_of
from .noted_layers import NotedLayers
from .own_copies import own_copy_of
from .vmap_rules import NoOwnRules

logger = logging.getLogger("flwr.fl_dp.client")


@dataclass(eq=False)
class SingleRecords:
    """Gradients by `vmap` over records, or by autograd record by record: `Gradients`.

    A batch that `vmap` can't follow raises; its records then come here one by one. One that `vmap`
    can't follow goes through autograd. So each record decides for itself alone. Whether layers
    note in a batch goes by its shapes alone.

    Attributes:
        one_by_one: Never use `vmap`.
        copied: Parameters of which each record has a copy, whatever their use.
    """

    _template: ModuleTemplate
    _loss: nn.Module  # returns each record's loss, `(n,)`
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
        return self._template.parameters.keys() - self._candidates()

    def clipped_sums(self, inputs: Any, targets: Tensor, clip: Clip) -> Sequence[Tensor | None]:
        """See `Gradients.clipped_sums`."""
        if self.one_by_one:
            return clipped_sum(self.by_autograd(inputs, targets), clip)
        if len(targets) > 1:
            with Contained() as attempt:
                return self.by_notes(inputs, targets, clip)
            assert attempt.failure is not None  # the block above did not return
            if lacks_memory(attempt.failure) or not self._fails_at_zero(inputs, targets):
                raise attempt.failure
            self._copied_at[_shapes(inputs, targets)] = self._template.parameters.keys()
            return self._by_vmap_summed(inputs, targets, clip)
        for way in (self.by_notes, self._by_vmap_summed):
            with Contained() as attempt:
                return way(inputs, targets, clip)
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

    def _fails_at_zero(self, inputs: Any, targets: Tensor) -> bool:
        """Tell whether layers can't note at such shapes, whatever the records hold."""
        with Contained():
            zeros = mapped(torch.zeros_like, inputs), torch.zeros_like(targets)
            self.by_notes(*zeros, _unclipped)
            return False
        return True

    def _by_vmap_summed(self, inputs: Any, targets: Tensor, clip: Clip) -> Sequence[Tensor | None]:
        return clipped_sum(self.by_vmap(inputs, targets), clip)

    def by_notes(self, inputs: Any, targets: Tensor, clip: Clip) -> Sequence[Tensor | None]:
        """The same of all records at once, without gradients of records where layers note them.

        Raises:
            Exception: Any error of model and loss at these records, or of `vmap` at their code.
        """
        if not self._may_be_noted(inputs, targets):
            return self._by_vmap_summed(inputs, targets, clip)
        noted, copies = self._passed(inputs, targets)
        with torch.autocast(self._template.device.type, enabled=False):
            sums = clipped_sums_of(noted, copies, len(targets), clip)
        return [
            sums[name].reshape(parameter.shape) if name in sums else None
            for name, parameter in self._template.parameters.items()
        ]

    def noted(self, inputs: Any, targets: Tensor) -> Collection[str]:
        """The weights of which these records need no gradients of their own.

        Raises:
            Exception: Any error of model and loss at these records, or of `vmap` at their code.
        """
        return self._passed(inputs, targets)[0].keys()

    def _passed(
        self, inputs: Any, targets: Tensor
    ) -> tuple[dict[str, NotedGradient], dict[str, Tensor]]:
        """Return noted weights' gradients, and other parameters' as `(n, *shape)`."""
        taken = self._may_be_noted(inputs, targets)
        while True:
            one_pass = _Pass(self._template, self._loss, taken, len(targets))
            noted, copies, elsewhere = one_pass.gradients(inputs, targets)
            if not elsewhere:
                return noted, copies
            taken = taken - elsewhere  # this form of records uses them in other ways, too
            if len(targets) > 1:  # a single record may draw coins that decide it
                self._copied_at[_shapes(inputs, targets)] = self._template.parameters.keys() - taken

    def _may_be_noted(self, inputs: Any, targets: Tensor) -> Set[str]:
        return self._candidates().difference(self._copied_at.get(_shapes(inputs, targets), ()))

    def _candidates(self) -> frozenset[str]:
        if self.one_by_one:
            return frozenset()
        weights = self._template.parameters.items()
        return frozenset(name for name, weight in weights if weight.ndim > 1).difference(
            self.copied
        )

    def by_vmap(self, inputs: Any, targets: Tensor) -> list[Tensor]:
        """Return each parameter's gradients, `(n, *shape)`, of all records at once.

        Raises:
            Exception: Any error of model and loss at these records, or of `vmap` at their code.
        """
        criterion = copy.deepcopy(self._loss)

        def loss(weights: dict[str, Tensor], record: tuple[Any, Tensor]) -> Tensor:
            # Cloned inside, so that a forward pass may write into them; the model's copy is, too.
            alone, target = mapped(lambda tensor: tensor[None].clone(), record)
            model = self._template.copy_with(weights)
            total: Tensor = criterion(outputs_of(model, alone), target).sum()
            return total

        gradients = vmap(grad(loss), in_dims=(None, 0), randomness="different")
        coins = CoinsOfRecords(len(targets))
        with coins, IndicesInRange(), NoOwnRules(), torch.enable_grad():
            by_name: dict[str, Tensor] = gradients(self._template.detached(), (inputs, targets))
        return list(by_name.values())

    def by_autograd(self, inputs: Any, targets: Tensor) -> list[Tensor]:
        """The same of one record after the other.

        Raises:
            Exception: Any error of model and loss at these records.
        """
        rows = [slice(row, row + 1) for row in range(len(targets))]
        gradients = [self._of_one(rows_of(inputs, row), targets[row]) for row in rows]
        return [torch.stack(parts) for parts in zip(*gradients, strict=True)]

    def _of_one(self, inputs: Any, targets: Tensor) -> tuple[Tensor, ...]:
        model, criterion = self._template.copy(), copy.deepcopy(self._loss)
        inputs, targets = mapped(Tensor.clone, (inputs, targets))
        named = dict(model.named_parameters())
        trained = [named[name] for name in self._template.parameters]
        with CoinsOfRecords(1), IndicesInRange(), torch.enable_grad():
            loss = criterion(outputs_of(model, inputs), targets).sum()
        return torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)


def _shapes(inputs: Any, targets: Tensor) -> Hashable:
    """Equal for records of the same form, however many there are."""
    shapes: list[Hashable] = []

    def add(tensor: Tensor) -> Tensor:
        shapes.append((tensor.shape[1:], tensor.dtype))
        return tensor

    mapped(add, (inputs, targets))
    return tuple(shapes)


def _unclipped(squares: Tensor) -> tuple[Tensor, None]:
    return torch.ones_like(squares), None


class _Pass:
    """One forward and backward pass of several records, each a batch of one."""

    def __init__(
        self, template: ModuleTemplate, loss: nn.Module, taken: Set[str], records: int
    ) -> None:
        self._template, self._criterion = template, copy.deepcopy(loss)
        self._records = records
        self._shared, self._copies = {}, {}
        for name, weight in template.detached().items():
            if name in taken:
                self._shared[name] = weight.requires_grad_()
            else:
                copies = weight.expand(records, *weight.shape).detach()
                self._copies[name] = copies.requires_grad_()
        noted = {name: NotedGradient() for name in taken}
        self._noted = noted  # no cycle through self: a pass's notes would wait for the collector
        self._layers = NotedLayers(
            self._shared, lambda name, use: noted[name].add(use), template.device
        )
        self._gradients: Sequence[Tensor | None] = ()

    def gradients(
        self, inputs: Any, targets: Tensor
    ) -> tuple[dict[str, NotedGradient], dict[str, Tensor], set[str]]:
        """Return noted weights' gradients, other parameters', and weights to be copied.

        A weight with a gradient besides the noted uses is used in another way, too.
        """
        coins = CoinsOfRecords(self._records)
        with coins, IndicesInRange(), NoOwnRules(), self._layers, torch.enable_grad():
            torch.vmap(self._backward, in_dims=(0, 0), randomness="different")(
                self._copies, (inputs, targets)
            )
        noted = {name: gradient for name, gradient in self._noted.items() if gradient.is_used}
        pairs = zip([*self._copies, *self._shared], self._gradients, strict=False)
        by_name = {name: gradient for name, gradient in pairs if gradient is not None}
        copies = {name: by_name[name] for name in self._copies if name in by_name}
        return noted, copies, by_name.keys() - copies.keys()

    def _backward(self, copies: dict[str, Tensor], record: tuple[Any, Tensor]) -> Tensor:
        alone, target = mapped(lambda tensor: tensor[None].clone(), record)
        model = self._template.copy_with(copies | self._shared)
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
