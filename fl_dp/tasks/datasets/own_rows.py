"""Rows of a table, each read by itself: what one holds decides nothing of another.

A reader that looks at a whole file lets one row decide for all. A quote that is not closed swallows
the lines after it, one word makes a column of numbers a column of text, and a label that no class
has refuses the file. Here a line of a CSV file is a row, a cell is a number or it is not, and
nothing is an error: a cell that can't be read is NaN, a label that can't be read is None.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets.own_data import optional_import

logger = logging.getLogger("flwr.fl_dp.client")

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_TRUTH = {"true": 1.0, "false": 0.0}


class Rows(NamedTuple):
    """All rows of a file.

    Attributes:
        x: Float32 `(n, columns)`; NaN or infinity where there is no number.
        labels: The text of each row's label; None where there is none.
    """

    x: NDArray[np.float32]
    labels: list[str | None]


def csv_rows(file: Path, columns: Sequence[str], label: str) -> Rows:
    """Read a CSV file line by line; its first line names the columns.

    Raises:
        OSError: If the file can't be read at all.
    """
    first, *lines = file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    lines = [line for line in lines if line.strip()]
    x = np.full((len(lines), len(columns)), np.nan)
    labels: list[str | None] = [None] * len(lines)
    names = _cells(first) or []
    if not _has(file, names, [*columns, label]):
        return Rows(x.astype(np.float32), labels)
    places, of_label = [names.index(name) for name in columns], names.index(label)
    for row, line in enumerate(lines):
        cells = _cells(line)
        if cells is not None and len(cells) == len(names):
            x[row] = [_number(cells[place]) for place in places]
            labels[row] = cells[of_label]
    return Rows(_narrow(x), labels)


def parquet_rows(file: Path, columns: Sequence[str], label: str) -> Rows:
    """Read the columns of a Parquet file.

    Raises:
        OSError: If the file can't be read at all.
    """
    parquet = optional_import("pyarrow.parquet", extra="tables", task="parquet")
    table = parquet.ParquetFile(file)
    rows = table.metadata.num_rows
    if not _has(file, table.schema_arrow.names, [*columns, label]):
        return Rows(np.full((rows, len(columns)), np.nan, np.float32), [None] * rows)
    read = table.read(columns=[*columns, label])
    x = np.array([[_number(v) for v in read.column(n).to_pylist()] for n in columns]).T
    labels = [_text(value) for value in read.column(label).to_pylist()]
    return Rows(_narrow(x.reshape(rows, len(columns))), labels)


def other_separator(names: Sequence[str]) -> str | None:
    """Return what separates the columns of a CSV file if not commas; None where commas do.

    Args:
        names: Its columns, as somebody reads them who looks for commas.
    """
    if len(names) != 1:
        return None
    return next((said for char, said in _SEPARATORS.items() if char in names[0]), None)


def _has(file: Path, names: list[str], wanted: list[str]) -> bool:
    odd = [name for name in wanted if names.count(name) != 1]
    if odd and (separator := other_separator(names)):
        logger.error("%s has %s between its columns: save it with commas", file, separator)
    elif odd:
        logger.error("%s has none or several columns %s: no row of it can be used", file, odd)
    return not odd


def _cells(line: bytes) -> list[str] | None:
    try:
        return next(csv.reader([line.decode().removesuffix("\r")], strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None


def _number(cell: Any) -> float:
    """Return the number that a cell holds, NaN if it holds none."""
    if isinstance(cell, str) and cell.lower() in _TRUTH:
        return _TRUTH[cell.lower()]
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _text(cell: Any) -> str | None:
    """Return a label's text as a table of whole numbers has it: 1.0 is 1, as missing cells make it.

    Truth values are `true` and `false`.
    """
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, bool):
        return str(cell).lower()
    return cell if isinstance(cell, str) else str(cell) if isinstance(cell, int) else None


def _narrow(x: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what float32 can't hold becomes infinite
        return x.astype(np.float32)
