"""Batches in which each record is what it would be alone.

Clipping bounds what one record adds to a sum. It says nothing of what a record does to the others,
and what makes batches can let it do much: padded to the longest record of the batch, every other
one changes with that. So records are read one at a time, each with chance of its own, and a
collation of one's own gets each alone. The results are put together; records that come out in
different shapes or dtypes make batches of their own. PyTorch's default collation stacks records and
can't mix them, and a `TensorDataset` is rows of tensors. Of other code its author may say that
records don't meet in it. Then it gets whole batches, which is faster:

    >>> DataLoader(records, collate_fn=RecordWise(my_collation))
    >>> class MyRecords(Dataset):
    ...     record_wise = True  # its `__getitems__` is

A record that can't be read, or that the collation can't use, is left out: alone. What nothing here
can see is whether an item of a data set is made of one record. Mix-up, overlapping windows and
statistics of the whole set put several into one, and are for its author to leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from fl_dp.user_code import Contained, own_chance

TARGET_KEYS = ("label", "labels", "target", "targets")
"""Keys of a batch that is a mapping, of which one names the targets unless told otherwise."""


class RecordWise:
    """A collation that makes of each record the same, whatever others are in the batch.

    Wrapped in it, a collation gets whole batches, which is faster. It is a promise of yours: if it
    does not hold, one record can move a step by more than the clipping norm. A data set promises
    the same of its `__getitems__` by the attribute `record_wise`.
    """

    record_wise = True

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        """Wrap a collation."""
        self._collate = collate

    def __call__(self, records: Any) -> Any:
        """Make a batch of records."""
        return self._collate(records)


class FixedLengthPadding(RecordWise):
    """Collates sequences by padding or cutting each to one fixed length, then by PyTorch's default.

        >>> DataLoader(texts, collate_fn=FixedLengthPadding(128))

    Records are tuples or mappings as usual. Everything in them that has a first dimension counts as
    a sequence along it: tokens, attention masks, targets a position.
    """

    def __init__(self, length: int, *, value: float = 0) -> None:
        """Choose a length.

        Args:
            length: Positions of each sequence afterwards, at least 1; a public constant.
            value: What missing positions hold.

        Raises:
            ValueError: If the length is not positive.
        """
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        super().__init__(self._padded_batch)
        self._length = length
        self._value = value

    def _padded_batch(self, records: Any) -> Any:
        return default_collate([self._padded(each) for each in records])

    def _padded(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: self._padded(each) for name, each in value.items()}
        if isinstance(value, tuple) or (isinstance(value, list) and not _numbers(value)):
            return tuple(self._padded(each) for each in value)
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
    """Places of the inputs and the targets in a batch.

    Attributes:
        inputs: Key of the inputs if batches are mappings, or keys, which become the model's keyword
            arguments. None: the only tensor besides the targets.
        targets: Key of the targets. None: one of `TARGET_KEYS`.
    """

    inputs: str | tuple[str, ...] | None = None
    targets: str | None = None

    def split(self, batch: Any) -> tuple[Any, Tensor]:
        """Return inputs, as the model takes them, and targets.

        A tuple or a list holds the targets last; if more than one thing is before them, the model
        gets them as positional arguments.

        Raises:
            ValueError: If it can't be told which is which, naming the keys.
        """
        if isinstance(batch, Mapping):
            return self._split_mapping(batch)
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise ValueError(
                f"a batch is a {type(batch).__name__}: let it be (inputs, targets), or a mapping "
                "with a key 'label'"
            )
        *inputs, targets = batch
        return inputs[0] if len(inputs) == 1 else tuple(inputs), targets

    def _split_mapping(self, batch: Mapping[str, Any]) -> tuple[Any, Tensor]:
        keys = ", ".join(repr(key) for key in batch)
        named = [self.targets] if self.targets is not None else list(TARGET_KEYS)
        found = [key for key in named if key in batch]
        if len(found) != 1:
            raise ValueError(
                f"a batch has the keys {keys}: write DPSGD(target_key=...), the one of the targets"
            )
        targets = batch[found[0]]
        if isinstance(self.inputs, str) and self.inputs in batch:
            return batch[self.inputs], targets
        if isinstance(self.inputs, tuple) and all(key in batch for key in self.inputs):
            return {key: batch[key] for key in self.inputs}, targets
        others = [k for k, each in batch.items() if k != found[0] and isinstance(each, Tensor)]
        if self.inputs is not None or len(others) != 1:
            raise ValueError(
                f"a batch has the keys {keys}: write DPSGD(input_key=...), one of them, or a tuple "
                "of those that are the model's keyword arguments"
            )
        return batch[others[0]], targets


Batch = tuple[Any, Tensor]
T = TypeVar("T")
Made = TypeVar("Made")


class RecordBatches(Dataset[list[Batch]]):
    """Makes batches of chosen records, and leaves out those that can't be used, one by one."""

    def __init__(self, records: Any, collate: Callable[[Any], Any] | None, form: BatchForm) -> None:
        """Read from a data set.

        Args:
            records: With `__getitem__`, or with `__getitems__`, which gets one row at a time unless
                the data set is `record_wise`.
            collate: Of the user's `DataLoader`; None is PyTorch's default.
            form: Where a batch has its inputs and its targets.
        """
        self._records = records
        self._collate = default_collate if collate is None else collate
        self._collates_rows = self._collate is default_collate or _is_record_wise(self._collate)
        inner = records
        while type(inner) is Subset:
            inner = inner.dataset
        self._are_tensors = type(inner) is TensorDataset and self._collate is default_collate
        self._are_record_wise = self._collates_rows and _is_record_wise(inner)
        self._form = form
        self._complained = False

    def __getitems__(self, rows: list[int]) -> list[Batch]:
        """Return the batches of some records: one, unless they differ in shape; or none."""
        if rows and self._are_tensors:  # which no code of a user's reads
            with Contained():  # else each is read alone
                return [self._at_once(rows)]
        with own_chance() as seed_again:

            def or_none(make: Callable[[T], Made], value: T) -> Made | None:
                # Said once, as it may be every record; what the text holds stays on the node.
                said = None if self._complained else "a record can't be used, and counts as none"
                seed_again()
                with Contained(said):
                    return make(value)
                self._complained = True
                return None

            if rows and self._are_record_wise:
                with Contained():  # else each is read alone
                    return [self._at_once(rows)]
            read = [made for row in rows if (made := or_none(self._read, row)) is not None]
            if read and self._collates_rows and all(map(_is_one_record, read)):
                seed_again()
                with Contained():  # else each is collated alone
                    records = [record for [record] in read]
                    if len({_kind(each) for each in records}) == 1:
                        return [self._batch(records)]
            alone = [batch for made in read if (batch := or_none(self._one, made)) is not None]
        return joined_alike(alone)

    def alone(self, row: int) -> Batch | None:
        """Return a batch of one record; None if the data set itself leaves it out.

        Raises:
            ValueError: If it is not a batch of one.
            Exception: Whatever the data set and the collation raise.
        """
        return self._one(self._read(row))

    def _at_once(self, rows: list[int]) -> Batch:
        """Return a batch of rows that don't meet where they are read."""
        records = self._records
        while type(records) is Subset:
            rows, records = [int(records.indices[row]) for row in rows], records.dataset
        if self._are_tensors:
            return self._form.split(tuple(each[rows] for each in records.tensors))
        batch = self._batch(records.__getitems__(rows))
        if len(batch[1]) > len(rows):
            raise ValueError(f"{len(rows)} records make a batch of {len(batch[1])}")
        return batch

    def _read(self, row: int) -> Any:
        """Return a list of one record, or a batch of one that the data set makes itself."""
        if hasattr(self._records, "__getitems__"):
            return self._records.__getitems__([row])
        return [self._records[row]]

    def _one(self, read: Any) -> Batch | None:
        """Return the batch of one record that was read, as `alone` does."""
        batch = self._batch(read)
        if len(batch[1]) > 1:
            raise ValueError(f"one record makes a batch of {len(batch[1])}")
        return batch if len(batch[1]) else None

    def _batch(self, read: Any) -> Batch:
        """Return inputs and targets.

        Raises:
            TypeError: If the targets are no tensor.
            ValueError: If they are not of as many records.
        """
        batch = self._form.split(self._collate(read))
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


