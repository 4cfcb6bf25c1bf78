"""Batches in which each record is what it would be alone.

Clipping bounds what one record adds to a sum, not its effect on other records. Collation can cause
one: padding to a batch's longest record changes all others. So records are read one at a time,
each with its own coins, and a user's collation gets each alone. The results are joined; records of
different shapes or dtypes make separate batches. Neither PyTorch's default collation nor a
`TensorDataset` can mix records. Authors may declare the same of other code; it gets whole batches,
which is faster:

    >>> DataLoader(records, collate_fn=RecordWise(my_collation))
    >>> class MyRecords(Dataset):
    ...     record_wise = True  # its `__getitems__` is

A record that can't be read or collated is left out alone. Nothing here sees whether an item of a
data set is made of one record. Authors must avoid mix-up, overlapping windows and statistics of
the whole set: these put several records into one item.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from fl_dp.user_code import Contained, own_chance

from .plain_items import has_columns, with_tensors

_UNUSABLE = "a record can't be used, and counts as none"

TARGET_KEYS = ("label", "labels", "target", "targets")
"""Default names of the targets in a batch that is a mapping; one of them has to be there."""


class RecordWise:
    """A collation that treats each record the same, whatever others are in the batch.

    By wrapping it you promise this, and it gets whole batches. If it does not hold, one record can
    move a step by more than the clipping norm. A data set's attribute `record_wise` promises the
    same of its `__getitems__`.
    """

    record_wise = True

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        """Wrap a collation."""
        self._collate = collate

    def __call__(self, records: Any) -> Any:
        """Collate records."""
        return self._collate(records)


class FixedLengthPadding(RecordWise):
    """Pads or cuts each sequence to one fixed length, then collates by PyTorch's default.

        >>> DataLoader(texts, collate_fn=FixedLengthPadding(128))

    Records are tuples or mappings. Every part with a first dimension is a sequence along it:
    tokens, attention masks, targets per position.
    """

    def __init__(self, length: int, *, value: float = 0) -> None:
        """Set the length.

        Args:
            length: Positions of each sequence, at least 1; a public constant.
            value: Fills missing positions.

        Raises:
            ValueError: The length is not positive.
        """
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        super().__init__(self._padded_batch)
        self._length = length
        self._value = value

    def _padded_batch(self, records: Any) -> Any:
        return default_collate([self._padded(record) for record in records])

    def _padded(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: self._padded(item) for name, item in value.items()}
        if isinstance(value, tuple) or (isinstance(value, list) and not _numbers(value)):
            return tuple(self._padded(item) for item in value)
        if isinstance(value, str):
            return value
        sequence = torch.as_tensor(value)
        if not sequence.ndim:
            return sequence
        sequence = sequence[: self._length]
        missing = self._length - len(sequence)
        return pad(sequence, (0, 0) * (sequence.ndim - 1) + (0, missing), value=self._value)


@dataclass(frozen=True)
class BatchForm:
    """Where a batch has its inputs and its targets.

    Attributes:
        inputs: See `DPSGD.input_key`.
        targets: The targets' key. None: one of `TARGET_KEYS`.
    """

    inputs: str | tuple[str, ...] | None = None
    targets: str | None = None

    def split(self, batch: Any) -> tuple[Any, Tensor]:
        """Return inputs, as the model takes them, and targets.

        Of a tuple or a list the targets are the last item; several items before them are the
        model's positional arguments.

        Raises:
            ValueError: It is unclear which is which; the text names the keys.
        """
        if isinstance(batch, Mapping):
            return self._split_mapping(batch)
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise ValueError(
                f"a batch is a {type(batch).__name__}: let it be (inputs, targets), or a mapping "
                "with a key 'label'"
            )
        *inputs, targets = batch
        if len(inputs) == 1:
            return inputs[0], targets
        return tuple(inputs), targets

    def _split_mapping(self, batch: Mapping[str, Any]) -> tuple[Any, Tensor]:
        keys = ", ".join(repr(key) for key in batch)
        candidates = list(TARGET_KEYS) if self.targets is None else [self.targets]
        target_keys = [key for key in candidates if key in batch]
        if len(target_keys) != 1:
            raise ValueError(
                f"a batch has the keys {keys}: write DPSGD(target_key=...), the one of the targets"
            )
        [target_key] = target_keys
        targets = batch[target_key]
        if isinstance(self.inputs, str) and self.inputs in batch:
            return batch[self.inputs], targets
        if isinstance(self.inputs, tuple) and all(key in batch for key in self.inputs):
            return {key: batch[key] for key in self.inputs}, targets
        tensor_keys = [key for key, item in batch.items() if isinstance(item, Tensor)]
        others = [key for key in tensor_keys if key != target_key]
        if self.inputs is not None or len(others) != 1:
            raise ValueError(
                f"a batch has the keys {keys}: write DPSGD(input_key=...), one of them, or a tuple "
                "of those that are the model's keyword arguments"
            )
        return batch[others[0]], targets


Batch = tuple[Any, Tensor]
Source = TypeVar("Source")
Result = TypeVar("Result")


class RecordBatches(Dataset[list[Batch]]):
    """Makes batches of chosen records, without those that can't be used."""

    def __init__(self, records: Any, collate: Callable[[Any], Any] | None, form: BatchForm) -> None:
        """Read from a data set.

        Args:
            records: A data set with `__getitem__`, or with `__getitems__`, which gets one row at a
                time unless the data set is `record_wise`.
            collate: The user's collation. None: PyTorch's default, after `with_tensors`.
            form: Where a batch has inputs and targets.
        """
        self._records = records
        self._collate = default_collate if collate is None else collate
        self._collates_rows = self._collate is default_collate or _is_record_wise(self._collate)
        inner = records
        while type(inner) is Subset:
            inner = inner.dataset
        self._are_tensors = type(inner) is TensorDataset and self._collate is default_collate
        self._are_record_wise = self._collates_rows and _is_record_wise(inner)
        self._of_table = has_columns(records)
        self._form = form
        self._complained = False

    def __getitems__(self, rows: list[int]) -> list[Batch]:
        """Return some records' batches: one, more where shapes differ, or none."""
        if rows and self._are_tensors:  # no user's code reads tensors
            with Contained():  # on failure each is read alone
                return [self._at_once(rows)]
        with own_chance() as seed_again:

            def successes(
                make: Callable[[Source], Result | None], sources: Iterable[Source]
            ) -> list[Result]:
                results = []
                for source in sources:
                    # Logged once, as it may be every record. The text stays on the node.
                    line = None if self._complained else _UNUSABLE
                    seed_again()
                    # Unnamed: a kept failure would hold this frame, and the records in it.
                    with Contained(line):
                        if (result := make(source)) is not None:
                            results.append(result)
                        continue
                    self._complained = True
                return results

            if rows and self._are_record_wise:
                with Contained():  # on failure each is read alone
                    return [self._at_once(rows)]
            items = successes(self._read, rows)
            if items and self._collates_rows and all(map(_is_one_record, items)):
                seed_again()
                with Contained():  # on failure each is collated alone
                    records = [record for [record] in items]
                    if len({_kind(record) for record in records}) == 1:
                        return [self._batch(records)]
            batches = successes(self._one, items)
        return joined_alike(batches)

    def alone(self, row: int) -> Batch | None:
        """Return a batch of one record; None if the data set itself leaves it out.

        Raises:
            ValueError: It is no batch of one.
            Exception: Any error of the data set or the collation.
        """
        return self._one(self._read(row))

    def _at_once(self, rows: list[int]) -> Batch:
        """Return a batch of rows that don't meet when read."""
        records = self._records
        while type(records) is Subset:
            rows, records = [int(records.indices[row]) for row in rows], records.dataset
        if self._are_tensors:
            return self._form.split(tuple(tensor[rows] for tensor in records.tensors))
        batch = self._batch(records.__getitems__(rows))
        if len(batch[1]) > len(rows):
            raise ValueError(f"{len(rows)} records make a batch of {len(batch[1])}")
        return batch

    def _read(self, row: int) -> Any:
        """Return a list of one record, or the data set's own batch of one."""
        if hasattr(self._records, "__getitems__"):
            return self._records.__getitems__([row])
        return [self._records[row]]

    def _one(self, item: Any) -> Batch | None:
        """Return one item's batch, as `alone` does."""
        batch = self._batch(item)
        if len(batch[1]) > 1:
            raise ValueError(f"one record makes a batch of {len(batch[1])}")
        if not len(batch[1]):
            return None
        return batch

    def _batch(self, items: Any) -> Batch:
        """Return inputs and targets.

        Raises:
            TypeError: The targets are no tensor, or an input is none.
            ValueError: Inputs and targets differ in their number of records.
        """
        if self._collate is default_collate and isinstance(items, list):
            items = [with_tensors(item, of_table=self._of_table) for item in items]
        batch = self._form.split(self._collate(items))
        if not isinstance(batch[1], Tensor):
            raise TypeError(
                f"the targets of a batch are a {type(batch[1]).__name__}: let them be one tensor"
            )
        sizes = {shape[:1] for _, shape, *_ in _shapes(batch)}
        if len(sizes) != 1 or sizes == {()}:
            raise ValueError(
                f"a batch has sizes {sorted(sizes)}: let its first dimension be records"
            )
        return batch


