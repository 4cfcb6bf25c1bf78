"""Tables that scikit-learn ships, read without importing it."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FOLDER = Path("sklearn", "datasets", "data")


def shipped_table(name: str, *, skipped_rows: int = 0) -> NDArray[np.float64]:
    """Return the numbers of one of scikit-learn's CSV files, `(rows, columns)`.

    Args:
        name: Of the file.
        skipped_rows: Lines above the numbers.
    """
    file = distribution("scikit-learn").locate_file(_FOLDER / name)
    return np.loadtxt(str(file), delimiter=",", skiprows=skipped_rows)
