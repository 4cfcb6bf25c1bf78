"""Kernels that assert their indices, as a GPU's do, and a small model that reads tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import debug_unwrap
from torch.nn import functional

TOKENS, CLASSES = 5, 3


class Assertion(BaseException):
    """Like a GPU's assertion: nothing that catches exceptions survives it."""


def _asserting(kernel: Any, end: Callable[[Tensor], int], ignored: int | None) -> Any:
    def called(first: Tensor, second: Tensor, *args: Any, **options: Any) -> Any:
        # Indices are the one, and what they choose from is the other.
        indices, chosen = (second, first) if first.is_floating_point() else (first, second)
        plain = debug_unwrap(indices)  # below vmap
        named = plain if ignored is None else plain[plain != ignored]
        if named.numel() and (int(named.min()) < 0 or int(named.max()) >= end(chosen)):
            raise Assertion
        return kernel(first, second, *args, **options)

    return called


def assert_as_a_gpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels end a test that gives them an index out of range."""
    for module, name, end, ignored in (
        (torch, "embedding", lambda table: table.shape[0], None),
        (functional, "cross_entropy", lambda logits: logits.shape[1], -100),
    ):
        kernel = getattr(module, name)
        monkeypatch.setattr(module, name, _asserting(kernel, end, ignored))


def reader() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(TOKENS, 4), nn.Flatten(), nn.Linear(8, CLASSES))


def texts(count: int = 6) -> tuple[Tensor, Tensor]:
    return torch.arange(2 * count).view(count, 2) % TOKENS, torch.arange(count) % CLASSES
