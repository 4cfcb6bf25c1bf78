"""How far a left-out record moves a sum of clipped gradients, and small records for that."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fl_dp.clients.per_record.clipped_gradients import ClippedGradients, Gradients
from fl_dp.clients.per_record.module_template import ModuleTemplate

T, WORDS, CLASSES, WIDTH = 4, 50, 5, 8
VECTORS, IDS, IMAGES = "vectors", "ids", "images"


def head(width: int = WIDTH) -> nn.Linear:
    return nn.Linear(width, CLASSES)


def data(kind: str, count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    if kind == IDS:
        return torch.randint(0, WORDS, (count, T), generator=generator), labels
    shape = (T,) if kind == VECTORS else (3, 4, 4)
    return torch.randn(count, *shape, generator=generator), labels


Summed = Callable[[Tensor, Tensor], Tensor]


def summed_by(template: ModuleTemplate, way: Gradients, norm: float) -> Summed:
    def summed(x: Tensor, y: Tensor) -> Tensor:
        total = ClippedGradients(template, way, clipping_norm=norm, at_once=None)
        total.add(x, y)
        assert total.records == len(y)
        return torch.cat([each.flatten() for each in total.totals])

    return summed


def largest_move(summed: Summed, x: Tensor, y: Tensor, norm: float) -> float:
    """Return how far the first, the middle or the last record moves a sum, in clipping norms."""
    whole = summed(x, y)
    others = [torch.arange(len(y)) != out for out in {0, len(y) // 2, len(y) - 1}]
    return max(float((whole - summed(x[rows], y[rows])).norm()) / norm for rows in others)
