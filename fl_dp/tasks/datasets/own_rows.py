"""Rows of a table, each read separately: one row's content decides nothing for another.

In a reader of whole files one row decides for all: an open quote swallows later lines, one word
turns numbers into text, an unknown label refuses the file. Here a CSV line is a row, and nothing
is an error: a cell without a number is NaN, an unreadable label None.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets.columns import parsed_number
from fl_dp.tasks.datasets.forms import plain_name
from fl_dp.tasks.datasets.own_data import optional_import

logger = logging.getLogger("flwr.fl_dp.client")

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


class ReadRows(NamedTuple):
    """All rows of a file.

    Attributes:
        x: Float64 `(n, columns)`; NaN or infinite where there is no number.
        texts: By column, each row's text; None for one that can't be read.
    """

    x: NDArray[np.float64]
    texts: dict[str, list[str | None]]


def csv_rows(file: Path, columns: Sequence[str], texts: Sequence[str]) -> ReadRows:
    """Read columns of numbers and of texts line by line; a CSV file's first line names them.

    Raises:
        OSError: If the file can't be read at all.
    """
    _, *lines = [line for line in file.read_bytes().split(b"\n") if line.strip()] or [b""]
    x = np.full((len(lines), len(columns)), np.nan)
    read: dict[str, list[str | None]] = {name: [None] * len(lines) for name in texts}
    try:
        names = csv_header(file).names
    except ValueError as error:  # its text tells only of the first line
        logger.error("%s", error)
        return ReadRows(x, read)
    if not _has(file, names, [*columns, *texts]):
        return ReadRows(x, read)
    indices = [names.index(name) for name in columns]
    for row, line in enumerate(lines):
        cells = _cells(line)
        if cells is not None and len(cells) == len(names):
            x[row] = [parsed_number(cells[index]) for index in indices]
            for name in texts:
                read[name][row] = cells[names.index(name)]
    return ReadRows(x, read)


def parquet_rows(file: Path, columns: Sequence[str], texts: Sequence[str]) -> ReadRows:
    """Read columns of numbers and of texts of a Parquet file.

    Raises:
        OSError: If the file can't be read at all.
    """
    parquet = optional_import("pyarrow.parquet", extra="tables", task="parquet")
    table = parquet.ParquetFile(file)
    rows = table.metadata.num_rows
    written = table.schema_arrow.names
    names = [plain_name(name) for name in written]
    wanted = list(dict.fromkeys([*columns, *texts]))
    if not _has(file, names, wanted):
        x = np.full((rows, len(columns)), np.nan)
        return ReadRows(x, {name: [None] * rows for name in texts})
    as_written = dict(zip(names, written, strict=True))
    read = table.read(columns=[as_written[name] for name in wanted])
    cells = {name: read.column(as_written[name]).to_pylist() for name in wanted}
    x = np.array([[parsed_number(value) for value in cells[name]] for name in columns]).T
    as_text = {name: [_text(value) for value in cells[name]] for name in texts}
    return ReadRows(x.reshape(rows, len(columns)), as_text)


class Header(NamedTuple):
    """Names of a CSV file's columns.

    Attributes:
        names: Without blanks around them.
        num_lines: Number of lines before the first row.
    """

    names: list[str]
    num_lines: int


def csv_header(file: Path) -> Header:
    """Read the names of a CSV file's columns, and none of its rows.

    Raises:
        OSError: If the file can't be read at all.
        ValueError: If its first line is not UTF-8 text, or commas do not separate its cells.
    """
    with file.open("rb") as stream:
        lines = ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
        num_lines, first = next(lines, (0, b""))
    first = first.removeprefix(b"\xef\xbb\xbf").split(b"\n")[0].split(b"\r")[0]
    cells = None if b"\x00" in first else _cells(first)
    if not cells:
        raise ValueError(
            f"{file} can't be read: its first line is no text in UTF-8 that names columns: save "
            "it as UTF-8, as CSV that is not packed"
        )
    separator = next((noun for char, noun in _SEPARATORS.items() if char in cells[0]), None)
    if separator is not None and len(cells) == 1:
        raise ValueError(
            f"{file} has {separator} between its columns: save it with commas between columns, and "
            "points in its numbers"
        )
    return Header([plain_name(cell) for cell in cells], num_lines)


def _has(file: Path, names: list[str], wanted: list[str]) -> bool:
    odd = [name for name in wanted if names.count(name) != 1]
    if odd:
        logger.error("%s has none or several columns %s: no row of it can be used", file, odd)
    return not odd


def _cells(line: bytes) -> list[str] | None:
    try:
        return next(csv.reader([line.decode().removesuffix("\r")], strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None


def _text(cell: Any) -> str | None:
    """A cell's text as in a CSV file: empty without a value, `1` for 1.0, `true` and `false`.

    Missing cells turn a column's whole numbers into floating-point ones.
    """
    if cell is None or cell != cell:  # not a number
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, bool):
        return str(cell).lower()
    return str(cell) if isinstance(cell, str | int | float | Decimal) else None
