"""Persons with several rows, as the units that DP-SGD samples, clips and charges for.

    >>> Persons(visits, patients)  # each row's person, for instance a column of the data set

A person's gradient is the mean of its rows' gradients, clipped once: however many rows there are,
a person moves a sum by at most the clipping norm. Coins are the persons', not the rows'.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import DataLoader, Dataset

from .clipped_gradients import mapped
from .record_batches import Batch, BatchForm, RecordBatches, joined_alike

logger = logging.getLogger("flwr.fl_dp.client")

NOBODY = -1
"""Person of a row that belongs to nobody, and is not used."""


class Persons(Dataset[list[Any]]):
    """A data set of persons, each with all of its rows.

    Attributes:
        records: The rows, as any data set of records.
        rows: Each person's row numbers, int64.
    """

    def __init__(self, records: Any, persons: Sequence[Any] | ArrayLike) -> None:
        """Put together the rows of each person.

        Args:
            records: A data set with numbered rows.
            persons: Each row's person, `(n,)`: numbers or texts. `NOBODY` among numbers: no one.

        Raises:
            ValueError: Rows and persons differ in number.
        """
        self.records = records
        names = np.asarray(persons)
        if names.shape != (len(records),):
            raise ValueError(
                f"{len(records)} rows, and persons of shape {names.shape}: give one person a row"
            )
        self.rows = rows_of_persons(names)

    def __len__(self) -> int:
        """Number of persons."""
        return len(self.rows)

    def __getitem__(self, person: int) -> list[Any]:
        """Return the rows of one person."""
        return [self.records[int(row)] for row in self.rows[person]]


def rows_of_persons(persons: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Return each person's row numbers, in the order of their names; rows of nobody are left out.

    `persons` has each row's, `(n,)`.
    """
    of_somebody = np.arange(len(persons))
    if persons.dtype.kind in "if":
        of_somebody = np.flatnonzero(persons != NOBODY)
    _, person = np.unique(persons[of_somebody], return_inverse=True)
    order = np.argsort(person, kind="stable")
    ends = np.cumsum(np.bincount(person)) if len(person) else np.empty(0, dtype=np.int64)
    return np.split(of_somebody[order], ends[:-1]) if len(person) else []


class PersonBatches(Dataset[list[Batch]]):
    """Makes batches of chosen persons, each with those of its rows that can be used.

    A person's rows are one more dimension, after the persons; persons with other numbers of rows
    make separate batches. Somebody whose rows differ in shape, or can't be used, has no batch.
    """

    def __init__(self, batches: RecordBatches, persons: Persons) -> None:
        """Read by `batches` of the persons' records."""
        self._batches, self._persons = batches, persons
        self._complained = False

    def __getitems__(self, persons: list[int]) -> list[Batch]:
        """Return some persons' batches."""
        batches = [self.alone(person) for person in persons]
        return joined_alike([batch for batch in batches if batch is not None])

    def alone(self, person: int) -> Batch | None:
        """Return a batch of one person; None without usable rows of one shape."""
        rows: list[int] = self._persons.rows[person].tolist()
        read = [batch for batch in self._batches.__getitems__(rows) if len(batch[1])]
        if len(read) == 1:
            inputs, targets = mapped(lambda tensor: tensor[None], read[0])
            return inputs, targets
        if len(read) > 1 and not self._complained:  # the text stays on the node
            logger.warning(
                "the rows of a person differ in shape, and it counts as none: pad them to one "
                "length (FixedLengthPadding)"
            )
            self._complained = True
        return None


def batches_of(loader: DataLoader[Any], form: BatchForm) -> RecordBatches | PersonBatches:
    """Return what makes batches of a loader's records, or of its persons."""
    dataset = loader.dataset
    if isinstance(dataset, Persons):
        return PersonBatches(RecordBatches(dataset.records, loader.collate_fn, form), dataset)
    return RecordBatches(dataset, loader.collate_fn, form)
