"""Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 images of 28x28 in ten classes."""

from __future__ import annotations

from fl_dp.tasks.datasets.data import Dataset
from fl_dp.tasks.datasets.idx_files import load_idx

# Of the training pixels after division by 255; public constants, so they cost no privacy.
_MEAN, _STD = 0.2860, 0.3530


def load_fashion_mnist(data_dir: str | None = None) -> Dataset:
    """Load Fashion-MNIST with its published split; see `load_idx`."""
    return load_idx(
        "fashion_mnist", data_dir, hub="zalandoresearch/fashion_mnist", mean=_MEAN, std=_STD
    )
