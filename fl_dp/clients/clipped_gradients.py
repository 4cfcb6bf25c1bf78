"""Sums of clipped gradients of single records, whose sensitivity rounding can't raise.

Opacus computes gradients of single records in the model's numbers. What DP-SGD needs of them is a
sum that moves by at most the clipping norm when one record is left out. In float32 it can move
further: norms of ten million parameters come out 0.8 % short, sums in half precision lose whole
gradients, and of a sequence whose terms cancel nothing is left but rounding errors. So here

- a gradient is what Opacus computed, taken as exact; its norm, its clip factor and the sum are
  float64;
- under ghost clipping, where no gradient of a record is held, the sum is made of the float64
  products that the norm was computed of, and the norm is rounded up by more than their rounding
  errors. This also saves Opacus' second backward pass.

A record whose gradient is not finite has none.

References:
    Li et al. 2022, "Large Language Models Can Be Strong Differentially Private Learners" (ghost
    clipping, section 4).
    Bu et al. 2023, "Differentially Private Optimization on Large Model at Small Cost" (sums from
    the tensors of one backward pass, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from torch import Tensor, nn

from fl_dp.tasks.models.index_ranges import tables_of, tokens_in_range

_WIDE = torch.float64
_ENTRIES = 1 << 22  # of float64 at a time
_ENTRIES_IN_CACHE = 1 << 16
_BLOCK = 64
_OF_BLOCKS = 1.0 + 2.0**-18
"""Bounds what float32 can lose of the squares of a block of entries: (64 + 1) 2^-24."""
_JUST_BELOW_ONE = 1.0 - 2.0**-40  # more than the rounding errors of norms and factors
_EPSILON = 2.0**-52
_CANCELLATION = 1e-10
"""Share of the squared sum of a record's terms that a squared ghost norm is rounded up by."""


class MixesRecords(ValueError):
    """A loss is not of one record alone, so that clipping would not bound a record's influence."""


