"""Gradients of single records, each computed from that record alone.

A fresh copy of the model gets each record as a batch of one, all at once under `vmap`. Where that
can't follow the model, autograd takes one after the other, each on its own copy. Either way no
record's gradient depends on others.

    >>> gradients = SingleRecords(ModuleTemplate(model), LossOfEach(nn.CrossEntropyLoss()))
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fl_dp.clients.index_ranges import IndicesInRange
from fl_dp.user_code import Contained

from .clipped_gradients import Clip, clipped_sum, mapped, outputs_of, rows_of
from .coins_of_records import CoinsOfRecords
from .module_template import ModuleTemplate
from .own_copies import own_copy_of
from .vmap_rules import NoOwnRules

logger = logging.getLogger("flwr.fl_dp.client")


@dataclass(eq=False)
class SingleRecords:
    """Gradients by `vmap` over records, or by autograd record by record: `Gradients`.

    A batch that `vmap` can't follow raises; its records then come here one by one. One that `vmap`
    can't follow goes through autograd. So each record decides for itself alone.

    Attributes:
        one_by_one: Never use `vmap`.
    """

    holds_all = True

    _template: ModuleTemplate
    _loss: nn.Module  # returns each record's loss, `(n,)`
    _: KW_ONLY
    one_by_one: bool = False
    _warned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Check that each pass gets a loss of its own, as it gets a model.

        Raises:
            ValueError: A part of the loss can't be copied, or is shared by its copies.
        """
        own_copy_of(self._loss)

    def clipped_sums(self, inputs: Any, targets: Tensor, clip: Clip) -> Sequence[Tensor | None]:
        """See `Gradients.clipped_sums`."""
        return clipped_sum(self(inputs, targets), clip)

    def __call__(self, inputs: Any, targets: Tensor) -> list[Tensor]:
        """Return each trained parameter's gradients, `(n, *shape)`.

        Raises:
            Exception: Any error of model and loss at these records.
        """
        if self.one_by_one:
            return self.by_autograd(inputs, targets)
        if len(targets) > 1:
            return self.by_vmap(inputs, targets)
        with Contained() as attempt:
            return self.by_vmap(inputs, targets)
        gradients = self.by_autograd(inputs, targets)
        if not self._warned:
            logger.warning(
                "vmap can't follow the model (%s), so that records are trained on one after the "
                "other: right, and slower. Write DPSGD(example=...), of which this is found out "
                "once. Often faster: WithFullMask, batch_first=True, DPLSTM and DPGRU",
                type(attempt.failure).__name__,
            )
            self._warned = True
        return gradients

    def by_vmap(self, inputs: Any, targets: Tensor) -> list[Tensor]:
        """The same of all records at once.

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
