"""Columns of a table, encoded into the unit ball by public facts.

    >>> age = Column(kind="number", range=(0.0, 100.0), missing=("-999",))
    >>> age.coordinates(["75", "-999"]).tolist()
    [[0.5, 0.0], [0.0, 1.0]]

A number's range becomes [-1, 1], a category a coordinate of its own, and so does what is missing; a
text's words are counted (`word_counts`). No column is longer than 1. A row is divided by the root
of the number of columns, so its norm is at most 1. All facts are public, so one client's inputs do
not depend on another's rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets.forms import DataFormat, plain_label
from fl_dp.tasks.datasets.text_bytes import padded
from fl_dp.tasks.datasets.word_counts import word_counts

PLAIN_KINDS = ("number", "integer", "truth")
"""Kinds of a column that can be used as it is: any number, a whole one, 0 or 1."""

KINDS = (*PLAIN_KINDS, "category", "words", "text")
"""Kinds of a column; a category is one of a list of texts, words are any text's, counted.

A text is carried as it is (`text_bytes.padded`), for `features`: it is its table's only column.
"""

_FACT = {"category": "categories", "words": None, "text": "length"}
"""What a kind must have; `range` where it is not here."""

_OF_SOME_KINDS = ("range", "categories", "length")

_WORDS = 1024  # coordinates of a text

ANYTHING_ELSE = "*"
"""Among the missing: whatever is no value of the column."""

MISSING_TEXTS = ("na", "n/a", "#n/a", "nan", "nat", "null", "none", "<na>")
"""How programs write that there is no value, beside an empty cell; in small letters."""

MISSING = "(missing)"
"""A cell without a value, where cells are named."""

_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True, kw_only=True)
class Column:
    """Public facts about a column's cells.

    Attributes:
        kind: One of `KINDS`.
        range: Lowest and highest number; a number outside counts as the nearer end. [0, 1] for
            `truth`.
        categories: All texts of a category.
        missing: Cells without a value, besides empty ones; `*` is any other. None: every cell has
            a value.
        length: Bytes of a text that are used, from its beginning.
    """

    kind: str
    range: tuple[float, float] | None = None
    categories: tuple[str, ...] | None = None
    missing: tuple[str, ...] | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        """Check the facts.

        Raises:
            ValueError: If they are incomplete or contradict each other.
        """
        if self.kind not in KINDS:
            raise ValueError(f"kind must be {', '.join(KINDS)}, got {self.kind!r}")
        if self.kind == "truth" and self.range is None:
            object.__setattr__(self, "range", (0.0, 1.0))
        fact = _FACT.get(self.kind, "range")
        if fact is not None and getattr(self, fact) is None:
            verb = "are" if fact == "categories" else "is"
            raise ValueError(
                f"its {fact} {verb} blank: write what is publicly known, or buy it by a charged "
                "statistic (`fl-dp stats`)"
            )
        others = [*_OF_SOME_KINDS, *(["missing"] if self.kind == "text" else [])]
        for other in others:
            if other != fact and getattr(self, other) is not None:
                raise ValueError(f"kind {self.kind} has no {other}: leave it out")
        if self.length is not None and self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}")
        if self.range is not None:
            low, high = self.range
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(f"range must be two numbers that rise, got {[low, high]}")
        if self.categories is not None:
            plain = [plain_label(name) for name in self.categories]
            if len(set(plain)) < max(len(plain), 2):
                raise ValueError(f"categories must be two or more, each once, got {[*plain]}")

    @classmethod
    def of_text(cls, text: str) -> Column:
        """Read the column that `text` wrote."""
        return cls(**{key: _frozen(value) for key, value in json.loads(text).items()})

    @property
    def text(self) -> str:
        """One line that tells a column from others."""
        facts = {key: value for key, value in vars(self).items() if value is not None}
        return json.dumps(facts, sort_keys=True)

    @property
    def width(self) -> int:
        """Numbers that encode a cell."""
        if self.length is not None:
            return self.length
        values = _WORDS if self.kind == "words" else len(self.categories or (None,))
        return values + (self.missing is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of a category's cells; the last is `MISSING` if there may be none."""
        names = tuple(map(plain_label, self.categories or ()))
        return names if self.missing is None else (*names, MISSING)

    @property
    def _sentinels(self) -> list[float]:
        """Numbers that stand for no value, as -999."""
        numbers = map(parsed_number, self.missing or ())
        return [number for number in numbers if math.isfinite(number)]

    def _is_empty(self, cell: str) -> bool:
        """Whether a cell says that there is no value."""
        plain = plain_label(cell)
        is_listed = plain in map(plain_label, self.missing or ())
        is_sentinel = parsed_number(cell) in self._sentinels
        return is_listed or is_sentinel or plain.lower() in ("", *MISSING_TEXTS)

    def coordinates(self, cells: Sequence[str | None]) -> NDArray[np.float64]:
        """Encode cells, `(k, width)`, rows of norm at most 1; NaN where one is not of the column.

        None is a cell that could not be read.
        """
        values = self._values(cells)
        if self.missing is None:
            return values
        table = np.hstack([values, np.zeros((len(cells), 1))])
        for index in np.flatnonzero(np.isnan(values).any(axis=1)).tolist():
            cell = cells[index]
            if cell is not None and (ANYTHING_ELSE in self.missing or self._is_empty(cell)):
                table[index] = 0.0
                table[index, -1] = 1.0
        return table

    def cells(self, coordinates: NDArray[Any]) -> list[str] | NDArray[np.float64]:
        """Read cells back from `coordinates`, `(k, width)`: a category's texts, or numbers `(k,)`.

        Cells without a value are `MISSING`, or NaN.
        """
        width = len(self.categories or (None,))
        is_missing = coordinates[:, width:].any(axis=1)
        if self.categories is not None:
            codes = np.where(is_missing, width, coordinates[:, :width].argmax(axis=1))
            return [self.names[code] for code in codes]
        assert self.range is not None  # every kind but a category has one
        low, high = self.range
        numbers = low + (high - low) * (coordinates[:, 0].astype(np.float64) + 1.0) / 2.0
        if self.kind != "number":
            numbers = np.rint(numbers)  # rows are float32
        return np.where(is_missing, np.nan, numbers)

    def _values(self, cells: Sequence[str | None]) -> NDArray[np.float64]:
        if self.categories is not None:
            index = {plain_label(name): number for number, name in enumerate(self.categories)}
            codes = [-1 if cell is None else index.get(plain_label(cell), -1) for cell in cells]
            one_hot = np.vstack([np.eye(len(index)), np.full((1, len(index)), np.nan)])
            chosen: NDArray[np.float64] = one_hot[np.array(codes, dtype=np.int64)]
            return chosen
        if self.length is not None:
            rows = padded([cell or "" for cell in cells], self.length).astype(np.float64)
            rows[[cell is None for cell in cells]] = np.nan
            return rows
        if self.kind == "words":
            texts = ["" if cell is None or self._is_empty(cell) else cell for cell in cells]
            counts = word_counts(texts, _WORDS).astype(np.float64)
            counts /= np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9)
            counts[[not text for text in texts]] = np.nan
            return counts
        assert self.range is not None
        low, high = self.range
        numbers = np.array([parsed_number(cell) for cell in cells], dtype=np.float64)
        fits = np.isfinite(numbers) & ~np.isin(numbers, self._sentinels)
        if self.kind != "number":
            fits &= numbers == np.floor(numbers)
        if self.kind == "truth":
            fits &= (numbers >= 0.0) & (numbers <= 1.0)
        scaled = 2.0 * (np.clip(numbers, low, high) - low) / (high - low) - 1.0
        return np.where(fits, scaled, np.nan)[:, np.newaxis]


