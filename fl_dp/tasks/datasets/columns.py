"""Rows of a table as numbers, by a fixed public description.

Lists of categories and scaling constants are fixed, so one client's inputs do not depend on
another's rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Number:
    """A column of numbers, encoded as `(x - centre) / scale`.

    Attributes:
        centre: Value that becomes 0.
        scale: Distance above it that becomes 1.
        logarithm: Whether to take `log(1 + x)` first, for amounts with a long tail.
    """

    centre: float = 0.0
    scale: float = 1.0
    logarithm: bool = False


Columns = Mapping[str, Number | Sequence[str]]
"""Contents of a table's columns: numbers, or one of a list of categories, encoded one-hot."""


def width(columns: Columns) -> int:
    """How many numbers encode a row."""
    return sum(_widths(columns))


def encoded_rows(rows: Iterable[Mapping[str, str]], columns: Columns) -> NDArray[np.float32]:
    """Encode a table's rows; columns that are not described are ignored.

    Returns:
        Float32 `(n, width(columns))`, in the order of the description.

    Raises:
        ValueError: If a column is missing, a number is unreadable or not finite, or a category is
            not in its list.
    """
    cells: dict[str, list[str]] = {name: [] for name in columns}
    for row in rows:
        for name, collected in cells.items():
            if row.get(name) is None:
                raise ValueError(f"a row has no column '{name}'; it has {', '.join(row)}")
            collected.append(row[name])
    num_rows = len(next(iter(cells.values())))
    encoded = np.zeros((num_rows, width(columns)), np.float32)
    widths = _widths(columns)
    starts = np.cumsum([0, *widths[:-1]]).tolist()
    for start, (name, column) in zip(starts, columns.items(), strict=True):
        if isinstance(column, Number):
            encoded[:, start] = _scaled(name, cells[name], column)
        else:
            encoded[np.arange(num_rows), start + codes(name, cells[name], column)] = 1.0
    return encoded


def codes(name: str, cells: Sequence[str], categories: Sequence[str]) -> NDArray[np.int64]:
    """Each cell's index in a list of categories, int64 `(n,)`.

    Raises:
        ValueError: If a cell is not in the list.
    """
    indices = {category: index for index, category in enumerate(categories)}
    unknown = set(cells) - set(indices)
    if unknown:
        raise ValueError(
            f"column '{name}' holds '{min(unknown)}'; it must be one of {', '.join(categories)}"
        )
    return np.array([indices[cell] for cell in cells], dtype=np.int64)


def _widths(columns: Columns) -> list[int]:
    return [1 if isinstance(column, Number) else len(column) for column in columns.values()]


def _scaled(name: str, cells: Sequence[str], column: Number) -> NDArray[np.float64]:
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"column '{name}' must hold numbers: {error}") from None
    if column.logarithm:
        values = np.log1p(np.maximum(values, 0.0))
    if not np.isfinite(values).all():
        raise ValueError(f"column '{name}' must hold finite numbers; one is not")
    return (values - column.centre) / column.scale
