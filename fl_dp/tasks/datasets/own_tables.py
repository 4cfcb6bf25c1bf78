"""A user's own tables: `train.csv` and `test.csv`, or the same as `.parquet`.

    data_dir/train.csv      age,pressure,clinic,label
                            61,140,north,ill
    data_dir/test.csv       the same columns; no client column is needed

A schema encodes the columns (`columns`). Without one features are numbers, used as they are unless
public means and deviations are given. Nothing is guessed: text among the features, missing values
and row numbers are then refused, in words that contain no row. Both formats go through Arrow, which
can't run code from a file. Where a refusal would show a row's content
(`DataFormat.leave_out_unfit`), each row is read separately (`own_rows`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl_dp.tasks.datasets.columns import (
    MISSING_TEXTS,
    Cells,
    Column,
    are_texts,
    coordinate_names,
    encoded_rows,
    encoding_of,
)
from fl_dp.tasks.datasets.dataset import Dataset
from fl_dp.tasks.datasets.forms import BYTES, DataFormat, plain_label, plain_name
from fl_dp.tasks.datasets.names import (
    few_labels,
    folded,
    in_order,
    listed,
    require_distinct_units,
)
from fl_dp.tasks.datasets.own_data import (
    class_numbers,
    dataset_of_parts,
    dataset_of_rows,
    numbers_by_label,
    optional_import,
    own_folder,
    require_scale_of,
    splits_to_read,
)
from fl_dp.tasks.datasets.own_rows import ReadRows, csv_header, csv_rows, parquet_rows

_LARGEST_BLOCK = 2**30
# Names that pandas gives to an index that it writes, and to a column without a name.
_INDEX = re.compile(r"(Unnamed: .*)?|__index_level_\d+__")
_FEWEST_COUNTED = 20  # rows from which consecutive numbers are no coincidence
_FINEST = 1e-4  # of a column's range, by which rounding to float32 may move a value
_LIKE_A_NUMBER = re.compile(r"[-+.]?\d")


def load_csv(data_dir: str | None, data_format: DataFormat) -> Dataset:
    """Load `train.csv` and `test.csv` of a folder. Errors as `load_parquet`."""
    return _load("csv", _CsvFile, data_dir, data_format)


def load_parquet(data_dir: str | None, data_format: DataFormat) -> Dataset:
    """Load `train.parquet` and `test.parquet` of a folder.

    Returns:
        Features float32 `(n, columns)`, in the order of `columns` or of the file. A part that is
        not read has no rows.

    Raises:
        FileNotFoundError: If a file is missing.
        ModuleNotFoundError: If pyarrow is not installed.
        ValueError: If a file can't be read or does not fit the format; the text can contain data.
    """
    return _load("parquet", _ParquetFile, data_dir, data_format)


def kinds_of(file: Path) -> dict[str, str]:
    """Kinds of a table's columns by their names, in its order, without those that number rows.

    Raises:
        OSError: If the file can't be read.
        ModuleNotFoundError: If pyarrow is not installed.
        ValueError: If it is no table; the text can contain data.
    """
    readers: dict[str, type[_TableFile]] = {".csv": _CsvFile, ".parquet": _ParquetFile}
    kind = readers.get(file.suffix)
    if kind is None:
        raise ValueError(f"{file} must be a table, .csv or .parquet")
    arrow = optional_import("pyarrow", extra="tables", task=file.suffix[1:])
    try:
        table = kind(file)
        names = [name for name in table.names if not _INDEX.fullmatch(name)]
        rows = table.read([name for name in names if name not in table.index], [])
    except (arrow.ArrowException, UnicodeError):
        raise ValueError(f"{file} can't be read: it is damaged, or no table") from None
    kinds = {}
    for field in rows.schema:
        is_of = arrow.types
        if is_of.is_integer(field.type):
            kinds[field.name] = "integer"
        elif is_of.is_floating(field.type) or is_of.is_decimal(field.type):
            kinds[field.name] = "number"
        else:
            kinds[field.name] = "truth" if is_of.is_boolean(field.type) else "category"
    return kinds


class _Part(NamedTuple):
    """The rows of one file.

    Attributes:
        x: Float32 `(n, columns)`, scaled.
        labels: The labels' texts, each once, and each row's index `(n,)` into them; or labels that
            are numbers, float64 `(n,)`.
        clients: The same for the natural clients, or None.
        persons: The same for the persons, or None.
    """

    x: NDArray[np.float32]
    labels: _Coded | NDArray[np.float64]
    clients: _Coded | None
    persons: _Coded | None


class _Coded(NamedTuple):
    names: list[str]
    codes: NDArray[np.int64]


class _CsvFile:
    """A CSV file of which some columns are read."""

    def __init__(self, file: Path) -> None:
        self._csv = optional_import("pyarrow.csv", extra="tables", task="csv")
        self._file = file
        self.names, self._num_lines = csv_header(file)
        self.index: frozenset[str] = frozenset()

    def read(self, columns: list[str], text: list[str]) -> Any:
        """Read some columns into an Arrow table; those in `text` as text."""
        arrow = optional_import("pyarrow", extra="tables", task="csv")
        # One block, so that a column's type is found from all of its values, not the first few.
        size = min(self._file.stat().st_size + 1, _LARGEST_BLOCK)
        options = self._csv.ReadOptions(
            block_size=size, column_names=self.names, skip_rows=self._num_lines
        )
        convert = self._csv.ConvertOptions(
            include_columns=columns, column_types={name: arrow.string() for name in text}
        )
        widths: list[int] = []

        def pass_over(row: Any) -> str:
            widths.append(row.actual_columns)
            return "skip"

        parse = self._csv.ParseOptions(invalid_row_handler=pass_over)
        table = self._csv.read_csv(
            self._file, read_options=options, parse_options=parse, convert_options=convert
        )
        if widths:  # Arrow's own error would quote the row
            raise ValueError(
                f"{self._file}: the first line names {len(self.names)} columns, and {len(widths)} "
                f"rows have other numbers of cells, for example {widths[0]}: write decimal points, "
                "and quotes around text with commas"
            )
        return table


class _ParquetFile:
    """A Parquet file, which has the types of its columns."""

    def __init__(self, file: Path) -> None:
        parquet = optional_import("pyarrow.parquet", extra="tables", task="parquet")
        self._file = parquet.ParquetFile(file)
        schema = self._file.schema_arrow
        self._written: list[str] = schema.names
        self.names = [plain_name(name) for name in schema.names]
        of_pandas = (schema.pandas_metadata or {}).get("index_columns", [])
        self.index = frozenset(plain_name(name) for name in of_pandas if isinstance(name, str))

    def read(self, columns: list[str], text: list[str]) -> Any:
        as_written = dict(zip(self.names, self._written, strict=True))
        table = self._file.read(columns=[as_written[name] for name in columns])
        return table.rename_columns([plain_name(name) for name in table.column_names])


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
    columns, encoding = data_format.columns, encoding_of(data_format)
    parts: dict[str, _Part] = {}
    for split in splits_to_read(data_format, paths):
        try:
            table = kind(paths[split])
            columns = columns or _all_others(paths[split], table, data_format)
            require_scale_of(data_format, len(columns), "columns")
            parts[split] = _read(paths[split], table, columns, split, data_format)
        except (arrow.ArrowException, UnicodeError) as error:
            reason = f"it is damaged, or no table as task={task} reads it"
            if _of_encoding(error):
                reason = "its text is not UTF-8: save it as UTF-8"
            # Without Arrow's own words, which can quote a row.
            raise ValueError(f"{paths[split]} can't be read: {reason}") from None
    assert columns is not None  # some part was read
    if encoding is not None:
        columns = coordinate_names(columns, encoding)
    num_classes, labels = _labels(parts, paths, data_format)
    _require_persons_apart({split: part.persons for split, part in parts.items()}, folder)
    clients = parts["train"].clients if "train" in parts else None
    persons = parts["train"].persons if "train" in parts else None
    natural = None if clients is None else (clients.codes, tuple(clients.names))
    whole = dataset_of_parts(
        task,
        {split: part.x for split, part in parts.items()},
        labels,
        num_classes=num_classes,
        clients=natural,
        persons=None if persons is None else persons.codes,
        data_format=data_format,
    )
    named = replace(
        whole,
        column_names=columns,
        class_names=tuple(data_format.classes or ()),
        shares=data_format.shares or (),
    )
    return _of_texts(named) if are_texts(encoding) else named


def _of_texts(dataset: Dataset) -> Dataset:
    """A set whose numbers are bytes of texts."""
    return replace(
        dataset,
        train_x=dataset.train_x.astype(np.uint8),
        test_x=dataset.test_x.astype(np.uint8),
        vocabulary_size=BYTES,
        column_names=(),
    )


def _labels(
    parts: dict[str, _Part], paths: dict[str, Path], data_format: DataFormat
) -> tuple[int, dict[str, NDArray[Any]]]:
    """Number of classes, 1 for numbers, and each part's labels."""
    coded = {split: part.labels for split, part in parts.items() if isinstance(part.labels, _Coded)}
    labels: dict[str, NDArray[Any]] = {}
    if not coded:
        for split, part in parts.items():
            labels[split] = _in_range(np.asarray(part.labels), data_format)
        return 1, labels
    classes = data_format.classes or _integers(coded, paths)
    for split, texts in coded.items():
        numbers = class_numbers(texts.names, classes, source=paths[split])
        labels[split] = numbers[texts.codes]
    return len(classes), labels