class ClippedGradients:
    """Adds up the clipped gradients of records, batch after batch.

    Privacy: `totals` move by at most `clipping_norm` (L2 over all of them, to a relative 1e-6) when
    one record is left out, as long as the gradient that Opacus computes for each of the others
    stays the same. A kernel that rounds differently for batches of other sizes is not covered.

    Attributes:
        totals: Of each parameter, float64 of its shape, on its device; filled by `add`.
        records: Those whose gradient is in them: finite, be it zero.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        *,
        clipping_norm: float,
        functorch: bool = False,
    ) -> None:
        """Put Opacus' hooks on a model; `close` takes them away.

        Args:
            model: In training mode, with at least one parameter that is not frozen.
            criterion: Gives each record's loss, `(n,)`.
            clipping_norm: L2 bound on the gradient of one record.
            functorch: Compute all gradients by functorch.

        Raises:
            ValueError: If the model lies on a device that has no float64.
            NotImplementedError: If Opacus can't train it.
        """
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._criterion = criterion
        self._norm = clipping_norm
        self.records = self._found = 0
        try:
            self.totals = [torch.zeros_like(each, dtype=_WIDE) for each in self._parameters]
        except TypeError as error:
            raise ValueError(
                f"norms are computed in float64, which {self._parameters[0].device} does not have: "
                "train on the CPU or on CUDA"
            ) from error
        # The sum of losses, not their mean: dividing by the batch and multiplying again rounds.
        self._wrapped = self._hooked(model, loss_reduction="sum", force_functorch=functorch)
        self._tables = tables_of(model)

    def add(self, inputs: Any, targets: Tensor) -> None:
        """Add the clipped gradients of a batch; if it raises, nothing of it was added.

        Args:
            inputs: A tensor, a tuple of them, or a mapping of keyword arguments; records first.
            targets: Records first.

        Raises:
            Exception: Whatever model and loss raise at these records.
        """
        self._found = 0
        try:
            with tokens_in_range(self._tables):
                outputs = _forward(self._wrapped, inputs)
            self._criterion(outputs, targets).sum().backward()
            added = self._clipped()
        finally:
            self._forget_pass()
        for total, part in zip(self.totals, added, strict=True):
            if part is not None:
                total += part.reshape(total.shape)
        self.records += self._found

    def start_again(self) -> None:
        """Set the sum to zero."""
        self.records = 0
        torch._foreach_zero_(self.totals)

    def close(self) -> None:
        """Give the model back as it was before."""
        self._wrapped.to_standard_module()

    def _hooked(self, model: nn.Module, **options: Any) -> Any:
        return GradSampleModule(model, **options)

    def _clipped(self) -> list[Tensor | None]:
        """Return what the last pass adds to each total."""
        samples = [_gradients(each) for each in self._parameters]
        squares = [_squared_norms(each) for each in samples if each is not None]
        if not squares:
            return [None] * len(samples)
        factors, kept = self._factors(torch.stack(squares).sum(0))
        return [None if each is None else _weighted(each, factors, kept) for each in samples]

    def _factors(self, squares: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what scales each gradient, `(k,)`, and which of `n` have one; None: all have."""
        norms = squares.sqrt()
        finite = torch.isfinite(norms)
        kept = None if bool(finite.all()) else finite.nonzero().flatten()
        norms = norms if kept is None else norms[kept]
        self._found = len(norms)
        return (self._norm / norms).clamp(max=1.0) * _JUST_BELOW_ONE, kept

    def _forget_pass(self) -> None:
        """Take away what hooks kept of a pass, also of one that did not end."""
        for module in self._wrapped.modules():
            if hasattr(module, "activations"):
                module.activations.clear()
            if hasattr(module, "max_batch_len"):
                del module.max_batch_len
        for each in self._parameters:
            each.grad = None
            each.grad_sample = None  # type: ignore[attr-defined]  # Opacus' own
            each._forward_counter = 0  # type: ignore[attr-defined]  # Opacus' own
            if hasattr(each, "_current_grad_sample"):
                del each._current_grad_sample


class GhostGradients(ClippedGradients):
    """The same without ever holding the gradients of all records for more than one layer.

    `Linear` and `Embedding` never need the gradient of a record; other layers compute it twice.
    """

    def _hooked(self, model: nn.Module, **options: Any) -> Any:
        return _Recorded(model, **options)

    def _clipped(self) -> list[Tensor | None]:
        layers = [_layer(*each) for each in self._wrapped.passes.items()]
        if not layers:
            return [None] * len(self._parameters)
        squares = [layer.squared_norms() for layer in layers]
        factors, kept = self._factors(torch.stack(squares).sum(0))
        added: dict[int, Tensor] = {}
        for layer, norms in zip(layers, squares, strict=True):
            for parameter, total in layer.weighted(factors, kept, norms):
                added[id(parameter)] = total
        return [added.get(id(each)) for each in self._parameters]

    def _forget_pass(self) -> None:
        super()._forget_pass()
        self._wrapped.passes.clear()


