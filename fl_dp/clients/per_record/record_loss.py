"""Losses of single records, even where the model computes them itself."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fl_dp.clients.per_record.index_ranges import require_targets


class MixesRecords(ValueError):
    """A loss depends on several records: clipping would not bound one record's influence."""


class LossOfEach(nn.Module):
    """Each record's own loss under a criterion.

    A criterion's mean can differ: class weights divide each gradient by the batch's weights.
    """

    unit: ClassVar[str] = "record"

    def __init__(self, criterion: nn.Module) -> None:
        """Take a criterion with a `reduction`, which is copied."""
        super().__init__()
        self._criterion = copy(criterion)
        self._criterion.reduction = "none"  # type: ignore[assignment]  # no tensor, torch thinks

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the losses, `(n,)`.

        Raises:
            IndexError: A label is no class, on any device.
            ValueError: A loss of probabilities gets something else.
            MixesRecords: The criterion does not give one per record.
        """
        require_targets(self._criterion, outputs, targets)
        losses: Tensor = self._criterion(outputs, targets)
        if isinstance(self._criterion, LossInOutputs):
            return losses
        broadcast = isinstance(outputs, Tensor) and outputs.ndim < targets.ndim
        if broadcast or losses.ndim > targets.ndim or losses.shape[:1] != targets.shape[:1]:
            raise MixesRecords(
                f"targets of shape {tuple(targets.shape)} give losses of shape "
                f"{tuple(losses.shape)}: the criterion has to give each record a loss of its own; "
                "let outputs and targets have the same shape, or targets be classes"
            )
        if losses.ndim > 1:
            return losses.flatten(1).mean(1)
        return losses

    def batch_of(self, record: Tensor) -> Tensor:
        """Return what of one record the model gets: a batch of one."""
        return record[None]


class LossOfPersons(LossOfEach):
    """Each person's loss: the mean of its rows' losses, whose gradient is that of its rows'."""

    unit: ClassVar[str] = "person"

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return one person's loss, `(1,)`. Raises as `LossOfEach`."""
        return super().forward(outputs, targets).mean(0, keepdim=True)

    def batch_of(self, record: Tensor) -> Tensor:
        """Return what of one person the model gets: its rows, as a batch."""
        return record


def loss_of_units(criterion: nn.Module, unit: str) -> LossOfEach:
    """Return the losses of a promise's units, `record` or `person`."""
    return LossOfPersons(criterion) if unit == LossOfPersons.unit else LossOfEach(criterion)


class LossInOutputs(nn.Module):
    """A criterion for models whose outputs carry the loss, such as transformers.

        >>> DPSGD(criterion=LossInOutputs(), input_key=("input_ids", "labels"))

    The model gets each record alone, so this is the record's own loss. Opacus' hooks and ghost
    clipping are refused: for their whole batches such a model gives a mean.
    """

    reduction = "mean"

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return one record's loss, `(1,)`.

        Raises:
            MixesRecords: There are several records.
        """
        if len(targets) != 1:
            raise MixesRecords(
                "the model computes one loss of several records: write grad_sample_mode='records'"
            )
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs.loss
        only: Tensor = loss.reshape(1)
        return only


class WithFullMask(nn.Module):
    """A transformers model, given its attention mask in a form that `vmap` follows.

        >>> model = WithFullMask(AutoModelForCausalLM.from_pretrained(...), causal=True)

    Such models read a two-dimensional mask's values, which `vmap` can't follow; a four-dimensional
    one they use as it is. Arrays have the wrapped model's names, after `model.`.
    """

    def __init__(self, model: nn.Module, *, causal: bool) -> None:
        """Wrap a model.

        Args:
            model: Takes `attention_mask` by name.
            causal: Whether a position sees only itself and earlier ones, as in a decoder.
        """
        super().__init__()
        self.model = model
        self._causal = causal

    def forward(self, attention_mask: Tensor, **inputs: Any) -> Any:
        """Return the model's outputs.

        Args:
            attention_mask: Nonzero where a position holds a token, `(n, length)`.
            **inputs: The model's other inputs.
        """
        length = attention_mask.shape[1]
        visible = attention_mask[:, None, None, :].bool().expand(-1, 1, length, -1)
        if self._causal:
            visible = visible & torch.ones_like(visible).tril()
        dtype = next(self.model.parameters()).dtype
        zeros = torch.zeros_like(visible, dtype=dtype)
        mask = zeros.masked_fill(~visible, torch.finfo(dtype).min)
        return self.model(attention_mask=mask, **inputs)
