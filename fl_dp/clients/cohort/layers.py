"""Layers of many models at once, under `torch.vmap`, by which no model meets another.

**Images** have layers of their own (`image_layers`). **Dropout** takes each model's own coins
(`MaskCoins`). **Indices** of classes and tables are clamped: a kernel would read another model's
table, or stop all work on a GPU. **What mixes** is refused: BatchNorm, and hooks on tensors, which
would see all models.

    >>> with ModelLayers(coins, many):
    ...     logits = torch.vmap(forward, in_dims=(0, many.dim))(parameters, many.laid_out(images))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fl_dp.clients.per_record.class_losses import CLASS_LOSSES
from fl_dp.clients.per_record.vmap_rules import own_rules_of_the_package

from .image_layers import ImageLayers
from .mask_coins import MaskCoins


class ModelLayers(TorchFunctionMode):
    """Runs the layers of one model, or inside `torch.vmap` of many.

    Results equal those of `torch.vmap` except for rounding and coins. Other functions are
    unchanged.

    Attributes:
        coins_asked: Coins that one model's layers asked for, if `coins` is None.
    """

    def __init__(
        self, coins: MaskCoins | None, many: ImageLayers | None = None, *, padding: float = 1.0
    ) -> None:
        """Take the models' coins.

        Args:
            coins: None: nothing drops out, and the coins are counted.
            many: Layers of images inside `torch.vmap`, over the models; None: of one model.
            padding: As for `MaskCoins.mask`, of one model.
        """
        super().__init__()
        self.coins_asked = 0
        self._coins, self._many, self._padding = coins, many is not None, padding
        self._stand_ins = {} if many is None else {**many.functions, **_REFUSED}
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
        if func in self._stand_ins:
            func = self._stand_ins[func]
        elif func in _CLAMPED:
            args, kwargs = _CLAMPED[func](*args, **kwargs)
            func = CLASS_LOSSES.get(func, func) if self._many else func
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


def _batch_norm(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    training = kwargs.get("training", args[4] if len(args) > 4 else False)
    if training:
        raise RuntimeError("BatchNorm mixes the records of a batch: put GroupNorm in its place")
    return functional.batch_norm(x, *args, **kwargs)


def _no_hook(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a hook on a tensor would see all clients: leave it out")


_REFUSED: dict[Callable[..., Any], Callable[..., Any]] = {
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
