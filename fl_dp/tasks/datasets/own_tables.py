"""Somebody's own tables: `train.csv` and `test.csv`, or the same as `.parquet`.

    data_dir/train.csv      age,pressure,clinic,label
                            61,140,north,ill
    data_dir/test.csv       the same columns; no client column is needed

Features are numbers, used as they are unless public means and deviations are given. Nothing is
guessed: text among the features and missing values are refused. Both formats go through Arrow,
which knows no way to run code from a file. Where a refusal would show what one row holds
(`DataFormat.leave_out_unfit`), each row is read by itself (`own_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.forms import DataFormat
from fl_dp.tasks.datasets.own_data import (
    class_numbers,
    dataset_of_parts,
    dataset_of_rows,
    listed,
    optional_import,
    own_folder,
    require_scale_of,
    splits_to_read,
)
from fl_dp.tasks.datasets.own_rows import Rows, csv_rows, other_separator, parquet_rows

TYPES = ("number", "integer", "truth")
"""Types of a column: any number, a whole one, 0 or 1."""

_LARGEST_BLOCK = 2**30


def load_csv(data_dir: str | None, data_format: DataFormat) -> Dataset:
    """Load `train.csv` and `test.csv` of a folder. Errors as `load_parquet`."""
    return _load("csv", _CsvFile, data_dir, data_format)


def load_parquet(data_dir: str | None, data_format: DataFormat) -> Dataset:
    """Load `train.parquet` and `test.parquet` of a folder.

    Args:
        data_dir: The folder.
        data_format: What is public about the tables.

    Returns:
        Features float32 `(n, columns)`, in the order of `columns` or of the file. A part that is
        not read has no rows.

    Raises:
        FileNotFoundError: If a file is missing.
        ModuleNotFoundError: If pyarrow is not installed.
        ValueError: If a file can't be read or does not fit the format; the text can hold data.
    """
    return _load("parquet", _ParquetFile, data_dir, data_format)


class _Part(NamedTuple):
    """The rows of one file.

    Attributes:
        x: Float32 `(n, columns)`.
        labels: The labels' texts, each once, and `(n,)` which of them each row has; or float32
            `(n,)`, where they are numbers.
        clients: The same for the natural clients, or None.
    """

    x: NDArray[np.float32]
    labels: _Coded | NDArray[np.float32]
    clients: _Coded | None


class _Coded(NamedTuple):
    names: list[str]
    codes: NDArray[np.int64]


class _CsvFile:
    """A CSV file of which some columns are read."""

    def __init__(self, file: Path) -> None:
        self._csv = optional_import("pyarrow.csv", extra="tables", task="csv")
        self._file = file
        with self._csv.open_csv(file) as reader:
            self.names: list[str] = reader.schema.names
        if separator := other_separator(self.names):
            raise ValueError(f"{file} has {separator} between its columns: save it with commas")

    def read(self, columns: list[str], text: list[str]) -> Any:
        """Return an Arrow table of some columns, some of which hold text."""
        arrow = optional_import("pyarrow", extra="tables", task="csv")
        # One block, so that a column's type is found from all of its values, not the first few.
        size = min(self._file.stat().st_size + 1, _LARGEST_BLOCK)
        options = self._csv.ReadOptions(block_size=size)
        convert = self._csv.ConvertOptions(
            include_columns=columns, column_types={name: arrow.string() for name in text}
        )
        return self._csv.read_csv(self._file, read_options=options, convert_options=convert)


class _ParquetFile:
    """The same of a Parquet file, which tells the types of its columns itself."""

    def __init__(self, file: Path) -> None:
        parquet = optional_import("pyarrow.parquet", extra="tables", task="parquet")
        self._file = parquet.ParquetFile(file)
        self.names: list[str] = self._file.schema_arrow.names

    def read(self, columns: list[str], text: list[str]) -> Any:
        return self._file.read(columns=columns)


_TableFile: TypeAlias = _CsvFile | _ParquetFile


def _load(
    task: str, kind: type[_TableFile], data_dir: str | None, data_format: DataFormat
) -> Dataset:
    data_format.require(columns=data_format.columns, classes=data_format.num_outputs)
    if data_format.image_shape is not None:
        raise ValueError(f"task.image_shape is for task=folder: leave it out of task={task}")
    folder = own_folder(task, data_dir)
    paths = {split: folder / f"{split}.{task}" for split in ("train", "test")}
    if data_format.leave_out_unfit:
        splits_to_read(data_format, paths)
        return _fitting_rows(task, paths["train"], data_format)
    arrow = optional_import("pyarrow", extra="tables", task=task)
    columns = data_format.columns
    require_types(data_format)
    parts: dict[str, _Part] = {}
    for split in splits_to_read(data_format, paths):
        try:
            table = kind(paths[split])
            columns = columns or _all_others(table, data_format)
            parts[split] = _read(paths[split], table, columns, split, data_format)
        except (arrow.ArrowException, UnicodeError) as error:
            said = "its text is not UTF-8: save it as UTF-8" if _of_encoding(error) else str(error)
            raise ValueError(f"{paths[split]} can't be read: {said}") from error
    assert columns is not None  # some part was read
    require_scale_of(data_format, len(columns), "columns")
    num_classes, labels = _labels(parts, paths, data_format)
    clients = parts["train"].clients if "train" in parts else None
    whole = dataset_of_parts(
        task,
        {split: _scaled(part.x, data_format) for split, part in parts.items()},
        labels,
        num_classes=num_classes,
        clients=None if clients is None else (clients.codes, tuple(clients.names)),
        data_format=data_format,
    )
    return replace(whole, column_names=columns, class_names=tuple(data_format.classes or ()))


def _labels(
    parts: dict[str, _Part], paths: dict[str, Path], data_format: DataFormat
) -> tuple[int, dict[str, NDArray[Any]]]:
    """Return the number of classes, 1 for numbers, and the labels of each part."""
    coded = {split: part.labels for split, part in parts.items() if isinstance(part.labels, _Coded)}
    if not coded:
        numbers = {split: np.asarray(part.labels) for split, part in parts.items()}
        return 1, {split: _in_range(each, data_format) for split, each in numbers.items()}
    classes = data_format.classes or _integers(coded, paths)
    return len(classes), {
        split: class_numbers(labels.names, classes, source=paths[split])[labels.codes]
        for split, labels in coded.items()
    }


def _in_range(labels: NDArray[np.float32], data_format: DataFormat) -> NDArray[np.float32]:
    """Return numbers with their public range as [-1, 1]; each that lies outside at its end."""
    assert data_format.label_range is not None  # or else they are classes
    low, high = data_format.label_range
    clipped = np.clip(labels.astype(np.float64), low, high)
    scaled: NDArray[np.float32] = (2.0 * (clipped - low) / (high - low) - 1.0).astype(np.float32)
    return scaled


def in_unit_of_label(scaled: NDArray[Any], label_range: Sequence[float]) -> NDArray[np.float64]:
    """Return labels or predictions in the unit of the label, for whom [-1, 1] is its range."""
    low, high = label_range
    return low + (high - low) * (scaled.astype(np.float64) + 1.0) / 2.0


def _of_encoding(error: Exception) -> bool:
    return isinstance(error, UnicodeError) or "invalid UTF8" in str(error)


def _fitting_rows(task: str, file: Path, data_format: DataFormat) -> Dataset:
    """Return one node's training rows, those that do not fit left empty."""
    columns, num_classes = data_format.columns, data_format.num_outputs
    require_types(data_format)
    assert columns is not None and num_classes is not None  # required of one node's data
    require_scale_of(data_format, len(columns), "columns")
    label, of_numbers = data_format.label_column, data_format.label_range is not None
    numbers = [*columns, label] if of_numbers else columns
    read: Rows = (csv_rows if task == "csv" else parquet_rows)(file, numbers, label)
    number = {name: place for place, name in enumerate(data_format.classes or ())}
    y: NDArray[Any] = np.array(
        [-1 if label is None else number.get(label, -1) for label in read.labels], dtype=np.int64
    )
    fit = np.isfinite(read.x).all(axis=1) & of_types(read.x, data_format.types)
    fit &= of_numbers | (y >= 0)
    x = np.where(fit[:, None], read.x, np.float32(0))
    if of_numbers:
        x, y = x[:, :-1], _in_range(x[:, -1], data_format)
    y[~fit] = 0
    x = _scaled(x, data_format)
    return dataset_of_rows(task, x, y, fit, num_classes=num_classes, source=file)


