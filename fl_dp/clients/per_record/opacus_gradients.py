"""Opacus' own ways to gradients of records: hooks, and ghost clipping.

They give a gradient for each row that a layer sees. So clipping bounds a record only where, in
every layer, rows are records in the records' order. Choosing them declares that. It is checked on
made-up records (`made_up_records`), and in each pass by the number of rows. Where that differs in
a layer, the pass's records go through `SingleRecords`.

Ghost clipping holds no gradient of a record, and saves Opacus' second backward pass
(`noted_gradients`).
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from torch import Tensor, nn

from .clipped_gradients import (
    WIDE,
    Clip,
    clipped_sum,
    mapped,
    outputs_of,
    squared_norms,
    squares_rounded_up,
    weighted,
)
from .module_template import ModuleTemplate
from .noted_gradients import Factors
from .noted_layers import EmbeddingTable, LayerUse, Linear
from .record_loss import LossOfEach
from .single_records import SingleRecords
from .watched_pass import WatchedPass

logger = logging.getLogger("flwr.fl_dp.client")


class RowsAreNotRecords(ValueError):
    """A layer's rows are not records."""


class HookGradients:
    """Gradients by Opacus' hooks: `Gradients`."""

    def __init__(self, template: ModuleTemplate, loss: LossOfEach) -> None:
        """Take a model; `loss` maps outputs and targets to each record's loss, `(n,)`.

        Raises:
            NotImplementedError: Opacus can't train the model.
        """
        self._template, self._loss = template, loss
        self._singly = SingleRecords(template, loss)
        self._wrapped(0).remove_hooks()  # Opacus refuses here a model that it can't train

    @property
    def held(self) -> Collection[str]:
        """See `Gradients.held`."""
        return self._template.parameters

    def clipped_sums(self, inputs: Any, targets: Tensor, clip: Clip) -> Sequence[Tensor | None]:
        """See `Gradients.clipped_sums`."""
        try:
            return self.sums_of_rows(inputs, targets, clip)
        except RowsAreNotRecords as error:
            logger.error("%s: these records are trained on one by one", error)
            return self._singly.clipped_sums(inputs, targets, clip)

    def sums_of_rows(self, inputs: Any, targets: Tensor, clip: Clip) -> list[Tensor | None]:
        """Return the same, or raise where rows are not records.

        Raises:
            RowsAreNotRecords: A layer sees another number of rows.
            Exception: Any error of model and loss at these records.
        """
        wrapped = self._wrapped(len(targets))
        try:
            self._pass_back(wrapped, inputs, targets)
            named = dict(wrapped._module.named_parameters())
            return self._summed(wrapped, [named[name] for name in self._template.parameters], clip)
        finally:
            # The hooks hold the wrapper, which holds them: all records' gradients would wait for
            # Python's collector, pass after pass.
            wrapped.remove_hooks()

    def _pass_back(self, wrapped: _RecordRows, inputs: Any, targets: Tensor) -> None:
        # Copies, as a forward pass may write into them.
        inputs, targets = mapped(Tensor.clone, (inputs, targets))
        criterion, watch = copy.deepcopy(self._loss), WatchedPass(len(targets))
        with watch, torch.enable_grad(), warnings.catch_warnings():
            # PyTorch warns in every round of Opacus' hooks.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            losses = criterion(outputs_of(wrapped, inputs), targets)
            # The sum of losses, as a mean would round twice: dividing, and multiplying later.
            losses.sum().backward()

    def _wrapped(self, records: int) -> _RecordRows:
        return _RecordRows(self._template.copy(), records)

    def _summed(
        self, wrapped: _RecordRows, parameters: Sequence[nn.Parameter], clip: Clip
    ) -> list[Tensor | None]:
        return clipped_sum([wrapped.gradients(parameter) for parameter in parameters], clip)


class GhostGradients(HookGradients):
    """The same, holding the gradients of all records for at most one layer.

    `Linear` and `Embedding` never need a record's gradient; other layers compute it twice.
    """

    held = ()

    def _wrapped(self, records: int) -> _RecordedRows:
        return _RecordedRows(self._template.copy(), records)

    def _summed(
        self, wrapped: _RecordRows, parameters: Sequence[nn.Parameter], clip: Clip
    ) -> list[Tensor | None]:
        assert isinstance(wrapped, _RecordedRows)  # `_wrapped` made it
        layers = [_layer(module, passes) for module, passes in wrapped.passes.items()]
        if not layers:
            return [None] * len(parameters)
        squares = [layer.squared_norms() for layer in layers]
        factors, finite = clip(torch.stack(squares).sum(0))
        sums: dict[int, Tensor] = {}
        for layer, norms in zip(layers, squares, strict=True):
            for parameter, total in layer.weighted(factors, finite, norms):
                if id(parameter) in sums:
                    raise RowsAreNotRecords(
                        "two layers share a parameter, for which ghost clipping has no rule"
                    )
                sums[id(parameter)] = total
        return [sums.get(id(parameter)) for parameter in parameters]


