"""Cross-entropy of classes in operators that have rules of `vmap`.

PyTorch's own rule is Python code that loads SymPy, and runs for half a millisecond at each use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    scores, dim = input, min(input.ndim - 1, 1)
    of_classes = scores.shape[:dim] + scores.shape[dim + 1 :] == target.shape
    is_plain = weight is None and size_average is None and reduce is None
    if not (of_classes and is_plain and target.dtype == torch.int64 and reduction in _REDUCTIONS):
        return functional.nll_loss(
            scores, target, weight, size_average, ignore_index, reduce, reduction
        )
    is_ignored = target == ignore_index
    index = target.masked_fill(is_ignored, 0).unsqueeze(dim)
    losses = (-scores.gather(dim, index).squeeze(dim)).masked_fill(is_ignored, 0.0)
    return _REDUCTIONS[reduction](losses, is_ignored)


_REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda losses, _: losses,
    "sum": lambda losses, _: losses.sum(),
    "mean": lambda losses, is_ignored: losses.sum() / (~is_ignored).sum(),
}


def _cross_entropy(input: Tensor, target: Tensor, *more: Any, **by_name: Any) -> Tensor:
    options = dict(zip(_OPTIONS, more, strict=False)) | by_name
    if target.is_floating_point() or options.pop("label_smoothing", 0.0):
        return functional.cross_entropy(input, target, *more, **by_name)
    return _nll_loss(input.log_softmax(min(input.ndim - 1, 1)), target, **options)


_OPTIONS = ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")

CLASS_LOSSES: dict[Any, Callable[..., Tensor]] = {
    functional.cross_entropy: _cross_entropy,
    functional.nll_loss: _nll_loss,
}
"""What takes the place of PyTorch's functions under `vmap`; the results are the same."""
