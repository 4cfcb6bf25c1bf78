"""Public data sets, split once into a train and a test part.

    >>> from fl_dp.tasks import load_dataset
    >>> digits = load_dataset("digits")
    >>> digits.features(slice(0, 7)).shape
    (7, 1, 8, 8)

The split is fixed: it does not depend on an experiment's seed, so the accuracies of two runs are
comparable. A set may stay on disk as memory-mapped bytes; only the rows asked for become float32,
so that many simulated clients in many processes share the same pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATASETS = ("digits", "fashion_mnist")


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Images and labels of one data set, channels first.

    Attributes:
        name: The name that `load_dataset` knows it by.
        train_x: `(n, *input_shape)`, float32 ready for a model, or uint8 pixels that `features`
            scales.
        train_y: `(n,)` int64 labels in `0..num_classes - 1`.
        test_x: Like `train_x`, for the held-out part.
        test_y: Like `train_y`, for the held-out part.
        num_classes: Number of labels.
        mean: Mean of the pixels after division by 255; only used for uint8 images.
        std: Standard deviation of the pixels after division by 255; only used for uint8 images.
    """

    name: str
    train_x: NDArray[np.uint8] | NDArray[np.float32]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.uint8] | NDArray[np.float32]
    test_y: NDArray[np.int64]
    num_classes: int
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        """Check that images and labels belong together.

        Raises:
            ValueError: If a part has more images than labels or the reverse, the parts differ in
                image shape, or images are neither uint8 nor float32.
        """
        for split, x, y in (
            ("train", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            if len(x) != len(y):
                raise ValueError(
                    f"{self.name}: {len(x)} {split} images but {len(y)} labels; "
                    "give one label an image"
                )
            if x.dtype not in (np.uint8, np.float32):
                raise ValueError(
                    f"{self.name}: {split} images are {x.dtype}; convert them to uint8 or float32"
                )
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise ValueError(
                f"{self.name}: train images are {self.train_x.shape[1:]} and test images "
                f"{self.test_x.shape[1:]}; bring them to one shape"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example, channels first, e.g. `(1, 8, 8)`."""
        return self.train_x.shape[1:]

    def features(
        self, rows: NDArray[np.int64] | slice, split: str = "train"
    ) -> NDArray[np.float32]:
        """Model inputs of some rows, as a copy of their own.

        Args:
            rows: Row numbers, int64 of shape `(k,)`, or a slice.
            split: "train" or "test".

        Returns:
            Float32 array `(k, *input_shape)`. uint8 pixels come as `(x / 255 - mean) / std`,
            float32 images as they are.

        Raises:
            ValueError: If `split` is neither "train" nor "test".
        """
        images, _ = self._part(split)
        scaled = images[rows].astype(np.float32)
        if images.dtype == np.uint8:
            scaled *= np.float32(1 / (255 * self.std))
            scaled -= np.float32(self.mean / self.std)
        return scaled

    def labels(self, rows: NDArray[np.int64] | slice, split: str = "train") -> NDArray[np.int64]:
        """Labels of some rows, as a copy of their own.

        Args:
            rows: Row numbers, int64 of shape `(k,)`, or a slice.
            split: "train" or "test".

        Returns:
            Int64 array `(k,)`.

        Raises:
            ValueError: If `split` is neither "train" nor "test".
        """
        _, labels = self._part(split)
        return labels[rows].copy()

    def _part(self, split: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
        if split == "train":
            return self.train_x, self.train_y
        if split == "test":
            return self.test_x, self.test_y
        raise ValueError(f"unknown split {split!r}; write 'train' or 'test'")


def load_dataset(name: str, *, data_dir: str | None = None) -> Dataset:
    """Load a data set, once per process.

    Args:
        name: "digits" or "fashion_mnist".
        data_dir: Folder with the set's files; None searches the usual places. Ignored by "digits",
            which ships inside scikit-learn.

    Returns:
        The data set; the same object for the same arguments.

    Raises:
        ValueError: If the name is unknown, or a file is not the published one.
        FileNotFoundError: If the folder, or a file in it, is missing.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown dataset {name!r}; write one of {', '.join(DATASETS)}")
    return _load_once(name, None if name == "digits" else data_dir)


@cache
def _load_once(name: str, data_dir: str | None) -> Dataset:
    # Imported late: scikit-learn takes a second that a run on another set should not pay.
    if name == "digits":
        from fl_dp.tasks.digits import load_digits

        dataset = load_digits()
    else:
        from fl_dp.tasks.fashion_mnist import load_fashion_mnist

        dataset = load_fashion_mnist(data_dir)
    # All clients of this process share these arrays.
    for array in (dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y):
        array.setflags(write=False)
    return dataset
