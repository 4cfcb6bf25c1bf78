"""What a computation launches and waits for, counted without a GPU.

Views and the making of empty tensors launch nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FREE = (
    *("view", "_unsafe_view", "detach", "expand", "t.", "transpose", "permute", "slice", "select"),
    *("alias", "unsqueeze", "squeeze", "as_strided", "split", "unbind", "empty", "lift", "unfold."),
)
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal.", "is_nonzero", "unique")


class Launched(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts operators, those for which a host waits, and entries of the largest result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.operators = self.waits = self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = str(func).removeprefix("aten.")
        self.operators += not name.startswith(FREE)
        masks = args[1] if name.startswith("index.Tensor") else ()
        by_mask = any(mask is not None and mask.dtype == torch.bool for mask in masks)
        self.waits += name.startswith(WAITS) or by_mask
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            results = result if isinstance(result, tuple | list) else (result,)
            sizes = (part.numel() for part in results if isinstance(part, Tensor))
            self.largest = max([self.largest, *sizes])
        return result
