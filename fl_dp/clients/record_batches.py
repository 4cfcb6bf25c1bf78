"""Batches in which each record is what it would be alone.

Clipping bounds what one record adds to a sum. It says nothing of what a record does to the others,
and a collation can let it do much: padded to the longest record of the batch, every other one
changes with that. So a collation of one's own gets each record alone, and the results are put
together; records that come out in different shapes make batches of their own. PyTorch's default
collation stacks records and can't mix them; for another one that can't, say so:

    >>> DataLoader(records, collate_fn=RecordWise(my_collation))

And a record that can't be read, or that the collation can't use, is left out: alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset, default_collate

from fl_dp.user_code import Contained

TARGET_KEYS = ("label", "labels", "target", "targets")
"""Keys of a batch that is a mapping, of which one names the targets unless told otherwise."""


class RecordWise:
    """A collation that makes of each record the same, whatever others are in the batch.

    Wrapped in it, a collation gets whole batches, which is faster. It is a promise of yours: if it
    does not hold, one record can move a step by more than the clipping norm.
    """

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


class RecordBatches(Dataset[list[Batch]]):
    """Makes batches of chosen records, and leaves out those that can't be used, one by one."""

    def __init__(self, records: Any, collate: Callable[[Any], Any] | None, form: BatchForm) -> None:
        """Read from a data set.

        Args:
            records: With `__getitem__`, or `__getitems__` for many at once.
            collate: Of the user's `DataLoader`; None is PyTorch's default.
            form: Where a batch has its inputs and its targets.
        """
        self._records = records
        self._collate = default_collate if collate is None else collate
        self._record_wise = self._collate is default_collate or isinstance(
            self._collate, RecordWise
        )
        self._form = form
        self._complained = False

    def __getitems__(self, rows: list[int]) -> list[Batch]:
        """Return the batches of some records: one, unless they differ in shape; or none."""
        if self._record_wise and rows:
            with Contained():  # else each is read alone
                records = self._read(rows)
                if _alike(records):
                    return [self._form.split(self._collate(records))]
        alone = [batch for row in rows if (batch := self._alone_or_not(row)) is not None]
        return joined_alike(alone)

    def _read(self, rows: list[int]) -> Any:
        if hasattr(self._records, "__getitems__"):
            return self._records.__getitems__(rows)
        return [self._records[row] for row in rows]

    def alone(self, row: int) -> Batch | None:
        """Return a batch of one record; None if the data set itself leaves it out.

        Raises:
            ValueError: If it is not a batch of one.
            Exception: Whatever the data set and the collation raise.
        """
        inputs, targets = self._form.split(self._collate(self._read([row])))
        sizes = {shape[:1] for _, shape, _ in _shapes((inputs, targets))}
        if sizes == {(0,)}:
            return None
        if sizes != {(1,)}:
            raise ValueError(f"one record makes a batch of sizes {sorted(sizes)}")
        return inputs, targets

    def _alone_or_not(self, row: int) -> Batch | None:
        # Said once, as it may be every record; what the text holds stays on the node.
        said = None if self._complained else "a record can't be used, and counts as none"
        with Contained(said):
            return self.alone(row)
        self._complained = True
        return None


def joined_alike(batches: Iterable[Batch]) -> list[Batch]:
    """Return batches in which those of the same shapes and dtypes are joined."""
    alike: dict[Any, list[Batch]] = {}
    for batch in batches:
        alike.setdefault(_shapes(batch), []).append(batch)
    return [_joined(each) for each in alike.values()]


def _alike(records: Any) -> bool:
    """Tell whether records hold the same types: one float would make floats of all integers."""
    if not isinstance(records, list):
        return True  # a batch that the data set made itself
    return len({_kind(each) for each in records}) == 1


def _kind(value: Any) -> Any:
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


def _shapes(tree: Any, path: tuple[Any, ...] = ()) -> tuple[tuple[Any, Any, Any], ...]:
    """Return path, shape and dtype of each tensor."""
    if isinstance(tree, Tensor):
        return ((path, tuple(tree.shape), tree.dtype),)
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
