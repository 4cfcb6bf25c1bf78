"""Labels and tokens out of range, refused before a kernel sees them.

On a CPU such an index raises, and costs its record. A CUDA kernel asserts instead: the process
learns of it later, and all later calls to the GPU fail. One record would end the training of all
others, and so show its presence.

Under `torch.vmap` a kernel can read another record's table for such a token, on a CPU too. So
`IndicesInRange` checks the tensors below `vmap`, which hold all records.

Not seen: indices that a model or loss of one's own uses in other ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_IGNORED = -100  # torch's own, where a loss has no other


def require_labels(labels: Tensor, classes: int, *, ignored: int | None = _IGNORED) -> None:
    """Check that labels are classes.

    Args:
        labels: Integers of any shape, on any device. Floating-point labels are not checked.
        classes: Number of classes.
        ignored: A label that stands for no class; None: there is none.

    Raises:
        IndexError: A label is out of range.
    """
    if labels.is_floating_point():
        return
    labels = debug_unwrap(labels)
    if ignored is not None and not 0 <= ignored < classes:
        labels = labels[labels != ignored]
    _require_below(classes, labels, "label", "classes")


def require_targets(criterion: nn.Module, outputs: Any, targets: Tensor) -> None:
    """Check what torch's losses would assert on a GPU.

    Only torch's own losses are checked. Outputs are `(n, classes, ...)` where targets are labels,
    targets `(n, ...)`.

    Raises:
        IndexError: A label is no class.
        ValueError: A value is no probability where one is needed.
    """
    if not isinstance(outputs, Tensor):
        return
    if isinstance(criterion, nn.BCELoss):
        values = debug_unwrap(outputs)
        if not bool(((values >= 0.0) & (values <= 1.0)).all()):
            raise ValueError(
                "BCELoss takes probabilities, and the model's outputs are not in [0, 1]: end the "
                "model in a sigmoid, or use BCEWithLogitsLoss"
            )
        return
    labels = not targets.is_floating_point() and outputs.ndim == targets.ndim + 1
    if isinstance(criterion, _OF_CLASSES) and labels:
        ignored: Any = getattr(criterion, "ignore_index", None)
        require_labels(targets, outputs.shape[1], ignored=ignored)


class IndicesInRange(TorchFunctionMode):
    """Lets lookups in tables raise an `IndexError` for rows out of range."""

    def check(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Check a call before it is made.

        Raises:
            IndexError: It looks up a row out of range.
        """
        if func in _LOOKUPS and len(args) > 1:
            tokens, table = args[:2]
            if not isinstance(tokens, Tensor) or tokens.is_floating_point():
                tokens, table = table, tokens  # torch.embedding names the table first
            _require_below(table.shape[0], tokens, "token", "rows of the table")

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch, if its check passes."""
        kwargs = kwargs or {}
        self.check(func, args, kwargs)
        return func(*args, **kwargs)


_LOOKUPS = {
    functional.embedding,
    functional.embedding_bag,
    torch.embedding,
    torch.embedding_bag,
}


def _require_below(end: int, indices: Tensor, noun: str, range_name: str) -> None:
    indices = debug_unwrap(indices)
    if not indices.numel():
        return
    lowest, highest = torch.stack(torch.aminmax(indices)).tolist()  # one wait for the GPU
    if lowest < 0 or highest >= end:
        wrong = lowest if lowest < 0 else highest
        raise IndexError(f"a {noun} is {wrong}, and there are {end} {range_name}, counted from 0")
