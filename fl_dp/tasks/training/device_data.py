"""Training records as tensors on the device that trains, moved there once if there is room.

A simulated client's records are few and its training is short: copying them to a GPU in each
round would take longer than the training. So the whole training set lies on the device, and a
client's records are gathered from it there; a set that is too large stays in the host's memory.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_dp.tasks.datasets import Dataset

_SHARE = 4
"""A quarter of the free memory is for the data; models and activations get the rest."""


class DeviceData:
    """The training part of a data set, for one device.

    Attributes:
        resident: Whether all of it lies on the device.
    """

    def __init__(self, dataset: Dataset, device: torch.device, *, free_memory: int) -> None:
        """Move the set if it fits.

        Args:
            dataset: Whose training part it is.
            device: Where models train.
            free_memory: Bytes that are free there; the set may take a quarter of them. On the CPU
                write 0: there is nothing to be moved.
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
        """Whether all of it lies on the device."""
        return self._resident is not None

    def records(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return features and labels of some rows, as copies of their own on the device.

        Args:
            rows: Row numbers, int64 `(k,)`.

        Returns:
            Float32 `(k, *input_shape)` or int64 tokens, and int64 `(k,)`.
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
            # From pinned memory the copy runs beside the work that is queued before it.
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)


def _bytes(dataset: Dataset) -> int:
    size = 4 if dataset.vocabulary_size is None else 8  # float32, int64 tokens
    return len(dataset.train_y) * (size * math.prod(dataset.input_shape) + 8)
