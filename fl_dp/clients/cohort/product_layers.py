"""Convolutions of many models, each as one product: a strided copy and one `bmm`.

What the kernel meets at each position is copied into a row, and each model's rows are multiplied by
its weights. Tensors stay `(units, rows, ...)`, with channels last in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fl_dp.clients.per_record.vmap_rules import own_rules_of_the_package

_Pair = tuple[int, int]


class _Steps(NamedTuple):
    """How a kernel moves over an image: pairs of height and width."""

    stride: _Pair
    padding: _Pair
    dilation: _Pair


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """`functional.conv2d` under `torch.vmap`, as one product of all models.

    Groups of a model's own, padding of one side and single images go PyTorch's own way.
    """
    steps = _steps(weight, stride, padding, dilation)
    if x.dim() != 4 or groups != 1 or steps is None:
        return functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
    apply: Callable[..., Tensor] = _ProductTogether.apply
    with own_rules_of_the_package():
        y = apply(steps, x, weight)
    return y if bias is None else y + bias[:, None, None]


def _steps(weight: Tensor, stride: Any, padding: Any, dilation: Any) -> _Steps | None:
    """The options as pairs; None where "same" pads one side more than the other, or is wrong."""
    stride, dilation = _pair(stride), _pair(dilation)
    if padding == "same":
        both = [one * (size - 1) for one, size in zip(dilation, weight.shape[2:], strict=True)]
        if any(one % 2 for one in both) or stride != (1, 1):
            return None
        padding = [one // 2 for one in both]
    return _Steps(stride, _pair(0 if padding == "valid" else padding), dilation)


def _pair(value: Any) -> _Pair:
    if isinstance(value, int):
        return value, value
    first, *others = value
    return first, others[0] if others else first


class _ProductTogether(torch.autograd.Function):
    """Leaves `torch.vmap`, where all models are one tensor."""

    @staticmethod
    def forward(steps: _Steps, x: Tensor, weight: Tensor) -> Tensor:
        return functional.conv2d(x, weight, None, *steps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], steps: _Steps, x: Tensor, weight: Tensor
    ) -> tuple[Tensor, int]:
        x, weight = (
            one.expand(info.batch_size, *one.shape) if dim is None else one.movedim(dim, 0)
            for one, dim in ((x, in_dims[1]), (weight, in_dims[2]))
        )
        product: Callable[..., Tensor] = _Product.apply
        return product(x, weight, steps), 0


class _Product(torch.autograd.Function):
    """A product of `x` (units, rows, C, H, W) and `weight` (units, out, C, k, l)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, steps: _Steps) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.steps = steps
        padded = _padded(x, steps.padding, steps.padding)
        return _multiplied(padded, weight, steps.stride, steps.dilation)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        stride, padding, dilation = ctx.steps
        to_x = to_weight = None
        if ctx.needs_input_grad[1]:
            rows = gradient.permute(0, 1, 3, 4, 2).flatten(1, 3)  # (units, positions, out)
            patches = _patches(_padded(x, padding, padding), weight.shape[3:], stride, dilation)
            units, out, channels, *kernel = weight.shape
            to_weight = torch.bmm(rows.transpose(1, 2), patches)
            to_weight = to_weight.view(units, out, *kernel, channels).permute(0, 1, 4, 2, 3)
        if ctx.needs_input_grad[0]:
            to_x = _spread(gradient, x.shape[3:], weight, ctx.steps)
        return to_x, to_weight, None


def _spread(gradient: Tensor, size: Sequence[int], weight: Tensor, steps: _Steps) -> Tensor:
    """The gradient of `x`: a convolution of the outputs' by the turned kernel."""
    stride, padding, dilation = steps
    if stride != (1, 1):
        sizes = [(n - 1) * step + 1 for n, step in zip(gradient.shape[3:], stride, strict=True)]
        units, rows, out = gradient.shape[:3]
        wide = gradient.new_zeros(units, rows, *sizes, out).permute(0, 1, 4, 2, 3)
        wide[..., :: stride[0], :: stride[1]] = gradient
        gradient = wide
    reach = [one * (n - 1) for one, n in zip(dilation, weight.shape[3:], strict=True)]
    before = [one - pad for one, pad in zip(reach, padding, strict=True)]
    after = [
        n - have + span - left
        for n, have, span, left in zip(size, gradient.shape[3:], reach, before, strict=True)
    ]
    turned = weight.flip(3, 4).transpose(1, 2)
    return _multiplied(_padded(gradient, before, after), turned, (1, 1), dilation)


def _multiplied(padded: Tensor, weight: Tensor, stride: _Pair, dilation: _Pair) -> Tensor:
    """A convolution without padding of channels last `(units, rows, H, W, C)`."""
    kernel = weight.shape[3:]
    patches = _patches(padded, kernel, stride, dilation)
    y = torch.bmm(patches, weight.permute(0, 3, 4, 2, 1).flatten(1, 3))
    units, rows = padded.shape[:2]
    sizes = _positions(padded.shape[2:4], kernel, stride, dilation)
    return y.view(units, rows, *sizes, -1).permute(0, 1, 4, 2, 3)


def _padded(x: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Pad images, or cut them, and put channels last in memory, too."""
    x = x.permute(0, 1, 3, 4, 2)
    if any((*before, *after)):
        x = functional.pad(x, (0, 0, before[1], after[1], before[0], after[0]))
    return x.contiguous()


def _patches(padded: Tensor, kernel: Sequence[int], stride: _Pair, dilation: _Pair) -> Tensor:
    """What the kernel meets at each position, `(units, rows * positions, k * l * C)`: one copy."""
    units, rows, *size, channels = padded.shape
    high, wide = _positions(size, kernel, stride, dilation)
    *outer, down, right, of_channel = padded.stride()
    windows = padded.as_strided(
        (units, rows, high, wide, *kernel, channels),
        (
            *(*outer, down * stride[0], right * stride[1]),
            *(down * dilation[0], right * dilation[1], of_channel),
        ),
    )
    return windows.reshape(units, rows * high * wide, math.prod(kernel) * channels)


def _positions(
    size: Sequence[int], kernel: Sequence[int], stride: _Pair, dilation: _Pair
) -> tuple[int, int]:
    high, wide = (
        (whole - one * (n - 1) - 1) // step + 1
        for whole, n, step, one in zip(size, kernel, stride, dilation, strict=True)
    )
    return high, wide


def _group_norm(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    # `torch.vmap` can't tell the memory order of channels last, for which this function asks.
    return functional.group_norm(x.contiguous(), *args, **kwargs)


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.conv2d: _conv2d,
    functional.group_norm: _group_norm,
}