def _in_range(labels: NDArray[np.float64], data_format: DataFormat) -> NDArray[np.float32]:
    """Map the numbers' public range to [-1, 1]; numbers outside move to the nearer end."""
    assert data_format.label_range is not None  # otherwise labels are classes
    low, high = data_format.label_range
    clipped = np.clip(labels, low, high)
    scaled: NDArray[np.float32] = (2.0 * (clipped - low) / (high - low) - 1.0).astype(np.float32)
    return scaled


def in_unit_of_label(scaled: NDArray[Any], label_range: Sequence[float]) -> NDArray[np.float64]:
    """Map labels or predictions from [-1, 1] back to the unit of the label."""
    low, high = label_range
    return low + (high - low) * (scaled.astype(np.float64) + 1.0) / 2.0


def _of_encoding(error: Exception) -> bool:
    return isinstance(error, UnicodeError) or "invalid UTF8" in str(error)


def _fitting_rows(task: str, file: Path, data_format: DataFormat) -> Dataset:
    """One node's training rows; those that do not fit are left empty."""
    columns, num_classes = data_format.columns, data_format.num_outputs
    encoding = encoding_of(data_format)
    assert columns is not None and num_classes is not None  # required of one node's data
    require_scale_of(data_format, len(columns), "columns")
    label, is_of_numbers = data_format.label_column, data_format.label_range is not None
    person = data_format.person_column
    numbers, texts = _columns_to_read(data_format, columns, None, person)
    reader = csv_rows if task == "csv" else parquet_rows
    read: ReadRows = reader(file, numbers, texts)
    number = numbers_by_label(data_format.classes or ())
    classes = []
    for text in [] if is_of_numbers else read.texts[label]:
        classes.append(-1 if text is None else number.get(plain_label(text), -1))
    y: NDArray[Any] = np.array(classes, dtype=np.int64)
    fit = np.isfinite(read.x).all(axis=1)
    if encoding is not None:
        x = _narrow(encoded_rows(encoding, [Cells.of(read.texts[name]) for name in columns]))
    else:
        x = _narrow(_scaled(read.x[:, : len(columns)], data_format))
        fit &= of_types(read.x, data_format.types)
    fit &= np.isfinite(x).all(axis=1) & (is_of_numbers | (y >= 0))
    if is_of_numbers:
        y = _in_range(read.x[:, -1], data_format)
    x[~fit], y[~fit] = 0, 0
    persons = None if person is None else _persons_of(read.texts[person])
    rows = dataset_of_rows(task, x, y, fit, num_classes=num_classes, source=file, persons=persons)
    return _of_texts(rows) if are_texts(encoding) else rows


