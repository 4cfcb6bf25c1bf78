"""Training records as tensors on the device that trains, moved there once if there is room.

A simulated client trains briefly: copying its few records to a GPU each round would take longer.
So the whole training set is on the device, and a client's records are gathered there. A set that
is too large stays in the host's memory.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_dp.tasks.datasets import Dataset

_SHARE = 4  # a quarter of the free memory is for the data, the rest for models and activations


class DeviceData:
    """The training part of a data set, for one device."""

    def __init__(self, dataset: Dataset, device: torch.device, *, free_memory: int) -> None:
        """Move the training part of a set to the device if it fits.

        It may take a quarter of `free_memory`, the device's free bytes; 0 on the CPU, where
        nothing is moved.
        """
        self._dataset = dataset
        self._device = device
        self._resident: tuple[Tensor, Tensor] | None = None
        if _bytes(dataset) <= free_memory // _SHARE:
            everything = slice(None)
            self._resident = (
                torch.from_numpy(dataset.features(everything)).to(device),
                torch.from_numpy(dataset.labels(everything)).to(device),
            )

    @property
    def resident(self) -> bool:
        """Whether all of it is on the device."""
        return self._resident is not None

    def records(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Features and labels of some rows, int64 `(k,)`, copied on the device.

        Features are float32 `(k, *input_shape)` or int64 tokens. Labels are `(k,)`, int64, or
        float32 for numbers.
        """
        if self._resident is not None:
            chosen = torch.from_numpy(np.require(rows, np.int64, ["C", "W"])).to(self._device)
            features, labels = self._resident
            return features[chosen], labels[chosen]
        return (
            self._moved(torch.from_numpy(self._dataset.features(rows))),
            self._moved(torch.from_numpy(self._dataset.labels(rows))),
        )

    def _moved(self, tensor: Tensor) -> Tensor:
        if self._device.type == "cuda":
            # From pinned memory the copy runs beside work that is queued before it.
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)


def _bytes(dataset: Dataset) -> int:
    size = 4 if dataset.vocabulary_size is None else 8  # float32, int64 tokens
    return len(dataset.train_y) * (size * math.prod(dataset.input_shape) + 8)
