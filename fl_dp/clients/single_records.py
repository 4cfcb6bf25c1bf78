"""Gradients of single records, each computed from that record alone.

Each record is given to a fresh copy of the model as a batch of one: all at once under `vmap`, or
where that can't follow the model, one after the other by plain autograd, each on a copy of its own.
Either way no record can tell what others there are.

    >>> gradients = SingleRecords(ModuleTemplate(model), LossOfEach(nn.CrossEntropyLoss()))

Which way it is depends on the shapes of a record and never on what it holds: a batch that `vmap`
can't follow is decided upon with a made-up record of the same shapes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fl_dp.tasks.models.index_ranges import IndicesInRange
from fl_dp.user_code import Contained

from .clipped_gradients import Clip, clipped_sum, lacks_memory, outputs_of, rows_of
from .module_template import ModuleTemplate

logger = logging.getLogger("flwr.fl_dp.client")

_ALONE = (
    "vmap can't follow the model, so that its records are trained on one after the other: right, "
    "and slower. Often faster: an attention mask of four dimensions (WithFullMask), "
    "batch_first=True, DPLSTM and DPGRU (private_module)"
)


class SingleRecords:
    """Gradients by `vmap` over records, or by autograd record by record: `Gradients`.

    Attributes:
        one_by_one: Whether autograd is used for all records.
    """

    holds_all = True

    def __init__(
        self, template: ModuleTemplate, loss: nn.Module, *, one_by_one: bool = False
    ) -> None:
        """Take a model.

        Args:
            template: The model.
            loss: Of a batch's outputs and targets; gives each record's, `(n,)`.
            one_by_one: Never use `vmap`.
        """
        self.one_by_one = one_by_one
        self._template, self._loss = template, loss
        self._not_followed: set[Any] = set()

    def clipped_sums(self, inputs: Any, targets: Tensor, clip: Clip) -> Sequence[Tensor | None]:
        """Return the sum of the records' clipped gradients; see `Gradients.clipped_sums`."""
        return clipped_sum(self(inputs, targets), clip)

    def __call__(self, inputs: Any, targets: Tensor) -> list[Tensor]:
        """Return each trained parameter's gradients, `(n, *shape)`.

        Raises:
            Exception: Whatever model and loss raise at these records.
        """
        batch = (inputs, targets)
        form = _form(batch)
        if self.one_by_one or form in self._not_followed:
            return self._alone(batch)
        with Contained() as attempt:
            return self._by_vmap(batch)
        assert attempt.failure is not None  # the block above did not return
        if lacks_memory(attempt.failure):
            raise attempt.failure
        with Contained() as made_up:
            self._by_vmap(_zeros(batch))
        if made_up.failure is None:  # these records fail, and others of this form need not
            raise attempt.failure
        if not self._not_followed:
            # Of a made-up record, so that its text holds no data.
            logger.warning("%s: %s", _ALONE, _first_line(made_up.failure))
        self._not_followed.add(form)
        return self._alone(batch)

    def follows(self, inputs: Any, targets: Tensor) -> bool:
        """Tell whether `vmap` is used for records of these shapes."""
        return not self.one_by_one and _form((inputs, targets)) not in self._not_followed

    def _by_vmap(self, batch: tuple[Any, Tensor]) -> list[Tensor]:
        model, mapped = self._template.copy(), _dict_of(batch)

        def loss(parameters: dict[str, Tensor], record: dict[str, Any]) -> Tensor:
            inputs, target = _batch_of_one(record["inputs"]), record["targets"][None]
            outputs = functional_call(model, parameters, *_arguments(inputs))
            total: Tensor = self._loss(outputs, target).sum()
            return total

        gradients = vmap(grad(loss), in_dims=(None, 0), randomness="different")
        with IndicesInRange(), torch.enable_grad():
            found: dict[str, Tensor] = gradients(self._template.detached(), mapped)
        return list(found.values())

    def _alone(self, batch: tuple[Any, Tensor]) -> list[Tensor]:
        inputs, targets = batch
        rows = [slice(row, row + 1) for row in range(len(targets))]
        gradients = [self._of_one(rows_of(inputs, row), targets[row]) for row in rows]
        return [torch.stack(parts) for parts in zip(*gradients, strict=True)]

    def _of_one(self, inputs: Any, targets: Tensor) -> tuple[Tensor, ...]:
        model = self._template.copy()
        named = dict(model.named_parameters())
        trained = [named[name] for name in self._template.parameters]
        with IndicesInRange(), torch.enable_grad():
            loss = self._loss(outputs_of(model, inputs), targets).sum()
        return torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)


def _dict_of(batch: tuple[Any, Tensor]) -> dict[str, Any]:
    return {"inputs": batch[0], "targets": batch[1]}


def _batch_of_one(inputs: Any) -> Any:
    return _mapped(lambda tensor: tensor[None], inputs)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _mapped(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: _mapped(change, branch) for name, branch in tree.items()}
    return tuple(_mapped(change, branch) for branch in tree)


def _form(tree: Any) -> Any:
    """Return the shapes of one record, and its dtypes."""
    if isinstance(tree, Tensor):
        return tuple(tree.shape[1:]), tree.dtype
    if isinstance(tree, Mapping):
        return tuple((name, _form(branch)) for name, branch in tree.items())
    return tuple(_form(branch) for branch in tree)


def _zeros(tree: Any) -> Any:
    """Return a batch of one made-up record of the same form."""
    return _mapped(lambda tensor: torch.zeros_like(tensor[:1]), tree)


def _first_line(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {str(failure).strip()}".splitlines()[0][:200]
