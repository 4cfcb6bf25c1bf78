"""Handwritten digits, 1,797 images of 8x8, which ship inside scikit-learn: nothing to download."""

from __future__ import annotations

import numpy as np

from fl_dp.datasets.data import Dataset
from fl_dp.datasets.held_out import stratified_split
from fl_dp.datasets.shipped import shipped_table

# Public and fixed, so that runs with different seeds are tested on the same images.
_SPLIT_SEED = 0
_CENTRE = 0.3  # a constant, so that nothing about a client's own images is used
_TEST_FRACTION = 0.2


def load_digits() -> Dataset:
    """Load the digits with a fixed, stratified 20 % test part.

    Returns:
        1,437 training and 360 test images, float32 `(n, 1, 8, 8)` in [-0.3, 0.7], ten classes.
    """
    table = shipped_table("digits.csv.gz")  # 64 pixels from 0 to 16, and the digit
    images = (table[:, :-1] / 16 - _CENTRE).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = table[:, -1].astype(np.int64)
    train, test = stratified_split(labels, _TEST_FRACTION, _SPLIT_SEED)
    return Dataset(
        name="digits",
        train_x=images[train],
        train_y=labels[train],
        test_x=images[test],
        test_y=labels[test],
        num_classes=10,
    )