def _persons_of(names: Sequence[str | None]) -> NDArray[np.int64]:
    """Each row's person, int64 `(n,)`; -1 where it names none. Names that are alike are one."""
    texts = [folded(name or "") for name in names]
    number = {name: index for index, name in enumerate(in_order(texts) if texts else [])}
    nobody = number.get("", -1)
    codes = np.array([number[name] for name in texts], dtype=np.int64)
    return np.where(codes == nobody, -1, codes)


def _all_others(file: Path, table: _TableFile, data_format: DataFormat) -> tuple[str, ...]:
    special = (data_format.label_column, data_format.client_column, data_format.person_column)
    others = tuple(name for name in table.names if name not in special)
    _refuse_index(file, [name for name in others if _INDEX.fullmatch(name) or name in table.index])
    return others


def _refuse_index(file: Path, names: list[str]) -> None:
    """Refuse columns that number the rows: in a sorted table they reveal the label."""
    if names:
        raise ValueError(
            f"{file}: columns that number the rows or have no name, as a saved index: "
            f"{listed(names)}; save the table without them (pandas: index=False), or name the "
            "features in task.columns=[...]"
        )


def _read(
    file: Path, table: _TableFile, columns: tuple[str, ...], split: str, data_format: DataFormat
) -> _Part:
    label = data_format.label_column
    # Clients matter only where the rows belong to several.
    client = data_format.client_column
    if split == "test" or not data_format.is_shared:
        client = None
    is_of_numbers = data_format.label_range is not None
    person = data_format.person_column
    if split == "test" and person not in table.names:  # it is public, and may name nobody
        person = None
    encoding = encoding_of(data_format)
    numbers, text = _columns_to_read(data_format, columns, client, person)
    required = list(dict.fromkeys([*numbers, *text]))
    absent = [name for name in required if name not in table.names]
    if absent or not columns:
        instead = f"its columns are {listed(table.names)}"
        if any(map(_LIKE_A_NUMBER.match, table.names)):
            instead = "its first line must name the columns, and may be a row"
        missing = listed(absent) if absent else "of features"
        raise ValueError(
            f"{file} has no column {missing}: {instead}; see "
            "task.columns, task.label_column, task.client_column and task.person_column"
        )
    repeated = sorted({name for name in required if table.names.count(name) > 1})
    if repeated:
        raise ValueError(f"{file} has several columns {listed(repeated)}: give each its own name")
    rows = table.read(required, text)
    if data_format.is_shared and not rows.num_rows:
        raise ValueError(f"{file} has no rows below its first line: write some, or leave it out")
    names = {None if is_of_numbers else label, client, person} - {None}
    texts = {
        name: _coded(rows.column(name), file, name, data_format.classes or ())
        for name in text
        if name in names
    }
    for unit, name in (("client", client), ("person", person)):
        if name is not None:
            require_distinct_units(texts[name].names, f"{file}, '{name}'", unit=unit)
    x = _numbers(rows, numbers, file)
    if encoding is None:
        narrow = _as_they_are(file, x, columns, split, data_format)
    else:
        cells = [_cells(rows.column(name), file) for name in columns]
        narrow = _encoded(file, cells, columns, encoding)
    return _Part(
        x=narrow,
        labels=x[:, -1] if is_of_numbers else texts[label],
        clients=None if client is None else texts[client],
        persons=None if person is None else texts[person],
    )


