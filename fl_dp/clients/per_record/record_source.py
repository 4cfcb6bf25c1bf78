"""Records that DP-SGD trains on: a whole data set, each record in one row of it.

    >>> RecordSource(my_records)  # a data set, collated by PyTorch's default
    >>> RecordSource(DataLoader(Subset(everything, mine), collate_fn=RecordWise(my_collation)))

DP-SGD draws its own batches from a loader's data set. A sampler that chooses rows would be ignored,
and the training would read all others, too. A record in six rows would move a sum by six clipping
norms. Both are refused, by the loader's arguments and a `Subset`'s indices; no record is read.
Equal records in different rows are not looked for: the answer would tell who is in the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from .persons import Persons


class Rows(Protocol):
    """A data set of any library: numbered rows."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def __getitem__(self, row: int, /) -> Any:
        """Return one row."""


Source: TypeAlias = DataLoader[Any] | Dataset[Any] | Rows
"""A data set of records, or a loader of all of them."""


class RecordSource:
    """A loader that is used whole.

    Attributes:
        loader: Its data set, collation and workers are used.
        unit: `record`, or `person`.
    """

    def __init__(self, source: Source, *, unit: str = "record") -> None:
        """Take a data set or a loader, of the promise's units: `record` or `person` (`Persons`).

        Of `DataLoader`'s arguments these are used: `dataset`, `collate_fn`, `num_workers`,
        `timeout`, `worker_init_fn`, `multiprocessing_context`, `pin_memory`.

        Raises:
            ValueError: An argument of the loader would have no effect, rows have no numbers, one
                record is in several rows, or units are others. The text says what to write.
        """
        if isinstance(source, DataLoader):
            require_rows(source.dataset)
            _require_effective(source)
            self.loader: DataLoader[Any] = source
        else:
            require_rows(source)
            self.loader = DataLoader(cast(Dataset[Any], source))
        self.unit = unit
        require_units(self.loader.dataset, unit)
        dataset = self.loader.dataset
        require_single_rows(dataset.records if isinstance(dataset, Persons) else dataset)

    def __len__(self) -> int:
        """Number of records; it stays private."""
        return len(self.loader.dataset)  # type: ignore[arg-type]  # checked: it has a length


def record_source_fn(
    source: Source | Callable[[], Source], *, unit: str
) -> Callable[[], RecordSource]:
    """Return a function that reads a source, which is checked now unless it is a function itself.

    `unit` is as of `RecordSource`.

    Raises:
        ValueError: As `RecordSource`.
    """
    if callable(source) and not hasattr(type(source), "__getitem__"):
        make = source
        return lambda: RecordSource(make(), unit=unit)
    ready = RecordSource(cast(Source, source), unit=unit)
    return lambda: ready


def require_rows(dataset: Any) -> None:
    """Check that a data set has numbered rows.

    Raises:
        ValueError: It has none, is several data sets, or its rows can be no pairs.
    """
    if isinstance(dataset, dict):
        raise ValueError(
            f"a {type(dataset).__name__} holds several data sets: write one of them, such as "
            f"data[{next(iter(dataset), 'train')!r}]"
        )
    if isinstance(dataset, str | bytes | range | np.ndarray | Tensor):
        raise ValueError(
            f"rows of a {type(dataset).__name__} are no pairs of inputs and targets: write "
            "TensorDataset(inputs, targets)"
        )
    numbered = all(hasattr(type(dataset), name) for name in ("__getitem__", "__len__"))
    if isinstance(dataset, IterableDataset) or not numbered:
        raise ValueError(
            f"rows of a {type(dataset).__name__} can't be drawn: write list(records), or a data "
            "set with __getitem__ and __len__"
        )


