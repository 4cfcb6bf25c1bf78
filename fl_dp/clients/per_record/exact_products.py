"""Products of ours in their tensors' own precision, whatever an app chose for its model's.

Autocast would round factors to half precision. TensorFloat-32, and what
`torch.set_float32_matmul_precision` allows on a CPU, round those of float32 products.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from .process_wide import ProcessWide


def exact_products(device: torch.device) -> AbstractContextManager[object]:
    """A block whose products are exact up to their tensors' own rounding."""
    block = ExitStack()
    block.enter_context(torch.autocast(device.type, enabled=False))
    block.enter_context(_OwnPrecision())
    return block


class _OwnPrecision(ProcessWide):
    @staticmethod
    def change() -> Callable[[], None]:
        backends: Any = torch.backends
        parts: list[Any] = []
        values: list[str] = []
        if hasattr(backends, "fp32_precision"):  # since PyTorch 2.9
            parts = [backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul]
            parts += [backends.mkldnn.conv, backends.mkldnn.matmul]
            values = [part.fp32_precision for part in parts]
            # The older settings can't be read where an app has set a part of them.
            of_products = {"tf32": "high", "bf16": "medium"}.get(values[-1], "highest")
            of_convolutions = values[0] == "tf32"
        else:
            of_products = torch.get_float32_matmul_precision()
            of_convolutions = backends.cudnn.allow_tf32
        # The older settings, too, as PyTorch refuses to run where they contradict the newer ones.
        torch.set_float32_matmul_precision("highest")
        backends.cudnn.allow_tf32 = False
        for part in parts:
            if part.fp32_precision != "none":
                part.fp32_precision = "ieee"

        def put_back() -> None:
            torch.set_float32_matmul_precision(of_products)
            backends.cudnn.allow_tf32 = of_convolutions
            for part, value in zip(parts, values, strict=True):
                part.fp32_precision = value

        return put_back