class _Recorded(GradSampleModule):  # type: ignore[misc]  # Opacus has no types
    """Keeps what went into and came back to each layer, instead of computing gradients."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self.passes: dict[nn.Module, list[tuple[Any, Tensor, int]]] = {}

    def capture_backprops_hook(
        self,
        module: nn.Module,
        _forward_input: Any,
        forward_output: Any,
        loss_reduction: str,
        batch_first: bool,
    ) -> None:
        """Keep one pass of one layer."""
        if not self.hooks_enabled:
            return
        activations, backprops = self.rearrange_grad_samples(
            module=module,
            backprops=forward_output[0].detach(),
            loss_reduction=loss_reduction,
            batch_first=batch_first,
        )
        length: Any = module.max_batch_len
        self.passes.setdefault(module, []).append((activations, backprops, length))


class _AnyLayer:
    """A layer whose gradients of single records are computed, once for norms, once for the sum."""

    def __init__(self, module: Any, passes: Sequence[tuple[Any, Tensor, int]]) -> None:
        self._module = module
        self._passes = passes

    def squared_norms(self) -> Tensor:
        """Return the squared norm of each record's gradient, float64 `(n,)`."""
        return torch.stack([_squared_norms(each) for each in self._samples().values()]).sum(0)

    def weighted(
        self, factors: Tensor, kept: Tensor | None, squares: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with the sum of its scaled gradients."""
        samples = self._samples()
        # Kernels that are not deterministic may give a longer gradient than the one measured.
        now = torch.stack([_squared_norms(each) for each in samples.values()]).sum(0)
        shorter = torch.nan_to_num((squares / now).sqrt(), nan=1.0).clamp(max=1.0)
        factors = factors * (shorter if kept is None else shorter[kept])
        for parameter, each in samples.items():
            yield parameter, _weighted(each, factors, kept)

    def _samples(self) -> dict[Tensor, Tensor]:
        module = self._module
        sampler = GradSampleModule.GRAD_SAMPLERS.get(type(module), ft_compute_per_sample_gradient)
        rows = max(length for _, _, length in self._passes)
        samples: dict[Tensor, Tensor] = {}
        for activations, backprops, _ in self._passes:
            for parameter, sample in sampler(module, activations, backprops).items():
                if not parameter.requires_grad:
                    continue
                if len(sample) < rows:  # of packed sequences: the shorter ones have ended
                    missing = sample.new_zeros((rows - len(sample), *sample.shape[1:]))
                    sample = torch.cat([sample, missing])
                before = samples.get(parameter)
                samples[parameter] = sample if before is None else before + sample
        return samples


class _Linear:
    """`y = W a + b`: the gradient of a record is a sum of outer products over its positions."""

    def __init__(self, module: nn.Linear, activations: Tensor, backprops: Tensor) -> None:
        self._module = module
        rows = len(backprops)
        self._a = activations.reshape(rows, -1, activations.shape[-1]).to(_WIDE)
        self._b = backprops.reshape(rows, -1, backprops.shape[-1]).to(_WIDE)

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
                squares = squares + _rounded_up(gram, terms, a.shape[-1] + b.shape[-1])
        if self._module.bias is not None and self._module.bias.requires_grad:
            squares = squares + _rounded_up(b.sum(1).square().sum(-1), lengths, 0)
        return squares

    def weighted(
        self, factors: Tensor, kept: Tensor | None, squares: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with the sum of its scaled gradients."""
        a, b = (each if kept is None else each[kept] for each in (self._a, self._b))
        b = (b * factors[:, None, None]).flatten(0, 1)
        if self._module.weight.requires_grad:
            yield self._module.weight, b.T @ a.flatten(0, 1)
        if self._module.bias is not None and self._module.bias.requires_grad:
            yield self._module.bias, b.sum(0)


class _Embedding:
    """A table of which each position of a record takes a row."""

    def __init__(self, module: nn.Embedding, tokens: Tensor, backprops: Tensor) -> None:
        self._module = module
        rows = len(tokens)
        self._tokens = tokens.reshape(rows, -1)
        self._b = backprops.reshape(rows, -1, backprops.shape[-1]).to(_WIDE)
        if module.padding_idx is not None:
            self._b = self._b.masked_fill((self._tokens == module.padding_idx)[..., None], 0.0)

    def squared_norms(self) -> Tensor:
        """Return upper bounds of the squared norms, float64 `(n,)`."""
        rows, positions = self._tokens.shape
        record = torch.arange(rows, device=self._tokens.device).repeat_interleave(positions)
        pairs = record * self._module.num_embeddings + self._tokens.flatten()
        found, place = torch.unique(pairs, return_inverse=True)
        sums = self._b.new_zeros((len(found), self._b.shape[-1]))
        sums.index_add_(0, place, self._b.flatten(0, 1))
        squares = self._b.new_zeros(rows)
        squares.index_add_(0, found // self._module.num_embeddings, sums.square().sum(1))
        return _rounded_up(squares, self._b.norm(dim=-1), 0)

    def weighted(
        self, factors: Tensor, kept: Tensor | None, squares: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the table with the sum of its scaled gradients."""
        tokens, b = (each if kept is None else each[kept] for each in (self._tokens, self._b))
        total = torch.zeros_like(self._module.weight, dtype=_WIDE)
        total.index_add_(0, tokens.flatten(), (b * factors[:, None, None]).flatten(0, 1))
        yield self._module.weight, total


def _layer(
    module: nn.Module, passes: Sequence[tuple[Any, Tensor, int]]
) -> _AnyLayer | _Linear | _Embedding:
    activations, backprops, _ = passes[0]
    if len(passes) == 1 and type(module) is nn.Embedding:
        return _Embedding(module, activations[0], backprops)
    if len(passes) == 1 and type(module) is nn.Linear:
        positions = backprops[0, ..., 0].numel() if len(backprops) else 1
        # A longer sequence has more pairs of positions than the gradient has entries.
        if positions**2 <= module.weight.numel() or positions == 1:
            return _Linear(module, activations[0], backprops)
    return _AnyLayer(module, passes)


def _rounded_up(squares: Tensor, terms: Tensor, width: int) -> Tensor:
    """Return squared norms that are not too short for what rounding may add to a sum of `terms`.

    Float64 keeps each norm to sqrt(width * 2^-52) of the sum of its terms' lengths. The part that
    is added is larger; it also bounds the sum of scaled terms by 1e5 clipping norms, so that the
    rounding errors of adding them up stay below 1e-6 of one.

    Args:
        squares: Computed squared norms, `(n,)`.
        terms: Lengths of the terms, `(n, positions)`.
        width: How many products each inner product sums.
    """
    share = _CANCELLATION + (width + terms.shape[1] ** 2) * _EPSILON
    return squares.clamp(min=0.0) + share * terms.sum(1).square()


def _gradients(parameter: nn.Parameter) -> Tensor | None:
    """Return the gradient of each record, `(n, ...)`; None if the parameter took no part."""
    sample: Any = getattr(parameter, "grad_sample", None)
    return torch.cat(sample) if isinstance(sample, list) else sample


def _squared_norms(samples: Tensor) -> Tensor:
    """Return squared norms, float64 `(n,)`: never too short, and 2^-18 too long at most."""
    flat = samples.reshape(len(samples), -1)
    if flat.dtype != torch.float32:
        norms = [torch.linalg.vector_norm(part, dim=1, dtype=_WIDE) for part in _parts(flat)]
        return torch.stack(norms).square().sum(0)
    # Norms of a few entries at a time lose little, and float64 copies of all would cost more.
    blocks = flat.shape[1] // _BLOCK
    even = flat[:, : blocks * _BLOCK].reshape(len(flat), blocks, _BLOCK)
    rest = flat[:, blocks * _BLOCK :]
    squares: Tensor = torch.linalg.vector_norm(even, dim=2).to(_WIDE).square().sum(1)
    squares = squares + torch.linalg.vector_norm(rest, dim=1).to(_WIDE).square()
    return squares * _OF_BLOCKS


def _weighted(samples: Tensor, factors: Tensor, kept: Tensor | None) -> Tensor:
    """Return the float64 sum of scaled gradients, those of `kept` records."""
    flat = samples.reshape(len(samples), -1)
    flat = flat if kept is None else flat[kept]
    return torch.cat([factors @ part.to(_WIDE) for part in _parts(flat)]).view(samples.shape[1:])


def _parts(flat: Tensor) -> tuple[Tensor, ...]:
    """Return columns a few at a time, so that their float64 copies stay small."""
    entries = _ENTRIES_IN_CACHE if flat.device.type == "cpu" else _ENTRIES
    return torch.split(flat, max(1, entries // max(1, len(flat))), dim=1)


def _forward(model: Any, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
