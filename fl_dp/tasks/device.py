"""Device of this process on which models train and records are encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is loaded where something is built or trained
    import torch


def training_device() -> torch.device:
    """CUDA's first GPU if torch sees one, otherwise the CPU.

    A simulation's worker without a share of a GPU sees none.
    """
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
