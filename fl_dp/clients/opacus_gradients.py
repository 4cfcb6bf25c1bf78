"""Opacus' own ways to gradients of records: hooks, and ghost clipping.

They give a gradient for each row that a layer sees. So clipping bounds a record only where, in
every layer, rows are records in the records' order. Choosing them declares that. It is checked on
made-up records (`made_up_records`), and in each pass by the number of rows. Where that differs in
a layer, the pass's records go through `SingleRecords`.

Ghost clipping holds no gradient of a record. Sum and norm use the same float64 products, and the
norm is rounded up by more than their rounding errors. It also saves Opacus' second backward pass.

References:
    Li et al. 2022, "Large Language Models Can Be Strong Differentially Private Learners" (ghost
    clipping, section 4).
    Bu et al. 2023, "Differentially Private Optimization on Large Model at Small Cost" (sums from
    the tensors of one backward pass, algorithm 1).
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

from fl_dp.clients.index_ranges import IndicesInRange

from .clipped_gradients import (
    WIDE,
    Clip,
    clipped_sum,
    mapped,
    outputs_of,
    rounded_up,
    squared_norms,
    weighted,
)
from .coins_of_records import CoinsOfRecords
from .module_template import ModuleTemplate
from .single_records import SingleRecords

logger = logging.getLogger("flwr.fl_dp.client")


class RowsAreNotRecords(ValueError):
    """A layer's rows are not records."""


class HookGradients:
    """Gradients by Opacus' hooks: `Gradients`."""

    def __init__(self, template: ModuleTemplate, loss: nn.Module) -> None:
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
        criterion, coins = copy.deepcopy(self._loss), CoinsOfRecords(len(targets))
        with coins, IndicesInRange(), torch.enable_grad(), warnings.catch_warnings():
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


class _Linear:
    """`y = W a + b`: a record's gradient sums outer products over its positions."""

    def __init__(self, module: nn.Linear, activations: Tensor, backprops: Tensor) -> None:
        self._module = module
        rows = len(backprops)
        self._a = activations.reshape(rows, -1, activations.shape[-1]).to(WIDE)
        self._b = backprops.reshape(rows, -1, backprops.shape[-1]).to(WIDE)

    def squared_norms(self) -> Tensor:
        """Return upper bounds of the squared norms, float64 `(n,)`."""
        a, b = self._a, self._b
        squares = a.new_zeros(len(a))
        lengths = b.norm(dim=-1)
        if self._module.weight.requires_grad:
            terms = lengths * a.norm(dim=-1)
            if a.shape[1] == 1:
                squares = squares + terms.square().sum(1)
            else:
                gram = ((a @ a.mT) * (b @ b.mT)).sum((1, 2))
                squares = squares + rounded_up(gram, terms, a.shape[-1] + b.shape[-1])
        if self._module.bias is not None and self._module.bias.requires_grad:
            squares = squares + rounded_up(b.sum(1).square().sum(-1), lengths, 0)
        return squares

    def weighted(
        self, factors: Tensor, finite: Tensor | None, squares: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with the sum of its scaled gradients."""
        a, b = _selected(self._a, finite), _selected(self._b, finite)
        b = (b * factors[:, None, None]).flatten(0, 1)
        if self._module.weight.requires_grad:
            yield self._module.weight, b.T @ a.flatten(0, 1)
        if self._module.bias is not None and self._module.bias.requires_grad:
            yield self._module.bias, b.sum(0)


class _Embedding:
    """A table from which each position of a record takes a row."""

    def __init__(self, module: nn.Embedding, tokens: Tensor, backprops: Tensor) -> None:
        self._module = module
        rows = len(tokens)
        self._tokens = tokens.reshape(rows, -1)
        self._b = backprops.reshape(rows, -1, backprops.shape[-1]).to(WIDE)
        if module.padding_idx is not None:
            self._b = self._b.masked_fill((self._tokens == module.padding_idx)[..., None], 0.0)

    def squared_norms(self) -> Tensor:
        """Return upper bounds of the squared norms, float64 `(n,)`."""
        rows, positions = self._tokens.shape
        record = torch.arange(rows, device=self._tokens.device).repeat_interleave(positions)
        pairs = record * self._module.num_embeddings + self._tokens.flatten()
        distinct, index = torch.unique(pairs, return_inverse=True)
        sums = self._b.new_zeros((len(distinct), self._b.shape[-1]))
        sums.index_add_(0, index, self._b.flatten(0, 1))
        squares = self._b.new_zeros(rows)
        squares.index_add_(0, distinct // self._module.num_embeddings, sums.square().sum(1))
        return rounded_up(squares, self._b.norm(dim=-1), 0)

    def weighted(
        self, factors: Tensor, finite: Tensor | None, squares: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the table with the sum of its scaled gradients."""
        tokens, b = _selected(self._tokens, finite), _selected(self._b, finite)
        total = torch.zeros_like(self._module.weight, dtype=WIDE)
        total.index_add_(0, tokens.flatten(), (b * factors[:, None, None]).flatten(0, 1))
        yield self._module.weight, total


def _selected(tensor: Tensor, rows: Tensor | None) -> Tensor:
    return tensor if rows is None else tensor[rows]


def _layer(
    module: nn.Module, passes: Sequence[tuple[Any, Tensor]]
) -> _AnyLayer | _Linear | _Embedding:
    activations, backprops = passes[0]
    if len(passes) == 1 and type(module) is nn.Embedding:
        return _Embedding(module, activations[0], backprops)
    if len(passes) == 1 and type(module) is nn.Linear:
        positions = backprops[0, ..., 0].numel() if len(backprops) else 1
        # A longer sequence has more pairs of positions than the gradient has entries.
        if positions**2 <= module.weight.numel() or positions == 1:
            return _Linear(module, activations[0], backprops)
    return _AnyLayer(module, passes)
