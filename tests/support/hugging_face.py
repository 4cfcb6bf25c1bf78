"""A table that behaves like `datasets.Dataset` of Hugging Face, which is no dependency of fl-dp.

Written from the library's documentation: rows are dictionaries; a slice or a list of rows is a
dictionary of lists; a text names a column; `__getitems__` returns a list of dictionaries;
`with_transform` gets a batch; `with_format("torch")` makes tensors, pictures uint8 and channels
first. Partitions of flwr-datasets are such tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

Batch = dict[str, Any]


class Table:
    """Columns by name, in memory."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = {name: list(values) for name, values in columns.items()}
        self._transform: Callable[[Batch], Batch] | None = None

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    @property
    def features(self) -> dict[str, str]:
        return {name: type(values[0]).__name__ for name, values in self._columns.items()}

    @property
    def num_rows(self) -> int:
        return len(self)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))

    def __iter__(self) -> Iterator[Batch]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: int | slice | str | Iterable[int]) -> Any:
        if isinstance(key, str):
            return self[:][key]
        if isinstance(key, int | np.integer):
            if not -len(self) <= key < len(self):
                raise IndexError(f"Invalid key: {key} is out of bounds for size {len(self)}")
            return {name: values[0] for name, values in self[[int(key)]].items()}
        rows = range(len(self))[key] if isinstance(key, slice) else list(key)
        batch = {name: [values[row] for row in rows] for name, values in self._columns.items()}
        return batch if self._transform is None else self._transform(batch)

    def __getitems__(self, keys: list[int]) -> list[Batch]:
        batch = self[keys]
        count = len(batch[next(iter(batch))])
        return [{name: values[row] for name, values in batch.items()} for row in range(count)]

    def remove_columns(self, names: str | list[str]) -> Self:
        removed = [names] if isinstance(names, str) else names
        return type(self)({name: self[name] for name in self.column_names if name not in removed})

    def with_transform(self, transform: Callable[[Batch], Batch]) -> Self:
        table = type(self)(self._columns)
        table._transform = transform
        return table

    def with_format(self, kind: str) -> Self:
        assert kind == "torch"
        return self.with_transform(_in_torch)

    def set_format(self, kind: str) -> None:
        assert kind == "torch"
        self._transform = _in_torch

    def select(self, rows: Iterable[int]) -> Self:
        table = type(self)({name: [v[row] for row in rows] for name, v in self._columns.items()})
        table._transform = self._transform
        return table


class Splits(dict[str, Table]):
    """As `datasets.DatasetDict`."""

    @property
    def column_names(self) -> dict[str, list[str]]:
        return {name: table.column_names for name, table in self.items()}


def _in_torch(batch: Batch) -> Batch:
    columns = {name: [_tensor(value) for value in values] for name, values in batch.items()}
    return {
        name: torch.stack(values) if len({value.shape for value in values}) == 1 else values
        for name, values in columns.items()
        if all(isinstance(value, Tensor) for value in values)
    } | {name: values for name, values in batch.items() if isinstance(values[0], str)}


def _tensor(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if hasattr(value, "getbands"):
        pixels = np.array(value)
        return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)
    array = np.asarray(value)
    return torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else np.int64))
