"""MNIST (LeCun et al. 1998): 60,000 + 10,000 handwritten digits of 28x28."""

from __future__ import annotations

from fl_dp.tasks.datasets.data import Dataset
from fl_dp.tasks.datasets.idx_files import load_idx

# Of the training pixels after division by 255; public constants, so they cost no privacy.
_MEAN, _STD = 0.1307, 0.3081


def load_mnist(data_dir: str | None = None) -> Dataset:
    """Load MNIST with its published split; see `load_idx`."""
    return load_idx("mnist", data_dir, hub="ylecun/mnist", mean=_MEAN, std=_STD)
