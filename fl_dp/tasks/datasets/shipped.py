"""Digits and breast cancer, which scikit-learn ships, read without importing it."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.held_out import with_test_part

_FOLDER = Path("sklearn", "datasets", "data")


def shipped_table(name: str, *, skipped_rows: int = 0) -> NDArray[np.float64]:
    """The numbers of one of scikit-learn's CSV files, `(rows, columns)`."""
    file = distribution("scikit-learn").locate_file(_FOLDER / name)
    return np.loadtxt(str(file), delimiter=",", skiprows=skipped_rows)


_DIGITS_CENTRE = 0.3  # a constant, so that nothing about a client's own images is used


def load_digits() -> Dataset:
    """Load handwritten digits, 8x8, with a fixed, stratified 20 % test part.

    Returns:
        1,437 training and 360 test images, float32 `(n, 1, 8, 8)` in [-0.3, 0.7], ten classes.
    """
    table = shipped_table("digits.csv.gz")  # 64 pixels from 0 to 16, and the digit
    images = (table[:, :-1] / 16 - _DIGITS_CENTRE).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = table[:, -1].astype(np.int64)
    return with_test_part("digits", images, labels, num_classes=10)


# Mean and standard deviation of the published set, rounded to three digits: public constants, so
# that no run looks at its clients' rows for them. One line each: mean, error and worst of ten
# measurements.
_CENTRE = (
    14.1, 19.3, 92.0, 655.0, 0.0964, 0.104, 0.0888, 0.0489, 0.181, 0.0628,
    0.405, 1.22, 2.87, 40.3, 0.00704, 0.0255, 0.0319, 0.0118, 0.0205, 0.00379,
    16.3, 25.7, 107.0, 881.0, 0.132, 0.254, 0.272, 0.115, 0.29, 0.0839,
)  # fmt: skip
_SCALE = (
    3.52, 4.3, 24.3, 352.0, 0.0141, 0.0528, 0.0796, 0.0388, 0.0274, 0.00705,
    0.277, 0.551, 2.02, 45.5, 0.003, 0.0179, 0.0302, 0.00616, 0.00826, 0.00264,
    4.83, 6.14, 33.6, 569.0, 0.0228, 0.157, 0.208, 0.0657, 0.0618, 0.018,
)  # fmt: skip


def load_breast_cancer() -> Dataset:
    """Load Breast cancer Wisconsin (diagnostic), with a fixed, stratified 20 % test part.

    Thirty measurements of cell nuclei per biopsy; label 1 is a benign tumour, 0 a malignant one.

    Returns:
        455 training and 114 test rows, float32 `(n, 30)`, encoded into the unit ball: of each
        measurement two deviations about the mean become [-1, 1].
    """
    table = shipped_table("breast_cancer.csv", skipped_rows=1)  # the measurements, and the label
    deviations = (table[:, :-1] - np.array(_CENTRE)) / np.array(_SCALE)
    rows = (np.clip(deviations / 2, -1.0, 1.0) / np.sqrt(len(_SCALE))).astype(np.float32)
    labels = table[:, -1].astype(np.int64)
    whole = with_test_part("breast_cancer", rows, labels, num_classes=2)
    return replace(whole, class_names=("malignant", "benign"))
