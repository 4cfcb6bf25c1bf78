"""Layers of images of many models: grouped, or convolutions as products. The device decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import grouped_layers, product_layers


@dataclass(frozen=True, kw_only=True)
class ImageLayers:
    """Functions that stand in for PyTorch's under `torch.vmap`, over the models.

    Attributes:
        functions: PyTorch's own, and what takes its place.
        dim: Where the models' dimension of images is fastest.
    """

    functions: Mapping[Callable[..., Any], Callable[..., Any]]
    dim: int

    def laid_out(self, images: Tensor) -> Tensor:
        """Images `(units, rows, C, H, W)`, with the models at `dim`."""
        return grouped_layers.side_by_side(images) if self.dim else images


GROUPED = ImageLayers(functions=grouped_layers.FUNCTIONS, dim=1)
PRODUCTS = ImageLayers(functions=product_layers.FUNCTIONS, dim=0)


def image_layers(device: torch.device) -> ImageLayers:
    """The quicker way on a device.

    On a CPU a product takes 1.6 to 3.6 times as long, for the small CNN and a narrow ResNet of 4
    and 16 clients. CUDA's grouped kernels are slow; `benchmarks/gpu.py` compares both ways there.
    """
    return PRODUCTS if device.type == "cuda" else GROUPED
