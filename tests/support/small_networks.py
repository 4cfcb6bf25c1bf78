"""A network of all layers that units are trained through in one go."""

from __future__ import annotations

from torch import nn


def network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 1, 3), nn.ReLU(), nn.Conv2d(1, 1, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(4, 2), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(2, 10),
    )
