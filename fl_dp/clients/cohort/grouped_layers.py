"""Layers of images of many models whose channels stand side by side.

`torch.vmap` moves the models into a pooling layer's batch and separates a convolution from its
bias. Both copy whole activations, and lose channels last, the memory order in which these layers
are fast on a CPU. Here nothing is copied: a convolution of all models is one grouped convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fl_dp.clients.per_record.vmap_rules import own_rules_of_the_package


def side_by_side(images: Tensor) -> Tensor:
    """Return images `(units, rows, C, H, W)` as `(rows, units, C, H, W)`, channels last."""
    return images.permute(1, 3, 4, 0, 2).contiguous().permute(0, 3, 4, 1, 2)


class _Together(torch.autograd.Function):
    """Calls a layer once for all models; autograd sees only that call."""

    @staticmethod
    def forward(call: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        return call(1, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        call: Callable[..., Tensor],
        x: Tensor,
        *parameters: Tensor | None,
    ) -> tuple[Tensor, int]:
        units = info.batch_size
        merged: list[Tensor | None] = [_merged(x, in_dims[1], units, 1)]
        for parameter, dim in zip(parameters, in_dims[2:], strict=True):
            merged.append(None if parameter is None else _merged(parameter, dim, units, 0))
        return torch.unflatten(call(units, *merged), 1, (units, -1)), 1


def _merged(tensor: Tensor, dim: int | None, units: int, channels: int) -> Tensor:
    """Merge the units' dimension, if there is one, into that of the channels."""
    if dim is None:
        sizes = list(tensor.shape)
        sizes.insert(channels, units)
        tensor, dim = tensor.unsqueeze(channels).expand(sizes), channels
    return tensor.movedim(dim, channels).flatten(channels, channels + 1)


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    def call(units: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.conv2d(x, weight, bias, stride, padding, dilation, units * groups)

    return _with_units(call, x, weight, bias)


def _max_pool2d(x: Tensor, *args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
    if return_indices:
        return functional.max_pool2d(x, *args, return_indices=True, **kwargs)

    def call(units: int, x: Tensor) -> Tensor:
        pooled: Tensor = functional.max_pool2d(x, *args, **kwargs)
        return pooled

    return _with_units(call, x)


def _group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    def call(units: int, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return functional.group_norm(x, units * num_groups, weight, bias, eps)

    return _with_units(call, x, weight, bias)


def _with_units(call: Callable[..., Tensor], x: Tensor, *parameters: Tensor | None) -> Tensor:
    if x.dim() != 4:  # one image without a batch, or no image
        return call(1, x, *parameters)
    apply: Callable[..., Tensor] = _Together.apply
    with own_rules_of_the_package():
        return apply(call, x, *parameters)


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.conv2d: _conv2d,
    functional.max_pool2d: _max_pool2d,
    functional.group_norm: _group_norm,
}