def _columns_to_read(
    data_format: DataFormat, columns: Sequence[str], *units: str | None
) -> tuple[list[str], list[str]]:
    """Columns to read as numbers, a label last, and columns to read as texts."""
    label, is_of_numbers = data_format.label_column, data_format.label_range is not None
    features, labels = list(columns), [label]
    texts = [name for name in units if name is not None]
    if encoding_of(data_format) is not None:
        features, texts = [], [*columns, *texts]
    if is_of_numbers:
        return [*features, *labels], list(dict.fromkeys(texts))
    return features, list(dict.fromkeys([*labels, *texts]))


def _as_they_are(
    file: Path,
    x: NDArray[np.float64],
    columns: tuple[str, ...],
    split: str,
    data_format: DataFormat,
) -> NDArray[np.float32]:
    """Columns of numbers, scaled if there is a public scale; `x` may also have the label, last."""
    of_other_types = int((~of_types(x, data_format.types)).sum())
    if of_other_types:
        raise ValueError(
            f"{file}: {of_other_types} rows hold a value that is not of its column's type in "
            f"the schema: {listed([*(data_format.types or ())])}"
        )
    features = x[:, : len(columns)]
    if data_format.columns is None:
        counting = [
            name for name, values in zip(columns, features.T, strict=True) if _counts(values)
        ]
        _refuse_index(file, counting)
    scaled = _scaled(features, data_format)
    narrow = _narrow(scaled)
    _refuse_infinite(file, columns, narrow)
    if split == "test" or data_format.is_shared:  # one node's values can be close by chance
        _refuse_rounded(file, columns, scaled, narrow)
    return narrow


