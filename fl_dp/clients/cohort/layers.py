"""Layers of many models at once, under `torch.vmap`, by which no model meets another.

**Channels side by side.** `torch.vmap` moves the models into a pooling layer's batch and separates
a convolution from its bias. Both copy whole activations, and lose channels last, the memory order
in which these layers are fast. Here the models' channels stay side by side and nothing is copied: a
convolution of all models is one grouped convolution.

**Dropout** takes each model's own coins (`MaskCoins`). **Indices** of classes and tables are
clamped: a kernel would read another model's table, or stop all work on a GPU. **What mixes** is
refused: BatchNorm, and hooks on tensors, which would see all models.

    >>> with ModelLayers(coins, model_numbers):
    ...     logits = torch.vmap(forward, in_dims=(0, 1))(parameters, side_by_side(images))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fl_dp.clients.per_record.vmap_rules import own_rules_of_the_package

from .mask_coins import MaskCoins


class ModelLayers(TorchFunctionMode):
    """Runs the layers of one model, or inside `torch.vmap` of many.

    Results equal those of `torch.vmap` except for rounding and coins. Other functions are
    unchanged.

    Attributes:
        coins_asked: Coins that one model's layers asked for, if `coins` is None.
    """

    def __init__(self, coins: MaskCoins | None, *, many: bool, padding: float = 1.0) -> None:
        """Take the models' coins.

        Args:
            coins: None: nothing drops out, and the coins are counted.
            many: Whether this is inside `torch.vmap`, over the models.
            padding: As for `MaskCoins.mask`, of one model.
        """
        super().__init__()
        self.coins_asked = 0
        self._coins, self._many, self._padding = coins, many, padding
        #: A number for each model, batched by `torch.vmap`: so every mask is a model's own.
        self.number: Tensor | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch."""
        kwargs = kwargs or {}
        if self._many and func in _LAYERS:
            func = _LAYERS[func]
        elif func in _CLAMPED:
            args, kwargs = _CLAMPED[func](*args, **kwargs)
        elif func in _DROPOUTS:
            return self._dropout(_DROPOUTS[func], *args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(
        self, dims: int, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Drop out entries (`dims` 0), or channels of `(n, C, ...)` with `dims` dimensions."""
        x = input  # as torch names it
        if not training or p == 0.0:
            return x
        if dims and x.dim() != dims:
            raise RuntimeError(f"dropout of channels of {x.dim()} dimensions, not {dims}")
        shape = (*x.shape[:2], *[1] * (dims - 2)) if dims else tuple(x.shape)
        if self._coins is None:
            self.coins_asked += torch.Size(shape).numel()
        if not self._many:
            assert self._coins is not None  # only under vmap they are counted
            return x * self._coins.mask(shape, p, x.dtype, padding=self._padding)
        apply: Callable[..., Tensor] = _DroppedOut.apply
        with own_rules_of_the_package():
            return apply(self._coins, shape, p, x, self.number)


class _DroppedOut(torch.autograd.Function):
    """`x` times the mask of each model, below `torch.vmap`, where all models are one tensor."""

    @staticmethod
    def forward(
        coins: MaskCoins | None, shape: tuple[int, ...], p: float, x: Tensor, number: Tensor
    ) -> Tensor:
        raise RuntimeError("dropout of many models outside of vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        coins: MaskCoins | None,
        shape: tuple[int, ...],
        p: float,
        x: Tensor,
        number: Tensor,
    ) -> tuple[Tensor, int]:
        if in_dims[4] is None or torch._C._functorch.is_functorch_wrapped_tensor(x):
            raise RuntimeError("dropout inside a vmap of the model's own")
        units, dim = info.batch_size, in_dims[3]
        if dim is None:
            x, dim = x.expand(units, *x.shape), 0
        if coins is None:
            return x.clone(), dim
        return x * coins.masks(units, shape, p, x.dtype).movedim(0, dim), dim


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


def _batch_norm(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    training = kwargs.get("training", args[4] if len(args) > 4 else False)
    if training:
        raise RuntimeError("BatchNorm mixes the records of a batch: put GroupNorm in its place")
    return functional.batch_norm(x, *args, **kwargs)


def _no_hook(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a hook on a tensor would see all clients: leave it out")


_LAYERS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.conv2d: _conv2d,
    functional.max_pool2d: _max_pool2d,
    functional.group_norm: _group_norm,
    functional.batch_norm: _batch_norm,
    Tensor.register_hook: _no_hook,
    Tensor.register_post_accumulate_grad_hook: _no_hook,
}


def _of_classes(
    outputs: Tensor, target: Tensor, *args: Any, **kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not target.is_floating_point():
        ignored = kwargs.get("ignore_index", args[2] if len(args) > 2 else -100)
        classes = outputs.shape[0 if outputs.dim() == 1 else 1]
        target = torch.where(target == ignored, target, target.clamp(0, classes - 1))
    return (outputs, target, *args), kwargs


def _of_tokens(
    tokens: Tensor, table: Tensor, *args: Any, **kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if tokens.is_floating_point():  # torch.embedding names the table first
        return (tokens, table.clamp(0, tokens.shape[0] - 1), *args), kwargs
    return (tokens.clamp(0, table.shape[0] - 1), table, *args), kwargs


_CLAMPED: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.cross_entropy: _of_classes,
    functional.nll_loss: _of_classes,
    functional.embedding: _of_tokens,
    functional.embedding_bag: _of_tokens,
    torch.embedding: _of_tokens,
}

_DROPOUTS: dict[Callable[..., Any], int] = {
    functional.dropout: 0,
    functional.dropout1d: 3,
    functional.dropout2d: 4,
    functional.dropout3d: 5,
}
"""Functions that drop out, and the dimensions of their input; 0: any, each entry for itself."""
