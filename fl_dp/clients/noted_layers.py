"""Layers that note what their weight's gradients of records are made of, below `vmap`.

A record's gradient of such a weight is a sum of outer products: of a layer's input and of its
output's gradient, position by position. Where records go through a model each as a batch of one,
under one `vmap`, all records' rows of a layer are one tensor beneath it. There the layer runs as
an ordinary kernel. Its backward pass notes both factors, and computes no gradient of the weight.

A weight that is used in any other way has an ordinary gradient, which says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.nn import functional
from torch.nn.grad import conv2d_input
from torch.overrides import TorchFunctionMode

Note: TypeAlias = "Callable[[str, Use[Any]], None]"
Pair: TypeAlias = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Linear:
    """Without its bias; inputs `(n, ..., in)`.

    Attributes:
        weight: In the dtype in which it is used.
    """

    weight: Tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return `(n, ..., out)`."""
        return functional.linear(inputs, self.weight)

    def to_inputs(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """The inputs' gradient, for the outputs'."""
        return gradient @ self.weight

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
class Conv2d:
    """Without its bias, of one group; inputs `(n, images, channels, height, width)`."""

    weight: Tensor
    stride: Pair
    padding: Pair
    dilation: Pair

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return `(n, images, out, height, width)`."""
        outputs = functional.conv2d(
            inputs.flatten(0, 1), self.weight, None, self.stride, self.padding, self.dilation
        )
        # No view, which a model could not write into outside of `_Noting`.
        shape = (*inputs.shape[:2], *outputs.shape[1:])
        unflattened: Tensor = torch.ops.aten._unsafe_view(outputs, shape)
        return unflattened

    def to_inputs(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """The inputs' gradient, for the outputs'."""
        to_inputs: Tensor = conv2d_input(  # type: ignore[no-untyped-call]  # torch
            inputs.flatten(0, 1).shape,
            self.weight,
            gradient.flatten(0, 1),
            self.stride,
            self.padding,
            self.dilation,
        )
        return to_inputs.view(inputs.shape)

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


@dataclass(frozen=True, eq=False)
class Table:
    """Inputs are numbers of rows, `(n, ...)`; the row `skipped` has no gradient."""

    weight: Tensor
    skipped: int | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return `(n, ..., width)`."""
        outputs: Tensor = functional.embedding(inputs, self.weight)
        return outputs

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


Kind = TypeVar("Kind", Linear | Conv2d, Linear | Conv2d | Table)


@dataclass(frozen=True, eq=False)
class Use(Generic[Kind]):
    """One use of a weight: the factors of all records' gradients, records first."""

    layer: Kind
    inputs: Tensor
    gradient: Tensor


class _Noting(torch.autograd.Function):
    """Runs a layer, and notes its use in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, layer: Any, note: Callable[[Tensor, Tensor], None], token: Tensor, inputs: Tensor
    ) -> Tensor:
        # `token` makes this a part of each backward pass, whatever the inputs require.
        ctx.layer, ctx.note = layer, note
        ctx.save_for_backward(inputs, layer.weight)
        with torch.autocast(inputs.device.type, enabled=False):
            outputs: Tensor = layer(inputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (inputs, _) = gradients, ctx.saved_tensors
        ctx.note(inputs, gradient)
        to_inputs = ctx.layer.to_inputs(inputs, gradient) if ctx.needs_input_grad[3] else None
        return None, None, None, to_inputs


class NotedLayers(TorchFunctionMode):
    """Lets the layers that take some weights note their uses.

    Attributes:
        token: A leaf of the graph, from which each noted layer is reached.
    """

    def __init__(self, weights: Mapping[str, Tensor], note: Note, device: torch.device) -> None:
        """Take over weights, each a plain tensor below `vmap`."""
        super().__init__()
        self._names = {id(weight): name for name, weight in weights.items()}
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
        reads = _LAYERS.get(func)
        if reads is not None and len(args) > 1 and id(args[1]) in self._names:
            made = reads(*args, **kwargs)
            if made is not None and _is_record(args[0]):
                return self._noted(self._names[id(args[1])], *made)
        return func(*args, **kwargs)

    def _noted(self, name: str, layer: Any, inputs: Tensor, bias: Tensor | None) -> Tensor:
        def note(below: Tensor, gradient: Tensor) -> None:
            self._note(name, Use(layer, below.detach(), gradient.detach()))

        def run(rows: Tensor) -> Any:
            return _Noting.apply(layer, note, self.token, rows)  # type: ignore[no-untyped-call]  # torch

        outputs = _below_vmap(run, inputs)
        return outputs if bias is None else outputs + bias.to(outputs.dtype)


def _is_record(value: Any) -> bool:
    """Tell whether a value is one record's, or the same for all, under one `vmap` alone."""
    stack = _functorch.get_interpreter_stack()
    if stack is None or len(stack) != 1:
        return False
    return _functorch.is_batchedtensor(value) or not _functorch.is_functorch_wrapped_tensor(value)


def _below_vmap(run: Callable[[Tensor], Any], inputs: Tensor) -> Tensor:
    """Run on the tensor of all records.

    By hand, as a rule of `vmap` would do it, of which `NoOwnRules` allows none.
    """
    vmap: Any = retrieve_current_functorch_interpreter()
    if _functorch.is_batchedtensor(inputs):
        rows = _functorch.get_unwrapped(inputs).movedim(_functorch.maybe_get_bdim(inputs), 0)
    else:
        rows = inputs.expand(vmap.batch_size(), *inputs.shape)
    with vmap.lower():
        outputs = run(rows)
    return _functorch._add_batch_dim(outputs, 0, vmap.level())


_Read: TypeAlias = tuple[Any, Tensor, Tensor | None]
"""A layer, its inputs, and its bias."""


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Read | None:
    if input.dim() < 2:
        return None
    input, weight = _cast(input, weight)
    return Linear(weight), input, bias


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> _Read | None:
    if groups != 1 or isinstance(padding, str) or input.dim() != 4:
        return None
    input, weight = _cast(input, weight)
    layer = Conv2d(weight, _pair(stride), _pair(padding), _pair(dilation))
    return layer, input, None if bias is None else bias[:, None, None]


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
    return Table(weight.detach(), skipped), input, None


_LAYERS: dict[Any, Callable[..., _Read | None]] = {
    functional.linear: _linear,
    functional.conv2d: _conv2d,
    functional.embedding: _embedding,
}


def _cast(inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both as autocast would give them to the kernel, which runs without it."""
    kind, weight = inputs.device.type, weight.detach()
    if torch.is_autocast_enabled(kind) and inputs.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(kind)
        return inputs.to(dtype), weight.to(dtype)
    return inputs, weight


def _pair(value: Any) -> Pair:
    if isinstance(value, int):
        return value, value
    values = tuple(value)
    return (values[0], values[-1])