class Cells(NamedTuple):
    """A column's cells: each text once, and each row's index `(n,)` into them."""

    names: Sequence[str | None]
    codes: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> Cells:
        """Number the texts in the order of their first rows."""
        number: dict[str | None, int] = {}
        codes = [number.setdefault(text, len(number)) for text in texts]
        return cls(tuple(number), np.array(codes, dtype=np.int64))


def encoded_rows(columns: Sequence[Column], cells: Sequence[Cells]) -> NDArray[np.float64]:
    """Encode a table's rows; `cells` has each column's.

    Returns:
        `(n, width)` with rows of norm at most 1, in the order of the columns. NaN where a cell is
        none of its column's.
    """
    blocks = []
    for column, (names, codes) in zip(columns, cells, strict=True):
        blocks.append(column.coordinates(names)[codes])
    return np.hstack(blocks) / math.sqrt(len(columns))


def encoding_of(data_format: DataFormat) -> tuple[Column, ...] | None:
    """Columns by which own rows are encoded; None if numbers are used as they are.

    Raises:
        ValueError: If there is not one known type for each column.
    """
    types, columns = data_format.types, data_format.columns
    if types is None:
        return None
    if columns is None or len(columns) != len(types):
        raise ValueError(
            f"{len(types)} types are given for {len(columns or ())} columns: write one for each"
        )
    unknown = sorted(kind for kind in set(types) if kind not in PLAIN_KINDS and kind[:1] != "{")
    if unknown:
        raise ValueError(f"types must be {', '.join(PLAIN_KINDS)}, got '{unknown[0]}'")
    described = [kind for kind in types if kind not in PLAIN_KINDS]
    if not described:
        return None
    if len(described) < len(types) or data_format.mean is not None:
        raise ValueError("ranges scale columns: describe all of them, and leave out mean and std")
    described_columns = tuple(map(Column.of_text, types))
    if len(described_columns) > 1 and "text" in {column.kind for column in described_columns}:
        raise ValueError(
            "a column of kind text is a record of its own, for features=words: beside other "
            "columns write kind: words"
        )
    return described_columns