def _require_effective(loader: DataLoader[Any]) -> None:
    """Check that no argument would leave out what DP-SGD reads, or claim what it does not do."""
    # Others decide about order and speed alone, which DP-SGD replaces by coins and batches of its
    # own: batch_size, shuffle, generator, prefetch_factor, persistent_workers, pin_memory_device,
    # in_order. worker_init_fn and multiprocessing_context concern no loader without workers.
    some_rows = "write DataLoader(Subset(everything, mine)) to train on some rows"
    sampler, batches = loader.sampler, loader.batch_sampler
    if loader.batch_size is None and batches is not None:
        raise ValueError(f"batch_sampler={type(batches).__name__} would be ignored: {some_rows}")
    if loader.batch_size is None:
        raise ValueError("batch_size=None makes no batches, and DP-SGD draws its own: leave it out")
    if not _takes_all(sampler, loader.dataset) or type(batches) is not BatchSampler:
        raise ValueError(f"sampler={type(sampler).__name__} would be ignored: {some_rows}")
    if loader.drop_last:
        raise ValueError("drop_last=True has no effect, as DP-SGD draws its batches: leave it out")
    if loader.timeout and not loader.num_workers:
        raise ValueError(f"timeout={loader.timeout:g} needs workers: write num_workers=1")
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ValueError(
            f"{type(loader).__name__}.__iter__ would be ignored: write a torch DataLoader of the "
            "same data set and collation"
        )


def _takes_all(sampler: Any, dataset: Any) -> bool:
    """Whether a sampler takes each row of a data set once, as PyTorch's default ones do."""
    if type(sampler) is SequentialSampler:
        return sampler.data_source is dataset
    return (
        type(sampler) is RandomSampler
        and sampler.data_source is dataset
        and not sampler.replacement
        and sampler._num_samples is None  # a number of rows, if somebody has written one
    )


def require_units(dataset: Any, unit: str) -> None:
    """Check that a data set's items are the promise's units.

    Raises:
        ValueError: They are not.
    """
    of_persons = isinstance(dataset, Persons)
    if not of_persons and any(isinstance(part, Persons) for part in innermost(dataset)):
        raise ValueError(
            "persons are put together last, so that nobody is in two of them: write "
            "Persons(Subset(everything, mine), persons_of_mine)"
        )
    if of_persons and unit != "person":
        raise ValueError(
            "Persons(...) has persons, and the promise is to records, of which each may move a "
            "sum: write unit='person' in the plan, or hand over the records themselves"
        )
    if unit == "person" and not of_persons:
        raise ValueError(
            "the promise is to persons, and nothing says whose each row is: write "
            "Persons(records, persons)"
        )


def require_single_rows(dataset: Any) -> None:
    """Check that no record is in several rows, as far as subsets and concatenations tell.

    Raises:
        ValueError: One is.
    """
    if not isinstance(dataset, Subset | ConcatDataset):
        return  # nothing tells its rows apart
    origins = origins_of(dataset)
    if len(np.unique(origins, axis=0)) < len(origins):
        raise ValueError(
            "several rows are the same record, which would count as another one each time: name "
            "each row once in Subset(everything, mine), and each data set once in ConcatDataset"
        )


def origins_of(dataset: Any) -> NDArray[np.int64]:
    """Each row's innermost data set, by its `id`, and number there, `(n, 2)`."""
    return _origins(dataset, np.arange(len(dataset)))


def innermost(dataset: Any) -> Iterator[Any]:
    """The data sets within subsets and concatenations."""
    if isinstance(dataset, Subset):
        yield from innermost(dataset.dataset)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield from innermost(part)
    else:
        yield dataset


def _origins(dataset: Any, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    if isinstance(dataset, Subset):
        return _origins(dataset.dataset, np.asarray(dataset.indices, dtype=np.int64)[rows])
    if (rows < 0).any():
        rows = np.where(rows < 0, rows + len(dataset), rows)
    if not isinstance(dataset, ConcatDataset):
        return np.stack([np.full_like(rows, id(dataset)), rows], axis=1)
    ends = np.asarray(dataset.cumulative_sizes)
    begins = np.concatenate([[0], ends[:-1]])
    parts = np.searchsorted(ends, rows, side="right")
    origins = np.empty((len(rows), 2), dtype=np.int64)
    for number, part in enumerate(dataset.datasets):
        in_part = parts == number
        origins[in_part] = _origins(part, rows[in_part] - begins[number])
    return origins