def _all_others(table: _TableFile, data_format: DataFormat) -> tuple[str, ...]:
    special = (data_format.label_column, data_format.client_column)
    return tuple(name for name in table.names if name not in special)


def _read(
    file: Path, table: _TableFile, columns: tuple[str, ...], split: str, data_format: DataFormat
) -> _Part:
    label = data_format.label_column
    # Whose rows they are is asked only where they are several clients'.
    client = data_format.client_column
    if split == "test" or not data_format.everybody_s:
        client = None
    of_numbers = data_format.label_range is not None
    text = [*([] if of_numbers else [label]), *([] if client is None else [client])]
    numbers = (*columns, label) if of_numbers else columns
    wanted = [*numbers, *text]
    absent = [name for name in wanted if name not in table.names]
    if absent or not columns:
        raise ValueError(
            f"{file} has no column {listed(absent) if absent else 'of features'}: its columns are "
            f"{listed(table.names)}; see task.columns, task.label_column and task.client_column"
        )
    twice = sorted({name for name in wanted if table.names.count(name) > 1})
    if twice:
        raise ValueError(f"{file} has several columns {listed(twice)}: give each its own name")
    rows = table.read(wanted, text)
    texts = {name: _coded(rows.column(name), file, name) for name in text}
    x = _numbers(rows, numbers, file)
    of_other_types = int((~of_types(x, data_format.types)).sum())
    if of_other_types:
        raise ValueError(
            f"{file}: {of_other_types} rows hold a value that is not of its column's type in "
            f"the schema: {listed([*(data_format.types or ())])}"
        )
    return _Part(
        x=x[:, : len(columns)],
        labels=x[:, -1] if of_numbers else texts[label],
        clients=None if client is None else texts[client],
    )


