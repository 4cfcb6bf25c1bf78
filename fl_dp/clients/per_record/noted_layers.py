"""Layers that note what their weight's gradients of records are made of, below `vmap`.

A record's gradient of such a weight is a sum of outer products: of a layer's input and of its
output's gradient, position by position. Where records go through a model each as a batch of one,
under one `vmap`, all records' rows of a layer are one tensor beneath it. There the layer runs as
an ordinary kernel, its bias included. Its backward pass notes both factors, and each record's
gradient of the bias; it computes no gradient of the weight.

A weight that is used in any other way has an ordinary gradient, which says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch._C import DisableTorchFunction, _functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.nn import functional

from .class_losses import CLASS_LOSSES
from .clipped_gradients import summed_in
from .noted_norms import GroupNorm, read_group_norm, read_layer_norm
from .recurrent_steps import RECURRENT, stepwise
from .watched_pass import WatchedPass

Note: TypeAlias = "Callable[[str, LayerUse[Any] | Tensor], None]"
"""Takes a parameter's name, and a use of it or each record's gradient."""
_LARGE = 128  # pixels of an image


class _WithBias(ABC):
    """A layer whose weight's gradients of records are made of products, and with a bias."""

    bias: Tensor | None = None

    def noted(self, inputs: Tensor, gradient: Tensor) -> tuple[LayerUse[Any], Tensor | None]:
        """Its use, and each record's gradient of the bias, for the outputs'."""
        return LayerUse(self, inputs, gradient), None if self.bias is None else self.of_bias(
            gradient
        )

    @abstractmethod
    def of_bias(self, gradient: Tensor) -> Tensor:
        """Each record's gradient of the bias, `(n, out)`, for the outputs'."""