def _encoded(
    file: Path, cells: Sequence[Cells], names: Sequence[str], encoding: Sequence[Column]
) -> NDArray[np.float32]:
    """Columns as the schema encodes them.

    Raises:
        ValueError: If a cell is none of its column's; the text has no cell.
    """
    x, end = encoded_rows(encoding, cells), 0
    wrong = []
    for name, column in zip(names, encoding, strict=True):
        start, end = end, end + column.width
        misfits = int(np.isnan(x[:, start:end]).any(axis=1).sum())
        if misfits:
            wrong.append(f"{name!r} ({misfits})")
    if wrong:
        raise ValueError(
            f"{file}: cells that the schema does not describe in {', '.join(wrong)}: add their "
            "categories, or missing: ['*'], by which any other cell has no value"
        )
    return _narrow(x)


def _cells(column: Any, file: Path) -> Cells:
    """A column's cells as texts, empty without a value."""
    arrow = optional_import("pyarrow", extra="tables", task=file.suffix[1:])
    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    texts = column.cast(arrow.string()).fill_null("").combine_chunks().dictionary_encode()
    codes = texts.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return Cells(texts.dictionary.to_pylist(), codes)


def _require_persons_apart(persons: dict[str, _Coded | None], folder: Path) -> None:
    """Check that nobody is in both parts.

    Raises:
        ValueError: Somebody is; the text has no name.
    """
    parts = [set(coded.names) for coded in persons.values() if coded is not None]
    if len(parts) == 2 and (both := parts[0] & parts[1]):
        raise ValueError(
            f"{folder}: {len(both)} persons are in the training and in the test part, which is "
            "public and would be measured on those that the model has seen: give each person one "
            "part, or leave test out and write task.test_fraction=0.2"
        )


def _counts(values: NDArray[np.float64]) -> bool:
    """Tell whether a column is consecutive whole numbers, each once, in any order."""
    number = len(values)
    if number < _FEWEST_COUNTED or np.ptp(values) != number - 1:
        return False
    return np.array_equal(np.sort(values), values.min() + np.arange(number))


def of_types(x: NDArray[np.float64], types: tuple[str, ...] | None) -> NDArray[np.bool_]:
    """Which rows have only values of their columns' types (`DataFormat.types`), bool `(n,)`.

    In `x`, `(n, columns)`, NaN fits only `number`.
    """
    right = np.ones(len(x), dtype=bool)
    for index, kind in enumerate(types or ()):
        values = x[:, index]
        if kind == "integer":
            right &= values == np.floor(values)
        elif kind == "truth":
            right &= (values == 0.0) | (values == 1.0)
    return right


def _numbers(rows: Any, columns: Sequence[str], file: Path) -> NDArray[np.float64]:
    """Put columns of numbers side by side, float64 `(n, columns)`."""
    types = optional_import("pyarrow", extra="tables", task=file.suffix[1:]).types
    kinds = (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_decimal,
        types.is_null,  # no value at all: counted as missing
    )
    no_numbers = []
    for name in columns:
        kind = rows.column(name).type
        if not any(is_kind(kind) for is_kind in kinds):
            no_numbers.append(name)
    if no_numbers:
        raise ValueError(
            f"{file}: columns that are not numbers: {listed(no_numbers)}; describe them in a "
            "schema (`fl-dp data schema`), write them as numbers, or name the features in "
            "task.columns=[...] without them"
        )
    missing = {name: rows.column(name).null_count for name in columns}
    # Not float32 yet, which would round a date before it is scaled.
    x = np.zeros((rows.num_rows, len(columns)), dtype=np.float64)
    for index, name in enumerate(columns):
        if missing[name]:
            continue
        x[:, index] = rows.column(name).to_numpy().astype(np.float64)
        missing[name] = int(np.isnan(x[:, index]).sum())
    _refuse_missing(file, missing)
    _refuse_infinite(file, columns, x)
    return x


