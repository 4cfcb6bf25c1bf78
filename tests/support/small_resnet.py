"""A ResNet-18 of any width, for the library's tests: its own models are of the app."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions beside the identity, or beside one where shapes change."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False),
            nn.GroupNorm(2, channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False),
            nn.GroupNorm(2, channels_out),
        )
        self.beside: nn.Module = nn.Identity()
        if stride > 1:
            self.beside = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.GroupNorm(2, channels_out),
            )
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Any:
        return self.activation(self.body(images) + self.beside(images))


def resnet18(*, width: int, num_classes: int) -> nn.Sequential:
    """For images of three channels."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.GroupNorm(2, width),
        nn.ReLU(),
    ]
    channels = width
    for stage in range(4):
        for number in range(2):
            stride = 2 if stage > 0 and number == 0 else 1
            layers.append(Block(channels, width * 2**stage, stride))
            channels = width * 2**stage
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
    )
