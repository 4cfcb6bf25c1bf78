"""Losses of single records, also where the model computes them itself."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from fl_dp.clients.index_ranges import require_targets


class MixesRecords(ValueError):
    """A loss depends on several records, so that clipping would not bound a record's influence."""


class LossOfEach(nn.Module):
    """Each record's own loss under a criterion.

    The mean of a criterion can be over something else: class weights divide every record's gradient
    by the weights of the batch.
    """

    def __init__(self, criterion: nn.Module) -> None:
        """Take a criterion with a `reduction`, which is copied."""
        super().__init__()
        self._criterion = copy(criterion)
        self._criterion.reduction = "none"  # type: ignore[assignment]  # no tensor, torch thinks

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the losses, `(n,)`.

        Raises:
            IndexError: A label is none of the classes, on any device.
            ValueError: A loss of probabilities gets something else.
            MixesRecords: The criterion does not give each record one.
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


class LossInOutputs(nn.Module):
    """A criterion for models whose outputs carry the loss, as those of transformers do.

        >>> DPSGD(criterion=LossInOutputs(), input_key=("input_ids", "labels"))

    The model gets each record alone, so this is its own loss. Opacus' hooks and ghost clipping are
    refused: they see whole batches, of which such a model gives the mean.
    """

    reduction = "mean"

    def forward(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the loss of a batch of one record, `(1,)`.

        Raises:
            MixesRecords: There are several records.
        """
        if len(targets) != 1:
            raise MixesRecords(
                "the model computes one loss of several records: write grad_sample_mode='vmap'"
            )
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs.loss
        only: Tensor = loss.reshape(1)
        return only


class WithFullMask(nn.Module):
    """A model of transformers, given its attention mask in a form that `vmap` follows.

        >>> model = WithFullMask(AutoModelForCausalLM.from_pretrained(...), causal=True)

    Models of transformers read values of a mask of two dimensions, which `vmap` can't follow. They
    use a mask of four dimensions as it is. Arrays have the names of the wrapped model, after
    `model.`.
    """

    def __init__(self, model: nn.Module, *, causal: bool) -> None:
        """Wrap a model.

        Args:
            model: A model that takes `attention_mask` by name.
            causal: Whether each position sees itself and earlier ones alone, as in a decoder.
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