def _coded(column: Any, file: Path, name: str, classes: Collection[str]) -> _Coded:
    """A column's values as texts, each once, and each row's index into them."""
    arrow = optional_import("pyarrow", extra="tables", task=file.suffix[1:])
    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    _refuse_missing(file, {name: column.null_count})
    if arrow.types.is_floating(column.type):
        values = column.to_numpy()
        _refuse_missing(file, {name: int(np.isnan(values).sum())})
        not_whole = int((~np.isfinite(values) | (values != np.floor(values))).sum())
        if not_whole:  # 1.0 is a label, 1.5 is none
            raise ValueError(
                f"{file}: {name!r} holds {not_whole} numbers that are not whole: write texts or "
                "whole numbers; of a label that is a number, its range as "
                "task.label_range=[low,high]"
            )
        column = column.cast(arrow.int64())
    try:
        encoded = column.cast(arrow.string()).combine_chunks().dictionary_encode()
    except arrow.ArrowException:
        raise ValueError(f"{file}: {name!r} must hold texts or whole numbers alone") from None
    dictionary = [plain_name(text) for text in encoded.dictionary.to_pylist()]
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    # In the order of the names, so that nothing depends on the order of the rows.
    names = in_order(dictionary)
    number = {text: index for index, text in enumerate(names)}
    codes = np.array([number[text] for text in dictionary], dtype=np.int64)[codes]
    missing = [not n or (n.lower() in MISSING_TEXTS and n not in classes) for n in names]
    _refuse_missing(file, {name: int(np.isin(codes, np.flatnonzero(missing)).sum())})
    if any("\n" in text for text in names):
        raise ValueError(
            f"{file}: {name!r} holds texts of several lines: is a quote opened and not closed?"
        )
    return _Coded(names, codes)


def _refuse_missing(file: Path, missing: dict[str, int]) -> None:
    columns = [f"{name!r} ({number})" for name, number in missing.items() if number]
    if columns:
        raise ValueError(
            f"{file}: missing values in {', '.join(columns)}: fill them in, leave these rows or "
            "columns out, or describe gaps of features in a schema (`fl-dp data schema`)"
        )


def _integers(parts: dict[str, _Coded], paths: dict[str, Path]) -> tuple[str, ...]:
    """Return "0", "1", ... up to the largest label; all of them must occur."""
    labels = {plain_label(name) for part in parts.values() for name in part.names}
    classes = tuple(str(number) for number in range(len(labels)))
    if len(labels) < 2 or labels != set(classes):
        files = " and ".join(str(paths[split]) for split in parts)
        raise ValueError(
            f"{files}: the labels are not 0, 1, 2, ... without a gap but "
            f"{few_labels(in_order(labels))}; write all classes, which are public, as "
            "task.classes=[name,name]; of a label that is a number, its range as "
            "task.label_range=[low,high]"
        )
    return classes


def _scaled(x: NDArray[np.float64], data_format: DataFormat) -> NDArray[np.float64]:
    if data_format.mean is None or data_format.std is None:
        return x
    scaled: NDArray[np.float64] = (x - np.array(data_format.mean)) / np.array(data_format.std)
    return scaled


def _narrow(x: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        return x.astype(np.float32)


def _refuse_infinite(file: Path, columns: Sequence[str], x: NDArray[Any]) -> None:
    infinite = [name for name, values in zip(columns, x.T, strict=True) if np.isinf(values).any()]
    if infinite:
        raise ValueError(f"{file}: columns with infinite values: {listed(infinite)}")


def _refuse_rounded(
    file: Path, columns: Sequence[str], exact: NDArray[np.float64], narrow: NDArray[np.float32]
) -> None:
    """Refuse columns of values so large and close together that float32 merges them."""
    rounded = []
    for name, values, float32 in zip(columns, exact.T, narrow.T, strict=True):
        if len(values) and np.abs(values - float32).max() > _FINEST * np.ptp(values) > 0.0:
            rounded.append(name)
    if rounded:
        raise ValueError(
            f"{file}: columns of large numbers that differ little, as dates do, which float32 "
            f"would round to each other: {listed(rounded)}; write public numbers near their mean "
            "and deviation as task.mean=[...] task.std=[...], one for each column"
        )