class _RecordRows(GradSampleModule):  # type: ignore[misc]  # Opacus has no types
    """Opacus' wrapper; it refuses a layer whose rows are not as many as the records."""

    def __init__(self, module: nn.Module, records: int) -> None:
        super().__init__(module, loss_reduction="sum")
        self._records = records

    def capture_activations_hook(
        self, module: nn.Module, forward_input: Any, forward_output: Any
    ) -> None:
        """Store a layer's input.

        Raises:
            RowsAreNotRecords: It has another number of rows.
        """
        for tensor in (*forward_input, forward_output):
            self._require_rows(module, tensor)
        super().capture_activations_hook(module, forward_input, forward_output)

    def gradients(self, parameter: nn.Parameter) -> Tensor | None:
        """Each record's gradient, `(n, ...)`; None if the parameter took no part."""
        sample: Any = getattr(parameter, "grad_sample", None)
        gradients: Tensor | None = torch.cat(sample) if isinstance(sample, list) else sample
        if gradients is not None:
            self._require_rows(self._module, gradients)
        return gradients

    def _require_rows(self, module: nn.Module, tensor: Any) -> None:
        if not isinstance(tensor, Tensor) or tensor.shape[:1] == (self._records,):
            return
        names = [name for name, layer in self._module.named_modules() if layer is module]
        raise RowsAreNotRecords(
            f"layer '{names[0]}' ({type(module).__name__}) sees a tensor of shape "
            f"{tuple(tensor.shape)} where there are {self._records} records"
        )


class _RecordedRows(_RecordRows):
    """Stores each layer's inputs and backward tensors, instead of computing gradients."""

    def __init__(self, module: nn.Module, records: int) -> None:
        super().__init__(module, records)
        self.passes: dict[nn.Module, list[tuple[Any, Tensor]]] = {}

    def capture_backprops_hook(
        self,
        module: nn.Module,
        _forward_input: Any,
        forward_output: Any,
        loss_reduction: str,
        batch_first: bool,
    ) -> None:
        """Store one pass of one layer."""
        if not self.hooks_enabled:
            return
        activations, backprops = self.rearrange_grad_samples(
            module=module,
            backprops=forward_output[0].detach(),
            loss_reduction=loss_reduction,
            batch_first=batch_first,
        )
        self.passes.setdefault(module, []).append((activations, backprops))


@dataclass(eq=False)
class _AnyLayer:
    """A layer whose records' gradients are computed twice: for the norms, then for the sum."""

    _module: Any
    _passes: Sequence[tuple[Any, Tensor]]

    def squared_norms(self) -> Tensor:
        """Each record's squared gradient norm, float64 `(n,)`."""
        return torch.stack([squared_norms(sample) for sample in self._samples().values()]).sum(0)

    def weighted(
        self, factors: Tensor, finite: Tensor | None, squares: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with the sum of its scaled gradients."""
        samples = self._samples()
        # Kernels that are not deterministic may give a longer gradient than the one measured.
        now = torch.stack([squared_norms(sample) for sample in samples.values()]).sum(0)
        shorter = torch.nan_to_num((squares / now).sqrt(), nan=1.0).clamp(max=1.0)
        factors = factors * _selected(shorter, finite)
        for parameter, sample in samples.items():
            yield parameter, weighted(sample, factors, finite)

    def _samples(self) -> dict[Tensor, Tensor]:
        module = self._module
        sampler = GradSampleModule.GRAD_SAMPLERS.get(type(module), ft_compute_per_sample_gradient)
        samples: dict[Tensor, Tensor] = {}
        for activations, backprops in self._passes:
            for parameter, sample in sampler(module, activations, backprops).items():
                if not parameter.requires_grad:
                    continue
                if parameter in samples:
                    sample = samples[parameter] + sample
                samples[parameter] = sample
        return samples


class _Noted:
    """A layer of one pass whose weight's gradient `Factors` computes, and a bias."""

    def __init__(self, module: nn.Linear | nn.Embedding, inputs: Tensor, backprops: Tensor) -> None:
        self._module = module
        layer: Linear | EmbeddingTable
        self._bias: nn.Parameter | None = None
        if isinstance(module, nn.Linear):
            layer = Linear(module.weight.detach())
            if module.bias is not None and module.bias.requires_grad:
                self._bias = module.bias
                self._b = backprops.reshape(len(backprops), -1, backprops.shape[-1]).to(WIDE)
        else:
            layer = EmbeddingTable(module.weight.detach(), module.padding_idx)
        self._factors = Factors([LayerUse(layer, inputs, backprops)])

    def squared_norms(self) -> Tensor:
        """Return upper bounds of the squared norms, float64 `(n,)`."""
        squares = torch.zeros((), dtype=WIDE)
        if self._module.weight.requires_grad:
            squares = self._factors.squared_norms()
        if self._bias is not None:
            b = self._b
            squares = squares.to(b.device) + squares_rounded_up(
                b.sum(1).square().sum(-1), b.norm(dim=-1), 0
            )
        return squares

    def weighted(
        self, factors: Tensor, finite: Tensor | None, squares: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with the sum of its scaled gradients."""
        if self._module.weight.requires_grad:
            yield self._module.weight, self._factors.weighted(factors, finite)
        if self._bias is not None:
            yield self._bias, factors @ _selected(self._b, finite).sum(1)


def _selected(tensor: Tensor, rows: Tensor | None) -> Tensor:
    return tensor if rows is None else tensor[rows]


def _layer(module: nn.Module, passes: Sequence[tuple[Any, Tensor]]) -> _AnyLayer | _Noted:
    activations, backprops = passes[0]
    if len(passes) == 1 and type(module) is nn.Embedding:
        return _Noted(module, activations[0], backprops)
    if len(passes) == 1 and type(module) is nn.Linear:
        positions = backprops[0, ..., 0].numel() if len(backprops) else 1
        # A longer sequence has more pairs of positions than the gradient has entries.
        if positions**2 <= module.weight.numel() or positions == 1:
            return _Noted(module, activations[0], backprops)
    return _AnyLayer(module, passes)
