"""Records and labels of arrays or a data set, as tensors by client."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from fl_dp.clients.per_record.plain_items import has_columns, with_tensors
from fl_dp.clients.per_record.record_batches import TARGET_KEYS
from fl_dp.clients.per_record.record_source import Rows, require_rows
from fl_dp.ledger import Population
from fl_dp.ledger.fingerprint import fingerprint
from fl_dp.tasks.datasets.partitions import partition as partition_of

from .shared_memory import require_apart

Values: TypeAlias = NDArray[Any] | Tensor
Data: TypeAlias = tuple[Values, Values] | Dataset[Any] | Rows
"""Records and their labels, as two arrays; or a PyTorch data set of such pairs; or a data set of
Hugging Face with a column of records and one of labels."""

Pair: TypeAlias = tuple[Tensor, Tensor]
"""Records, `(n, ...)`, in floating point or int64; labels, `(n,)`, in the same.

They may share memory with the caller's arrays: foreign code gets `fresh` ones."""

Persons: TypeAlias = Sequence[Any] | Values | str
"""Each row's person, as numbers or texts; or the name of a data set's column that has them."""

_ARRAYS = (np.ndarray, Tensor)
logger = logging.getLogger("flwr.fl_dp")


def client_parts(
    clients: Sequence[Data] | Data,
    partition: int | Sequence[Sequence[int]] | None,
    test: Data | None = None,
    *,
    persons: Persons | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> tuple[list[Pair], Pair | None]:
    """Records and labels of each client, and of the test.

    Args:
        clients: Data of each client; or one data set, with a partition.
        partition: Rows of each client, or the number of clients, to whom rows are dealt evenly.
        test: Public data, if any.
        persons: Each row's person in one data set, or the name of its column; one person's rows
            are dealt to one client. None: everybody has one row.
        dtype: Type of floating-point numbers, the module's.
        seed: Seed of the dealing: by the same one clients get the same rows.

    Raises:
        ValueError: There are no clients, none has a record, a row does not exist or is dealt
            twice, rows of one person are at two clients, or the test shares memory with a client's
            data.
        TypeError: Something is not data, or one data set has no partition.
    """
    alone = _is_dataset(clients) or (
        isinstance(clients, tuple) and len(clients) == 2 and isinstance(clients[0], _ARRAYS)
    )
    dealt: Sequence[Any] | None = None
    if partition is None and persons is not None:
        raise ValueError("persons are of one data set, whose rows are dealt: write partition=100")
    if partition is None:
        if alone:
            raise TypeError("one data set needs the rows of each client: write partition=100")
        several = list(cast(Sequence[Data], clients))
        pairs = [tensors_of(data, f"client {number}", dtype) for number, data in enumerate(several)]
        if not pairs:
            raise ValueError("there are no clients: give each one's records and labels")
    else:
        one, person = _with_persons(cast(Data, clients), persons)
        several = [one]
        records, labels = tensors_of(one, "the data set", dtype)
        if person is not None and person.shape != labels.shape:
            raise ValueError(
                f"there are {len(labels)} rows, and persons of shape {person.shape}: give one "
                "person a row"
            )
        if isinstance(partition, int):
            dealt = partition_of(
                labels.numpy(), num_clients=partition, kind="iid", seed=seed, persons=person
            )
        else:
            dealt = [_rows(part) for part in _parts(partition)]
            _require_dealt_once(dealt, len(labels))
            if person is not None:
                _require_whole_persons(dealt, person)
        pairs = [(records[rows], labels[rows]) for rows in dealt]
    without_records = sum(not len(labels) for _, labels in pairs)
    if without_records == len(pairs):
        raise ValueError("no client has a record, so the budget would pay for noise alone")
    if without_records:
        logger.warning(
            "%d of %d clients have no records and contribute nothing", without_records, len(pairs)
        )
    if test is None:
        return pairs, None
    public = tensors_of(test, "test", dtype)
    if not len(public[1]):
        raise ValueError("test holds no records, which measure nothing: leave it out")
    require_apart(several, test, None if dealt is None else np.concatenate(dealt))
    return pairs, public


def fresh(pair: Pair) -> Pair:
    """A copy for code that may write into what it gets."""
    records, labels = pair
    return records.clone(), labels.clone()


def _is_dataset(data: Any) -> bool:
    return isinstance(data, Dataset) or hasattr(data, "column_names")


def _with_persons(data: Data, persons: Persons | None) -> tuple[Data, NDArray[np.int64] | None]:
    """Return the data without the column of persons, and each row's person as a number."""
    if persons is None:
        return data, None
    if isinstance(persons, str):
        table = cast(Any, data)
        if not has_columns(data) or persons not in table.column_names:
            raise ValueError(
                f"the data set has no column {persons!r} of persons: name one of its columns, or "
                "give each row's person, persons=[...]"
            )
        data, persons = table.remove_columns(persons), table[persons]
    _, person = np.unique(np.asarray(persons), return_inverse=True)
    return data, person.astype(np.int64)


def _require_whole_persons(dealt: Sequence[NDArray[np.int64]], person: NDArray[np.int64]) -> None:
    at_client = np.concatenate([np.unique(person[rows]) for rows in dealt])
    if divided := len(at_client) - len(np.unique(at_client)):
        raise ValueError(
            f"partition divides {divided} persons over several clients, and what is promised to a "
            "client covers its own rows: give a person's rows to one client"
        )


def _parts(partition: Any) -> Sequence[Any]:
    if isinstance(partition, float):
        raise TypeError(
            f"partition must be a whole number of clients or each one's rows, got {partition}: "
            f"write partition={partition:.0f}"
        )
    return cast(Sequence[Any], partition)


def _rows(part: Any) -> NDArray[np.int64]:
    rows = np.asarray(part)
    if rows.dtype == np.bool_:
        raise TypeError(
            "partition has a client's rows as True and False: write np.flatnonzero(mask), their "
            "numbers"
        )
    return rows.astype(np.int64).reshape(-1)


def _require_dealt_once(dealt: Sequence[NDArray[np.int64]], num_rows: int) -> None:
    rows = np.concatenate([np.empty(0, dtype=np.int64), *dealt])
    if not dealt or (len(rows) and not 0 <= rows.min() <= rows.max() < num_rows):
        raise ValueError(f"partition must name rows from 0 to {num_rows - 1} for each client")
    if len(np.unique(rows)) < len(rows):
        raise ValueError(
            "partition names a row twice: what is promised to a client covers its own rows, and a "
            "row of two clients counts twice"
        )


def tensors_of(data: Data, name: str, dtype: torch.dtype = torch.float32) -> Pair:
    """Records and labels, from two arrays or a data set, as CPU tensors.

    Labels of shape `(n, 1)` become `(n,)`. A data set without records makes empty tensors.

    Raises:
        ValueError: Records and labels differ in number, or a number is missing or infinite.
        TypeError: `data` is neither, or holds no numbers.
    """
    if _is_dataset(data):
        records, labels = _read(data, name)
    elif isinstance(data, tuple | list) and len(data) == 2:
        records, labels = (_tensor(values, name) for values in data)
    else:
        raise TypeError(
            f"{name}: write (records, labels), two arrays, or a data set of such pairs, got "
            f"{type(data).__name__}"
        )
    if labels.shape[1:] == (1,):
        labels = labels.squeeze(1)
    if labels.dim() != 1 or records.dim() < 1 or len(records) != len(labels):
        raise ValueError(
            f"{name}: records of shape {tuple(records.shape)} and labels of shape "
            f"{tuple(labels.shape)}; labels are one number a record, (n,)"
        )
    return (
        _counted(records.detach().cpu(), f"{name}: records", dtype),
        _counted(labels.detach().cpu(), f"{name}: labels", dtype),
    )


def _read(dataset: Any, name: str) -> Pair:
    """Read all rows of a data set."""
    try:
        require_rows(dataset)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    of_table = has_columns(dataset)
    pairs = []
    for row in range(len(dataset)):
        item = with_tensors(dataset[row], of_table=of_table)
        if isinstance(item, Mapping):
            item = _of_columns(item, name)
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise TypeError(
                f"{name}: a data set must hold pairs of a record and its label, or columns"
            )
        pairs.append(item)
    if not pairs:
        return torch.empty(0), torch.empty(0, dtype=torch.int64)
    records, labels = zip(*pairs, strict=True)
    return _stacked(records, f"{name}: records"), _stacked(labels, f"{name}: labels")


def _of_columns(item: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """Return the record and the label of a row.

    Raises:
        ValueError: A column would have no effect, or one is missing.
    """
    labels = [key for key in TARGET_KEYS if key in item]
    others = [key for key, value in item.items() if key not in labels and _is_numeric(value)]
    if len(labels) != 1 or len(others) != 1:
        raise ValueError(
            f"{name}: its columns are {', '.join(map(repr, item))}: keep one of pictures or lists "
            "of numbers, and one named 'label': data.rename_column('fine_label', 'label')"
            ".select_columns(['img', 'label'])"
        )
    return item[others[0]], item[labels[0]]


def _is_numeric(value: Any) -> bool:
    """Whether a model could read a value; texts are left aside."""
    return isinstance(value, Tensor | np.ndarray | np.generic | int | float)


def _stacked(values: Sequence[Any], name: str) -> Tensor:
    if not any(isinstance(value, Tensor) for value in values):
        return _tensor(values, name)
    tensors = [_tensor(value, name) for value in values]
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes)
        raise ValueError(f"{name} have shapes {first} and {second}: let them have one")
    return torch.stack(tensors)


def _tensor(values: Any, name: str) -> Tensor:
    """Values as a tensor, which may share their memory.

    Raises:
        TypeError: They are no numbers, or lists of different lengths.
    """
    if isinstance(values, Tensor):
        return values
    if hasattr(next(iter(values), None), "getbands"):  # as PIL's pictures
        raise TypeError(
            f"{name}: a module reads numbers, got pictures of PIL: write "
            "np.stack([np.float32(picture) / 255 for picture in pictures])[:, None], channels first"
        )
    try:
        array = np.asarray(values)
        # torch takes neither read-only arrays nor another byte order
        if not (array.flags.writeable and array.dtype.isnative):
            array = array.astype(array.dtype.newbyteorder("="), copy=True)
        return torch.as_tensor(array)
    except (TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        if "inhomogeneous" in reason:
            raise TypeError(
                f"{name}: rows have different lengths: pad or cut all to one, as a module reads "
                "them in batches"
            ) from error
        raise TypeError(f"{name}: no array of numbers ({reason})") from error


def _counted(values: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    """Floating-point numbers in a type, whole ones as int64.

    Raises:
        ValueError: One is not finite: its client's update would be lost and still cost budget. Or
            they are complex, and a part would be lost.
    """
    if values.is_complex():
        raise ValueError(f"{name} are complex numbers: give their real parts, or two columns")
    if not values.is_floating_point():
        return values.to(torch.int64)
    numbers = values.to(dtype)
    not_finite = int((~torch.isfinite(numbers)).sum())
    if not_finite:
        raise ValueError(
            f"{name} hold {not_finite} missing or infinite numbers: fill them in, or leave these "
            "records out"
        )
    return numbers


def population_of_parts(parts: Sequence[Pair]) -> Population:
    """Return the people whose records and labels clients have; who is at which client is theirs."""
    records, labels = (torch.cat(values) for values in zip(*_with_records(parts), strict=True))
    at_clients = sorted(fingerprint(*map(_numbers, part)) for part in _with_records(parts))
    clients = hashlib.sha256("\n".join([str(len(parts)), *at_clients]).encode()).hexdigest()
    return Population(rows=fingerprint(_numbers(records), _numbers(labels)), clients=clients)


def _with_records(parts: Sequence[Pair]) -> list[Pair]:
    return [part for part in parts if len(part[1])]


def _numbers(values: Tensor) -> NDArray[Any]:
    """As float64 or int64, whatever dtype a module asked for."""
    return (values.double() if values.is_floating_point() else values).numpy()
