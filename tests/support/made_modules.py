"""Modules of a test's own forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Made(nn.Module):
    """A model of a few parts and a forward pass of its own."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._forward(self, x)
        return out


class Shifts(nn.Linear):
    """A layer that writes into what it gets."""

    def forward(self, records: Tensor) -> Tensor:
        records += 1.0
        logits: Tensor = super().forward(records)
        return logits
