"""Handwritten digits, 1,797 images of 8x8, which ship inside scikit-learn: nothing to download."""

from __future__ import annotations

import numpy as np
from sklearn import datasets as sklearn_datasets
from sklearn.model_selection import train_test_split

from fl_dp.datasets.data import Dataset

# Public and fixed, so that runs with different seeds are tested on the same images.
_SPLIT_SEED = 0
_CENTRE = 0.3  # a constant, so that nothing about a client's own images is used
_TEST_FRACTION = 0.2


def load_digits() -> Dataset:
    """Load the digits with a fixed, stratified 20 % test part.

    Returns:
        1,437 training and 360 test images, float32 `(n, 1, 8, 8)` in [-0.3, 0.7], ten classes.
    """
    bunch = sklearn_datasets.load_digits()
    images = (bunch.images / 16 - _CENTRE).astype(np.float32)[:, np.newaxis]
    labels = bunch.target.astype(np.int64)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=_TEST_FRACTION, random_state=_SPLIT_SEED, stratify=labels
    )
    return Dataset(
        name="digits",
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        num_classes=10,
    )