def of_types(x: NDArray[np.float32], types: tuple[str, ...] | None) -> NDArray[np.bool_]:
    """Return which rows hold values of their columns' types alone, bool `(n,)`.

    Args:
        x: Values, `(n, columns)`; what is not finite is of none but `number`.
        types: As `DataFormat.types`.
    """
    right = np.ones(len(x), dtype=bool)
    for place, kind in enumerate(types or ()):
        values = x[:, place]
        if kind == "integer":
            right &= values == np.floor(values)
        elif kind == "truth":
            right &= (values == 0.0) | (values == 1.0)
    return right


def require_types(data_format: DataFormat) -> None:
    """Check that there is one known type for each column, if any.

    Raises:
        ValueError: If not.
    """
    types, columns = data_format.types, data_format.columns
    if types is None:
        return
    unknown = sorted(set(types) - set(TYPES))
    if unknown:
        raise ValueError(f"types must be {', '.join(TYPES)}, got '{unknown[0]}'")
    if columns is None or len(columns) != len(types):
        raise ValueError(
            f"{len(types)} types are given for {len(columns or ())} columns: write one for each"
        )


def _numbers(rows: Any, columns: tuple[str, ...], file: Path) -> NDArray[np.float32]:
    """Return columns of numbers side by side, float32 `(n, columns)`."""
    types = optional_import("pyarrow", extra="tables", task=file.suffix[1:]).types
    kinds = (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_decimal,
        types.is_null,  # no value at all: counted as missing
    )
    no_numbers = [n for n in columns if not any(is_kind(rows.column(n).type) for is_kind in kinds)]
    if no_numbers:
        raise ValueError(
            f"{file}: columns that are not numbers: {listed(no_numbers)}; write them as numbers, "
            "or name the features in task.columns=[...] without them"
        )
    missing = {name: rows.column(name).null_count for name in columns}
    x = np.zeros((rows.num_rows, len(columns)), dtype=np.float32)
    not_finite = []
    for place, name in enumerate(columns):
        if missing[name]:
            continue
        with np.errstate(over="ignore"):  # what float32 can't hold becomes infinite and is refused
            x[:, place] = rows.column(name).to_numpy().astype(np.float64).astype(np.float32)
        missing[name] = int(np.isnan(x[:, place]).sum())
        if np.isinf(x[:, place]).any():
            not_finite.append(name)
    _refuse_missing(file, missing)
    if not_finite:
        raise ValueError(f"{file}: columns with infinite values: {listed(not_finite)}")
    return x


def _coded(column: Any, file: Path, name: str) -> _Coded:
    """Return a column's values as texts, each once, and which of them each row has."""
    arrow = optional_import("pyarrow", extra="tables", task=file.suffix[1:])
    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    _refuse_missing(file, {name: column.null_count})
    if arrow.types.is_floating(column.type):
        column = column.cast(arrow.int64())  # 1.0 is a label, 1.5 is an error
    encoded = column.cast(arrow.string()).combine_chunks().dictionary_encode()
    found = np.array(encoded.dictionary.to_pylist(), dtype=object)
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    # In the order of the names, so that nothing depends on the order of the rows.
    names, place = np.unique(found, return_inverse=True)
    if "" in names:  # the first in that order
        _refuse_missing(file, {name: int((place[codes] == 0).sum())})
    return _Coded(names.tolist(), place[codes])


def _refuse_missing(file: Path, missing: dict[str, int]) -> None:
    found = [f"{name!r} ({number})" for name, number in missing.items() if number]
    if found:
        raise ValueError(
            f"{file}: missing values in {', '.join(found)}: fill them in, or leave these rows or "
            "columns out"
        )


def _integers(parts: dict[str, _Coded], paths: dict[str, Path]) -> tuple[str, ...]:
    """Return "0", "1", ... up to the largest label; everybody's rows have each of them."""
    found = {name for labels in parts.values() for name in labels.names}
    classes = tuple(str(number) for number in range(len(found)))
    if len(found) < 2 or found != set(classes):
        files = " and ".join(str(paths[split]) for split in parts)
        raise ValueError(
            f"{files}: the labels are not 0, 1, 2, ... "
            f"without a gap but {listed(sorted(found))}; write all classes, which are public, as "
            "task.classes=[name,name]; of a label that is a number, its range as "
            "task.label_range=[low,high]"
        )
    return classes


def _scaled(x: NDArray[np.float32], data_format: DataFormat) -> NDArray[np.float32]:
    if data_format.mean is None or data_format.std is None:
        return x
    mean, std = np.array(data_format.mean), np.array(data_format.std)
    scaled: NDArray[np.float32] = ((x - mean) / std).astype(np.float32)
    return scaled