def are_texts(columns: Sequence[Column] | None) -> bool:
    """Whether records are texts, each a row's only cell."""
    return columns is not None and columns[0].kind == "text"


def described_columns(data_format: DataFormat) -> dict[str, tuple[Column, slice]]:
    """Columns by name, each with its coordinates of an encoded row; none if used as they are."""
    columns: dict[str, tuple[Column, slice]] = {}
    end = 0
    encoding = encoding_of(data_format) or ()
    for name, column in zip(data_format.columns or (), encoding, strict=False):
        start, end = end, end + column.width
        columns[name] = (column, slice(start, end))
    return columns


def cells_of_column(
    rows: NDArray[Any], data_format: DataFormat, name: str
) -> list[str] | NDArray[np.float64]:
    """A column's cells in encoded rows `(n, width)`, as `Column.cells` returns them.

    Raises:
        KeyError: The format describes no such column.
    """
    columns = described_columns(data_format)
    column, coordinates = columns[name]
    return column.cells(rows[:, coordinates] * math.sqrt(len(columns)))


def missing_cells(rows: NDArray[Any], data_format: DataFormat) -> NDArray[np.float64]:
    """1 where encoded rows have no value, `(n, k)`, by the `k` columns that may lack one."""
    columns = described_columns(data_format).values()
    last = [numbers.stop - 1 for column, numbers in columns if column.missing is not None]
    return (rows[:, last] > 0.0).astype(np.float64)


def coordinate_names(names: Sequence[str], columns: Sequence[Column]) -> tuple[str, ...]:
    """Names of an encoded row's numbers, for people."""
    coordinates: list[str] = []
    for name, column in zip(names, columns, strict=True):
        values = [f"{name}={category}" for category in column.categories or ()]
        if column.kind == "words":
            values = [f"{name}, words {number}" for number in range(_WORDS)]
        coordinates += values or [name]
        if column.missing is not None:
            coordinates.append(f"{name} is missing")
    return tuple(coordinates)


def width(columns: Iterable[Column]) -> int:
    """How many numbers encode a row."""
    return sum(column.width for column in columns)


def parsed_number(cell: Any) -> float:
    """The number in a cell; NaN without one."""
    if isinstance(cell, str) and cell.lower() in _TRUTH:
        return _TRUTH[cell.lower()]
    if isinstance(cell, str) and "_" in cell:  # which Python reads as thousands
        return math.nan
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
