"""Values that clients hold or send, read without raising.

A client that raises shows everyone that it did not answer. So an unreadable value is no record,
and a vector that can't be summed is the null contribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def records(values: object, features: int) -> NDArray[np.float64]:
    """Return the records in `values` that have no NaN, one per row.

    If a record has one feature, values may have any shape. Otherwise the first axis counts records
    and the others hold `features` numbers; a vector of that length is one record.

    Returns:
        Float64, shape `(n, features)`, infinities included. `n` is 0 for another shape or no real
        numbers.
    """
    array = _real_array(values)
    if array is None:
        return np.empty((0, features))
    if features == 1:
        rows = array.reshape(-1, 1)
    elif array.shape == (features,):
        rows = array.reshape(1, features)
    elif array.ndim >= 2 and array.size == array.shape[0] * features:
        rows = array.reshape(array.shape[0], features)
    else:
        return np.empty((0, features))
    return rows[~np.isnan(rows).any(axis=1)]


def labels(values: object) -> list[object]:
    """The labels in `values`, an array or any collection; a string is one label."""
    if isinstance(values, np.ndarray):
        return list(values.reshape(-1).tolist())
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        return list(values)
    return [values]


def count_records(values: object) -> int:
    """Number of records along the first axis, without those with a NaN."""
    array = _real_array(values)
    if array is None:
        return sum(not _is_missing(label) for label in labels(values))
    rows = array.reshape(1, 1) if array.ndim == 0 else array
    return int(np.count_nonzero(~np.isnan(rows).any(axis=tuple(range(1, rows.ndim)))))


def vector(values: object, dimension: int) -> NDArray[np.float64]:
    """One client's contribution as sent, or zeros if it is no real vector of that length."""
    array = _real_array(values)
    if array is None or array.shape != (dimension,):
        return np.zeros(dimension)
    return array


def _is_missing(label: object) -> bool:
    return label is None or (isinstance(label, float) and math.isnan(label))


def _real_array(values: object) -> NDArray[np.float64] | None:
    """A float64 copy, or None for anything but an array of real numbers."""
    try:
        # A long double beyond float64 becomes infinity, and is then clipped like any other.
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.asarray(values)
            return array.astype(np.float64) if array.dtype.kind in "biufO" else None
    except (TypeError, ValueError, OverflowError):
        return None
