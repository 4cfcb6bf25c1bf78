"""Records and labels of arrays or a PyTorch data set, as tensors by client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from fl_dp.clients.index_ranges import require_labels
from fl_dp.tasks.datasets.partitions import partition as partition_of

Values: TypeAlias = NDArray[Any] | Tensor
Data: TypeAlias = tuple[Values, Values] | Dataset[Any]
"""Records and their labels, as two arrays; or a PyTorch data set of such pairs."""

Pair: TypeAlias = tuple[Tensor, Tensor]
"""Records, `(n, ...)`, in floating point or int64; labels, `(n,)`, in the same."""

_ARRAYS = (np.ndarray, Tensor)
_DEALT_BY = 0  # seed: clients have the same records whenever they are dealt out again


def parts_of(
    clients: Sequence[Data] | Data, partition: int | Sequence[Sequence[int]] | None
) -> list[Pair]:
    """Records and labels of each client.

    Args:
        clients: Data of each client; or one data set, with a partition.
        partition: Rows of each client, or the number of clients, to whom rows are dealt evenly.

    Raises:
        ValueError: There are no clients, or a row does not exist or is dealt twice.
        TypeError: Something is not data, or one data set has no partition.
    """
    alone = isinstance(clients, Dataset) or (
        isinstance(clients, tuple) and len(clients) == 2 and isinstance(clients[0], _ARRAYS)
    )
    if partition is None:
        if alone:
            raise TypeError("one data set needs the rows of each client: write partition=100")
        pairs = [
            tensors_of(data, f"client {number}")
            for number, data in enumerate(cast(Sequence[Data], clients))
        ]
        if not pairs:
            raise ValueError("there are no clients: give each one's records and labels")
        return pairs
    records, labels = tensors_of(cast(Data, clients), "the data set")
    if isinstance(partition, int):
        dealt: Sequence[Any] = partition_of(
            labels.numpy(), num_clients=partition, kind="iid", seed=_DEALT_BY
        )
    else:
        dealt = [np.asarray(rows, dtype=np.int64).reshape(-1) for rows in partition]
        _require_dealt_once(dealt, len(labels))
    return [(records[rows], labels[rows]) for rows in dealt]


def _require_dealt_once(dealt: Sequence[NDArray[np.int64]], num_rows: int) -> None:
    rows = np.concatenate([np.empty(0, dtype=np.int64), *dealt])
    if not dealt or (len(rows) and not 0 <= rows.min() <= rows.max() < num_rows):
        raise ValueError(f"partition must name rows from 0 to {num_rows - 1} for each client")
    if len(np.unique(rows)) < len(rows):
        raise ValueError(
            "partition names a row twice: what is promised to a client covers its own rows, and a "
            "row of two clients counts twice"
        )


def tensors_of(data: Data, name: str) -> Pair:
    """Records and labels, from two arrays or a data set of pairs, as CPU tensors.

    Raises:
        ValueError: Records and labels differ in number, or a number is missing or infinite.
        TypeError: `data` is neither.
    """
    if isinstance(data, Dataset):
        pairs = [data[row] for row in range(len(cast(Any, data)))]
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise TypeError(f"{name}: a data set must hold pairs of a record and its label")
        if not pairs:
            raise ValueError(f"{name}: a data set without records tells no shape; leave it out")
        records = torch.stack([torch.as_tensor(pair[0]) for pair in pairs])
        labels = torch.as_tensor([pair[1] for pair in pairs])
    elif isinstance(data, tuple | list) and len(data) == 2:
        records, labels = (torch.as_tensor(_writable(values)) for values in data)
    else:
        raise TypeError(
            f"{name}: write (records, labels), two arrays, or a PyTorch data set of such pairs, "
            f"got {type(data).__name__}"
        )
    if labels.dim() != 1 or records.dim() < 1 or len(records) != len(labels):
        raise ValueError(
            f"{name}: records of shape {tuple(records.shape)} and labels of shape "
            f"{tuple(labels.shape)}; labels are one number a record, (n,)"
        )
    return (
        _counted(records.detach().cpu(), f"{name}: records"),
        _counted(labels.detach().cpu(), f"{name}: labels"),
    )


def _writable(values: Any) -> Any:
    """Values that torch takes: read-only arrays and other byte orders are copied."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.flags.writeable and array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="), copy=True)


def _counted(values: Tensor, name: str) -> Tensor:
    """Floating-point numbers in the default type, whole ones as int64.

    Raises:
        ValueError: One is not finite: its client's update would be lost and still cost budget.
    """
    if not values.is_floating_point():
        return values.to(torch.int64)
    numbers = values.to(torch.get_default_dtype())
    not_finite = int((~torch.isfinite(numbers)).sum())
    if not_finite:
        raise ValueError(
            f"{name} hold {not_finite} missing or infinite numbers: fill them in, or leave these "
            "records out"
        )
    return numbers


def require_fitting(module: nn.Module, parts: Sequence[Pair]) -> None:
    """Check that a module reads one record of each part and has an output for each label.

    Raises:
        ValueError: It does not.
    """
    shapes: set[tuple[Any, ...]] = set()
    outputs: Tensor | None = None
    for records, labels in parts:
        if not len(labels):
            continue
        shape = (records.dtype, *records.shape[1:])
        if shape not in shapes:
            shapes.add(shape)
            outputs = _outputs_of(module, records[:1])
        assert outputs is not None  # of this shape or an earlier one
        _require_labels(outputs, labels)


def are_truth_values(parts: Sequence[Pair]) -> bool:
    """Whether all labels are floating-point numbers, and each is 0 or 1."""
    return all(
        labels.is_floating_point() and bool(((labels == 0) | (labels == 1)).all())
        for _, labels in parts
        if len(labels)
    )


def _outputs_of(module: nn.Module, record: Tensor) -> Tensor:
    trained = module.training
    module.eval()
    device = next((weight.device for weight in module.parameters()), record.device)
    try:
        with torch.no_grad():
            outputs = module(record.to(device))
    except Exception as error:
        hint = "" if record.is_floating_point() else ": are whole numbers to be divided by 255?"
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"the module can't read records of shape {tuple(record.shape[1:])} and type "
            f"{record.dtype}{hint} ({reason})"
        ) from error
    finally:
        module.train(trained)
    if not isinstance(outputs, Tensor) or outputs.dim() != 2:
        raise ValueError(
            "the module must return outputs of shape (n, classes), or (n, 1) of numbers"
        )
    return outputs


def _require_labels(outputs: Tensor, labels: Tensor) -> None:
    width = outputs.shape[1]
    if labels.is_floating_point():
        if width != 1:
            raise ValueError(
                f"labels are numbers, so the module must have one output, got {width}: classes are "
                "integers"
            )
        return
    if width == 1:
        raise ValueError(
            "labels are integers, so classes, and the module has one output: give it one output a "
            "class, two for the labels 0 and 1; or give labels that are numbers in floating point"
        )
    try:
        require_labels(labels, width, ignored=None)
    except IndexError as error:
        raise ValueError(f"{error}: the module has {width} outputs, for classes from 0") from error
