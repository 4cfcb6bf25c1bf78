"""Handwritten digits, 1,797 images of 8x8, which ship inside scikit-learn: nothing to download."""

from __future__ import annotations

import numpy as np

from fl_dp.tasks.datasets.data import Dataset
from fl_dp.tasks.datasets.held_out import with_test_part
from fl_dp.tasks.datasets.shipped import shipped_table

_CENTRE = 0.3  # a constant, so that nothing about a client's own images is used


def load_digits() -> Dataset:
    """Load the digits with a fixed, stratified 20 % test part.

    Returns:
        1,437 training and 360 test images, float32 `(n, 1, 8, 8)` in [-0.3, 0.7], ten classes.
    """
    table = shipped_table("digits.csv.gz")  # 64 pixels from 0 to 16, and the digit
    images = (table[:, :-1] / 16 - _CENTRE).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = table[:, -1].astype(np.int64)
    return with_test_part("digits", images, labels, num_classes=10)