def _is_record_wise(made_by_a_user: Any) -> bool:
    return getattr(made_by_a_user, "record_wise", False) is True


def _is_one_record(read: Any) -> bool:
    return isinstance(read, list) and len(read) == 1


def joined_alike(batches: Iterable[Batch]) -> list[Batch]:
    """Return batches in which those of the same shapes, dtypes and devices are joined."""
    alike: dict[Any, list[Batch]] = {}
    for batch in batches:
        alike.setdefault(_shapes(batch), []).append(batch)
    return [_joined(each) for each in alike.values()]


def _kind(value: Any) -> Any:
    """Return the types in a record: one float would make floats of all integers of a batch."""
    if isinstance(value, Tensor | np.ndarray):
        return type(value), value.dtype
    if isinstance(value, Mapping):
        return frozenset((name, _kind(each)) for name, each in value.items())
    if isinstance(value, list) and _numbers(value):
        return frozenset(type(each) for each in value)
    if isinstance(value, tuple | list):
        return tuple(_kind(each) for each in value)
    return type(value)


def _numbers(value: list[Any]) -> bool:
    return all(isinstance(each, int | float) for each in value)


def _shapes(tree: Any, path: tuple[Any, ...] = ()) -> tuple[tuple[Any, ...], ...]:
    """Return path and shape of each tensor, and what else a joint one has to have in common."""
    if isinstance(tree, Tensor):
        return ((path, tuple(tree.shape), tree.dtype, tree.device, tree.layout),)
    if isinstance(tree, Mapping):
        return tuple(x for name in tree for x in _shapes(tree[name], (*path, name)))
    if isinstance(tree, tuple | list):
        return tuple(x for at, each in enumerate(tree) for x in _shapes(each, (*path, at)))
    raise TypeError(f"a batch holds a {type(tree).__name__} where a tensor is needed")


def _joined(trees: Sequence[Any]) -> Any:
    first = trees[0]
    if len(trees) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if isinstance(first, Mapping):
        return {name: _joined([each[name] for each in trees]) for name in first}
    return tuple(_joined(parts) for parts in zip(*trees, strict=True))