@dataclass(frozen=True, eq=False)
class Linear(_WithBias):
    """Inputs `(n, ..., in)`.

    Attributes:
        weight: In the dtype in which it is used.
        bias: The same; None: it has none, or that is added elsewhere.
    """

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, inputs: Tensor) -> tuple[Tensor]:
        """Return `(n, ..., out)`."""
        return (functional.linear(inputs, self.weight, self.bias),)

    def to_inputs(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """The inputs' gradient, for the outputs'."""
        return gradient @ self.weight

    def of_bias(self, gradient: Tensor) -> Tensor:
        """Each record's gradient of the bias, `(n, out)`, for the outputs'."""
        if gradient[0].numel() == gradient.shape[-1]:
            return gradient.reshape(len(gradient), -1)
        return gradient.flatten(1, -2).sum(1, dtype=summed_in(gradient))

    def positions(self, inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Both factors, `(n, positions, in)` and `(n, positions, out)`."""
        return (
            inputs.reshape(len(inputs), -1, inputs.shape[-1]),
            gradient.reshape(len(gradient), -1, gradient.shape[-1]),
        )

    def arranged(self, total: Tensor) -> Tensor:
        """A sum over positions, `(..., out, in)`, in the shape of its weight."""
        return total


@dataclass(frozen=True, eq=False)
class Convolution(_WithBias):
    """In two or three dimensions; inputs `(n, images, channels, ...)`. See `Linear`."""

    weight: Tensor
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    bias: Tensor | None = None

    @property
    def has_positions(self) -> bool:
        """Whether `positions` can be taken."""
        return self.groups == 1 and self.weight.ndim == 4

    def goes_by_groups(self, gradient: Tensor) -> bool:
        """Whether `samples` is needed, or quicker than products of positions, as measured."""
        if not self.has_positions:
            return True
        is_line = self.weight.shape[3] > self.weight.shape[2] == 1
        return gradient.device.type == "cpu" and (is_line or gradient.shape[-2:].numel() >= _LARGE)

    def __call__(self, inputs: Tensor) -> tuple[Tensor]:
        """Return `(n, images, out, ...)`."""
        kernel = functional.conv2d if self.weight.ndim == 4 else functional.conv3d
        outputs = kernel(
            inputs.flatten(0, 1),
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )
        # No view, which a model could not write into outside of `_Noting`.
        shape = (*inputs.shape[:2], *outputs.shape[1:])
        return (torch.ops.aten._unsafe_view(outputs, shape),)

    def to_inputs(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """The inputs' gradient, for the outputs'."""
        flat = inputs.flatten(0, 1)
        return self._backward(flat, gradient.flatten(0, 1), of_weight=False).view(inputs.shape)

    def of_bias(self, gradient: Tensor) -> Tensor:
        """Each record's gradient of the bias, `(n, out)`, for the outputs'."""
        return gradient.flatten(3).sum((1, 3), dtype=summed_in(gradient))

    def samples(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """Each record's gradient, `(n, *weight.shape)`."""
        of_one = partial(self._backward, of_weight=True)
        samples: Tensor = torch.vmap(of_one)(inputs, gradient)
        return samples

    def positions(self, inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Both factors; an input is a patch in the order (row, column, channel).

        So runs of several columns' channels are copied at once, and not of single columns.
        """
        (down, right), (top, left), (apart, aside) = self.stride, self.padding, self.dilation
        images, gradient = inputs.flatten(0, 1).permute(0, 2, 3, 1), gradient.flatten(0, 1)
        images = functional.pad(images, (0, 0, left, left, top, top)).contiguous()
        count, channels, (high, wide) = len(images), images.shape[3], gradient.shape[2:]
        by_image, by_row, by_column, by_channel = images.stride()
        patches = images.as_strided(
            (count, high, wide, *self.weight.shape[2:], channels),
            (
                by_image,
                by_row * down,
                by_column * right,
                by_row * apart,
                by_column * aside,
                by_channel,
            ),
        )
        return (
            patches.reshape(len(inputs), -1, self.weight[0].numel()),
            gradient.permute(0, 2, 3, 1).reshape(len(inputs), -1, len(self.weight)),
        )

    def arranged(self, total: Tensor) -> Tensor:
        """A sum over positions, `(..., out, in)`, in the shape of its weight."""
        _, channels, *window = self.weight.shape
        return total.reshape(*total.shape[:-1], *window, channels).movedim(-1, -3)

    def _backward(self, inputs: Tensor, gradient: Tensor, *, of_weight: bool) -> Tensor:
        gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
            gradient,
            inputs,
            self.weight.to(inputs.dtype),
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * len(self.stride),
            self.groups,
            (not of_weight, of_weight, False),
        )
        return gradients[of_weight]


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """Inputs are numbers of rows, `(n, ...)`; the row `skipped` has no gradient."""

    weight: Tensor
    skipped: int | None = None

    def noted(self, inputs: Tensor, gradient: Tensor) -> tuple[LayerUse[Any], None]:
        """Its use, for the outputs' gradient; it has no bias."""
        return LayerUse(self, inputs, gradient), None

    def __call__(self, inputs: Tensor) -> tuple[Tensor]:
        """Return `(n, ..., width)`."""
        return (functional.embedding(inputs, self.weight),)

    def to_inputs(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """Numbers of rows have none.

        Raises:
            TypeError: Always.
        """
        raise TypeError("numbers of rows have no gradient")

    def rows(self, inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Both factors: rows `(n, positions)`, and what is added there, `(n, positions, width)`."""
        rows = inputs.reshape(len(inputs), -1)
        added = gradient.reshape(len(gradient), -1, gradient.shape[-1])
        if self.skipped is not None:
            added = added.masked_fill((rows == self.skipped)[..., None], 0.0)
        return rows, added


Kind = TypeVar("Kind", Linear | Convolution, Linear | Convolution | EmbeddingTable)


@dataclass(frozen=True, eq=False)
class LayerUse(Generic[Kind]):
    """One use of a weight: the factors of all records' gradients, records first."""

    layer: Kind
    inputs: Tensor
    gradient: Tensor


class _Noting(torch.autograd.Function):
    """Runs a layer, and notes its use in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, layer: Any, note: Callable[..., None], token: Tensor, inputs: Tensor
    ) -> Tensor:
        # `token` makes this a part of each backward pass, whatever the inputs require.
        ctx.layer, ctx.note = layer, note
        with torch.autocast(inputs.device.type, enabled=False):
            outputs: Tensor
            outputs, *kept = layer(inputs)
        ctx.save_for_backward(inputs, layer.weight, *kept)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (inputs, _, *kept) = gradients, ctx.saved_tensors
        with DisableTorchFunction():  # of the model no function runs here
            inputs, gradient = inputs.detach(), gradient.detach()
            ctx.note(*ctx.layer.noted(inputs, gradient, *kept))
            to_inputs = None
            if ctx.needs_input_grad[3]:
                to_inputs = ctx.layer.to_inputs(inputs, gradient, *kept)
        return None, None, None, to_inputs


class NotedLayers(WatchedPass):
    """Lets the layers that take some parameters note their uses, in a pass of records.

    Attributes:
        token: A leaf of the graph, from which each noted layer is reached.
    """

    def __init__(
        self, records: int, parameters: Mapping[str, Tensor], note: Note, device: torch.device
    ) -> None:
        """Prepare a pass, and take over parameters, each a plain tensor below `vmap`."""
        super().__init__(records)
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._note = note
        self.token = torch.zeros((), device=device, requires_grad=True)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch."""
        kwargs = kwargs or {}
        self.check(func, args, kwargs)
        if func in _LAYERS:
            position, read = _LAYERS[func]
            weight: Any = args[position] if len(args) > position else kwargs.get("weight")
            if args and id(weight) in self._names and _is_record(args[0]):
                made = read(*args, **kwargs)
                if made is not None:
                    return self._noted(func, weight, *made)
        if func in CLASS_LOSSES and args and _is_record(args[0]):
            return CLASS_LOSSES[func](*args, **kwargs)
        if func in RECURRENT and isinstance(args[2], list) and _is_record(args[0]):
            with self:  # which is left in here, and would miss the layers inside
                return stepwise(func, *args)
        out = kwargs.get("out")
        if isinstance(out, Tensor) and _is_record(out):  # for which no function has a rule of vmap
            return out.copy_(func(*args, **{**kwargs, "out": None}))
        if func is functional.scaled_dot_product_attention and args and _is_record(args[0]):
            # Fused kernels have no rule of vmap, and would run once for each record.
            return _attention_below_vmap(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            with self:
                return _multi_head_attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _noted(
        self, func: Any, weight: Tensor, layer: Any, inputs: Tensor, bias: Tensor | None
    ) -> Tensor:
        name, of_bias = self._names[id(weight)], self._names.get(id(bias))
        if bias is not None and of_bias is not None:
            layer = replace(layer, bias=bias.detach().to(layer.weight.dtype))

        def note(use: LayerUse[Any] | Tensor, bias: Tensor | None) -> None:
            self._note(name, use)
            if bias is not None and of_bias is not None:
                self._note(of_bias, bias)

        def run(rows: Tensor) -> Any:
            return _Noting.apply(layer, note, self.token, rows)  # type: ignore[no-untyped-call]  # torch

        outputs = _below_vmap(run, inputs)
        if func is functional.conv1d:
            outputs = outputs.squeeze(-2)
        if bias is None or of_bias is not None:
            return outputs
        dims = outputs.ndim - 2 if isinstance(layer, Convolution | GroupNorm) else 0
        return outputs + bias.view(*bias.shape, *[1] * dims).to(outputs.dtype)


_multi_head_attention = FunctionType(
    functional.multi_head_attention_forward.__code__,
    vars(functional) | {"has_torch_function": lambda _: False},
    argdefs=functional.multi_head_attention_forward.__defaults__,
)
"""PyTorch's own function, which does not ask modes once more when one of them has called it."""


def _is_record(value: Any) -> bool:
    """Tell whether a value is one record's, or the same for all, under one `vmap` alone."""
    stack = _functorch.get_interpreter_stack()
    if stack is None or len(stack) != 1:
        return False
    return _functorch.is_batchedtensor(value) or not _functorch.is_functorch_wrapped_tensor(value)


def _below_vmap(run: Callable[..., Any], *inputs: Any) -> Tensor:
    """Run on tensors of all records, records first; what is no tensor stays as it is.

    By hand, as a rule of `vmap` would do it, of which `NoOwnRules` allows none.
    """
    vmap: Any = retrieve_current_functorch_interpreter()

    def rows_of(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if _functorch.is_batchedtensor(value):
            return _functorch.get_unwrapped(value).movedim(_functorch.maybe_get_bdim(value), 0)
        return value.expand(vmap.batch_size(), *value.shape)

    rows = [rows_of(value) for value in inputs]
    with vmap.lower(), DisableTorchFunction():  # modes have seen the call already
        outputs = run(*rows)
    return _functorch._add_batch_dim(outputs, 0, vmap.level())


def _attention_below_vmap(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *more: Any,
    **by_name: Any,
) -> Tensor:
    """Attention of all records in one kernel, in which each is a batch of its own."""

    def run(*rows: Any) -> Tensor:
        # Masks have as many dimensions as queries, which fused kernels take with one batch alone.
        flat: list[Any] = [
            row if row is None else row.flatten(0, max(0, row.ndim - 4)) for row in rows
        ]
        outputs = functional.scaled_dot_product_attention(*flat, *more, **by_name)
        return outputs.view(*rows[0].shape[:-1], rows[2].shape[-1])

    if attn_mask is not None:  # one of fewer dimensions is for all
        attn_mask = attn_mask.expand(*query.shape[:-2], *attn_mask.shape[-2:])
    return _below_vmap(run, query, key, value, attn_mask)


_Read: TypeAlias = tuple[Any, Tensor, Tensor | None]
"""A layer, its inputs, and its bias."""


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Read | None:
    if input.dim() < 2:
        return None
    input, weight = _cast(input, weight)
    return Linear(weight), input, bias


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> _Read | None:
    dims = weight.ndim - 2
    if isinstance(padding, str):
        spans = [0] * dims
        if padding == "same":
            steps = _each(dilation, dims)
            spans = [step * (size - 1) for step, size in zip(steps, weight.shape[2:], strict=True)]
        padding = [span // 2 for span in spans]
        if any(span % 2 for span in spans):
            return None  # more on one side than on the other
    if input.ndim != weight.ndim:
        return None
    input, weight = _cast(input, weight)
    stride, padding, dilation = (_each(value, dims) for value in (stride, padding, dilation))
    if dims == 1:  # as images of one row
        input, weight = input.unsqueeze(2), weight.unsqueeze(2)
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    return Convolution(weight, stride, padding, dilation, groups), input, bias


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> _Read | None:
    if max_norm is not None or scale_grad_by_freq or sparse or input.is_floating_point():
        return None
    skipped = None if padding_idx is None else padding_idx % len(weight)
    return EmbeddingTable(weight.detach(), skipped), input, None


_LAYERS: dict[Any, tuple[int, Callable[..., _Read | None]]] = {
    functional.linear: (1, _linear),
    functional.conv1d: (1, _convolution),
    functional.conv2d: (1, _convolution),
    functional.conv3d: (1, _convolution),
    functional.embedding: (1, _embedding),
    functional.layer_norm: (2, read_layer_norm),
    functional.group_norm: (2, read_group_norm),
}
"""Of each function the position of its weight, and what reads a call."""


def _cast(inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both as autocast would give them to the kernel, which runs without it."""
    kind, weight = inputs.device.type, weight.detach()
    if torch.is_autocast_enabled(kind) and inputs.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(kind)
        return inputs.to(dtype), weight.to(dtype)
    return inputs, weight


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values