def _is_record_wise(source: Any) -> bool:
    return getattr(source, "record_wise", False) is True


def _is_one_record(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 1


def joined_alike(batches: Iterable[Batch]) -> list[Batch]:
    """Join the batches that agree in shapes, dtypes, devices and layouts."""
    alike: dict[Any, list[Batch]] = {}
    for batch in batches:
        alike.setdefault(_shapes(batch), []).append(batch)
    return [_joined(group) for group in alike.values()]


def _kind(value: Any) -> Any:
    """The types in a record: one float would turn a batch's integers into floats."""
    if isinstance(value, Tensor | np.ndarray):
        return type(value), value.dtype
    if isinstance(value, Mapping):
        return frozenset((name, _kind(item)) for name, item in value.items())
    if isinstance(value, list) and _numbers(value):
        return frozenset(type(item) for item in value)
    if isinstance(value, tuple | list):
        return tuple(_kind(item) for item in value)
    return type(value)


def _numbers(value: list[Any]) -> bool:
    return all(isinstance(item, int | float) for item in value)


def _shapes(tree: Any, path: tuple[Any, ...] = ()) -> tuple[tuple[Any, ...], ...]:
    """The paths, shapes and other properties that joined tensors share."""
    if isinstance(tree, Tensor):
        return ((path, tuple(tree.shape), tree.dtype, tree.device, tree.layout),)
    branches: Iterable[tuple[Any, Any]]
    if isinstance(tree, Mapping):
        branches = [(name, tree[name]) for name in tree]
    elif isinstance(tree, tuple | list):
        branches = enumerate(tree)
    else:
        raise TypeError(f"a batch holds a {type(tree).__name__} where a tensor is needed")
    shapes = [_shapes(branch, (*path, name)) for name, branch in branches]
    return tuple(itertools.chain.from_iterable(shapes))


def _joined(trees: Sequence[Any]) -> Any:
    first = trees[0]
    if len(trees) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if isinstance(first, Mapping):
        return {name: _joined([tree[name] for tree in trees]) for name in first}
    return tuple(_joined(parts) for parts in zip(*trees, strict=True))
