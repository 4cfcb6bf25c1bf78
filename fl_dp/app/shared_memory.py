"""Test data that lie in the clients' memory: measuring them would be a release that nobody charges.

Arrays share records if they share memory, through whatever views; data sets if they read a row of
the same one. Equal rows are not looked for: the answer would tell who is in the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_dp.clients.per_record.record_source import innermost, origins_of

_MOST_WORK = 1_000_000  # of comparing two strided views; beyond it they count as shared


class _Span(NamedTuple):
    """The memory of an array: its first byte's address, and the one after its last byte."""

    begin: int
    end: int
    of_test: bool
    array: NDArray[Any] | None  # None on another device


def require_apart(
    clients: Sequence[Any], test: Any, dealt: NDArray[np.int64] | None = None
) -> None:
    """Check that test data share no memory and no row with clients' data.

    Args:
        clients: Each one's data: two arrays or a data set.
        test: The same of the test.
        dealt: Rows of the only data set that are the clients'; None: all.

    Raises:
        ValueError: They do.
    """
    rows = np.concatenate([_rows(data, dealt) for data in clients])
    spans = [span for data in clients for span in _spans(data, dealt, of_test=False)]
    spans += _spans(test, None, of_test=True)
    if _meet_in_a_row(rows, _rows(test, None)) or _meet(spans):
        raise ValueError(
            "test shares memory with the clients' data, so measuring it would be a release that "
            "nobody charges: give public records of others, or leave test out"
        )


def _rows(data: Any, dealt: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Each row's object, by its `id`, and number there, `(n, 2)`; -1 for all rows of a list."""
    if isinstance(data, tuple | list):
        lists = [values for values in data if not isinstance(values, np.ndarray | Tensor)]
        return np.array([(id(values), -1) for values in lists], np.int64).reshape(-1, 2)
    origins = origins_of(data)
    return origins if dealt is None else origins[dealt]


def _meet_in_a_row(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    return any(
        bool(np.isin(one[one[:, 0] == shared, 1], other[other[:, 0] == shared, 1]).any())
        for shared in np.intersect1d(one[:, 0], other[:, 0])
    )


def _spans(data: Any, dealt: NDArray[np.int64] | None, *, of_test: bool) -> Iterator[_Span]:
    if isinstance(data, tuple | list):
        for values in data:
            yield from _spans_of(values, dealt, of_test)
        return
    rows = _rows(data, dealt)
    for dataset in innermost(data):
        if isinstance(dataset, TensorDataset):
            for tensor in dataset.tensors:
                yield from _spans_of(tensor, rows[rows[:, 0] == id(dataset), 1], of_test)


def _spans_of(values: Any, rows: NDArray[np.int64] | None, of_test: bool) -> Iterator[_Span]:
    array = _array(values)
    rows = np.arange(len(array)) if rows is None else np.sort(rows)
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        if not len(run):
            continue
        part = array[run[0] : run[-1] + 1]
        if not isinstance(part, Tensor):
            yield _Span(*byte_bounds(part), of_test, part)
        elif part.numel():
            steps = sum((n - 1) * step for n, step in zip(part.shape, part.stride(), strict=True))
            end = part.data_ptr() + (steps + 1) * part.element_size()
            yield _Span(part.data_ptr(), end, of_test, None)


def _array(values: Any) -> NDArray[Any] | Tensor:
    """The same memory as an array of NumPy, which can compare views; or a tensor that has none."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    try:
        return values.detach().numpy()
    except (TypeError, RuntimeError):  # bfloat16, another device
        return values.detach()


def _meet(spans: list[_Span]) -> bool:
    """Whether a span of the test and another one share a byte."""
    open_spans: list[_Span] = []
    for span in sorted(spans, key=lambda span: span[:2]):
        open_spans = [earlier for earlier in open_spans if earlier.end > span.begin]
        if any(_share(span, earlier) for earlier in open_spans if earlier.of_test != span.of_test):
            return True
        open_spans.append(span)
    return False


def _share(one: _Span, other: _Span) -> bool:
    """Whether two spans whose bounds overlap share a byte."""
    if one.array is None or other.array is None:
        return True
    try:
        return np.shares_memory(one.array, other.array, max_work=_MOST_WORK)  # type: ignore[arg-type]  # NumPy's stubs know two numbers alone
    except np.exceptions.TooHardError:
        return True
