"""What `train_private` takes as data, and that it leaves them as they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hugging_face import Splits, Table
from made_modules import Shifts
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from fl_dp.app import train_private
from fl_dp.app.client_arrays import client_parts, fresh, tensors_of
from fl_dp.app.shared_memory import require_apart

CLIENTS, ROWS = 12, 6
BUDGET: dict[str, Any] = {
    "epsilon": 8.0,
    "rounds": 2,
    "clipping_norm": 1.0,
    "sampling_rate": 1.0,
    "progress": False,
}


def arrays(seed: int = 0, rows: int = ROWS) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    draws = np.random.default_rng(seed)
    return draws.normal(size=(rows, 3)).astype(np.float32), draws.integers(0, 2, rows)


def clients() -> list[Any]:
    return [arrays(seed) for seed in range(CLIENTS)]


class Items(Dataset[tuple[Any, Any]]):
    """Any items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


class Streamed(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.ones(3), torch.tensor(0)


# The caller's data stay as they are.


def fit_that_writes(model: nn.Module, records: Tensor, labels: Tensor) -> None:
    records.mul_(7.0)
    labels.fill_(1)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)


@pytest.mark.parametrize("fit", [None, fit_that_writes])
@pytest.mark.parametrize("of_torch", [False, True])
def test_no_module_and_no_training_writes_into_the_data(fit: Any, of_torch: bool) -> None:
    pairs: list[Any] = [*clients(), arrays(99)]
    if of_torch:
        pairs = [tuple(map(torch.from_numpy, pair)) for pair in pairs]
    before = [tuple(np.asarray(part).copy() for part in pair) for pair in pairs]
    train_private(Shifts(3, 2), pairs[:-1], test=pairs[-1], fit=fit, epochs=2, **BUDGET)
    for pair, old in zip(pairs, before, strict=True):
        for part, values in zip(pair, old, strict=True):
            np.testing.assert_array_equal(np.asarray(part), values)


def test_each_batch_reaches_a_module_as_the_data_have_it() -> None:
    """Also the one batch that is all of a client's rows, in each epoch."""
    records, labels = arrays()
    seen: list[float] = []

    class Watches(Shifts):
        def forward(self, records: Tensor) -> Tensor:
            if len(records) == ROWS:  # fewer are trials beforehand
                seen.append(float(records.sum()))  # a number: so they go one by one
            return super().forward(records)

    train_private(Watches(3, 2), [(records, labels)] * CLIENTS, epochs=3, **BUDGET)
    whole = float(records.sum())
    assert len(seen) == 3 * 2 * CLIENTS
    assert all(total == pytest.approx(whole, abs=1e-5) for total in seen)


def test_fresh_tensors_share_nothing() -> None:
    pair = tensors_of(arrays(), "a client")
    for copied, own in zip(fresh(pair), pair, strict=True):
        assert copied.data_ptr() != own.data_ptr() and torch.equal(copied, own)


# Test data in the clients' memory.

X, Y = np.zeros((20, 3), np.float32), np.zeros(20, np.int64)
TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
OTHER_X, OTHER_Y = X.copy(), Y.copy()
BFLOAT = torch.zeros(20, 3, dtype=torch.bfloat16)
LISTS = ([[0.0]] * 4, [0] * 4)
ITEMS = Items([(torch.zeros(3), 0)] * 20)
TABLE = Table({"x": [[0.0]] * 20, "label": [0] * 20})

SHARED: dict[str, tuple[Any, Any]] = {
    "the same arrays": ([(X, Y)], (X, Y)),
    "rows that overlap": ([(X[:12], Y[:12].copy())], (X[11:], Y[11:].copy())),
    "the labels alone": ([(X.copy(), Y)], (OTHER_X, Y)),
    "a reversed view": ([(X[:5], OTHER_Y)], (X[::-1], Y.copy())),
    "rows in steps": ([(X[::2], OTHER_Y)], (X[::3], Y.copy())),
    "a column": ([(X, OTHER_Y)], (X[:, 1:2], Y.copy())),
    "a tensor of an array": ([(X, OTHER_Y)], (torch.from_numpy(X)[3:], Y.copy())),
    "a type without NumPy": ([(BFLOAT, OTHER_Y)], (BFLOAT[3:], Y.copy())),
    "the second client": ([(OTHER_X, OTHER_Y), (X, Y.copy())], (X, Y.copy())),
    "lists": ([LISTS], LISTS),
    "a data set of the arrays": ([(X, OTHER_Y)], TENSORS),
    "some rows of such a data set": ([(X[4:5], OTHER_Y)], Subset(TENSORS, [9, 4])),
    "the same data set": ([ITEMS], ITEMS),
    "rows of one data set": ([Subset(ITEMS, [1, 2])], Subset(ITEMS, [2, 3])),
    "a concatenation": ([Subset(ITEMS, [1])], ConcatDataset([TENSORS, ITEMS])),
    "the same table": ([TABLE], TABLE),
}
APART: dict[str, tuple[Any, Any]] = {
    "other rows of one array": ([(X[:12], Y[:12])], (X[12:], Y[12:])),
    "every second row": ([(X[::2], Y[::2])], (X[1::2], Y[1::2])),
    "equal rows": ([(X, Y)], (OTHER_X, OTHER_Y)),
    "other rows of one data set": ([Subset(TENSORS, [0, 2])], Subset(TENSORS, [1, 3])),
    "other rows of a type without NumPy": ([(BFLOAT[:3], Y)], (BFLOAT[3:], OTHER_Y)),
    "nothing": ([(X[:0], Y[:0])], (X, Y)),
}


@pytest.mark.parametrize(("of_clients", "test"), SHARED.values(), ids=SHARED)
def test_test_data_in_the_clients_memory_are_refused(of_clients: list[Any], test: Any) -> None:
    with pytest.raises(ValueError, match="shares memory with the clients' data") as refused:
        require_apart(of_clients, test)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("of_clients", "test"), APART.values(), ids=APART)
def test_test_data_of_others_are_taken(of_clients: list[Any], test: Any) -> None:
    require_apart(of_clients, test)


@pytest.mark.parametrize("one", [(X, Y), TENSORS, Subset(ITEMS, range(20)), TABLE])
def test_of_a_partition_the_rows_that_are_dealt_count(one: Any) -> None:
    others: Any
    same: Any
    if isinstance(one, tuple):
        others, same = (X[15:], Y[15:]), (X[14:], Y[14:])
    elif one is TABLE:
        others, same = TABLE.select(range(15, 20)), TABLE
    else:
        others, same = Subset(one, range(15, 20)), Subset(one, range(14, 20))
    rows = [range(8), range(8, 15)]
    assert len(client_parts(one, rows, others)[0]) == 2
    with pytest.raises(ValueError, match="shares memory"):
        client_parts(one, rows, same)


def test_they_are_refused_before_a_ledger_exists(tmp_path: Path) -> None:
    data, ledger = clients(), tmp_path / "ledger.db"
    with pytest.raises(ValueError, match="shares memory"):
        train_private(nn.Linear(3, 2), data, test=data[3], ledger=ledger, **BUDGET)
    assert not ledger.exists()


# Forms of data: taken, or refused in one line.

Wrong = tuple[Callable[[], Any], str]
WRONG: dict[str, Wrong] = {
    "a stream": (lambda: client_parts([Streamed()], None), "client 0: .*Streamed .*list"),
    "nothing is dealt": (lambda: client_parts(arrays(), [[], []]), "no client has a record"),
    "no records at all": (lambda: client_parts([Items([])] * 3, None), "no client has a record"),
    "labels of two columns": (
        lambda: client_parts([(X, np.zeros((20, 2)))], None),
        r"labels of shape \(20, 2\)",
    ),
    "texts": (lambda: client_parts([(np.array(["a", "b"]), Y[:2])], None), "no array of numbers"),
    "items of several shapes": (
        lambda: client_parts([Items([(torch.zeros(2), 0), (torch.zeros(3), 1)])], None),
        r"client 0: records have shapes \(2,\) and \(3,\)",
    ),
    "no pairs": (lambda: client_parts([Items([torch.zeros(3)])], None), "pairs of a record"),
    "no test": (lambda: client_parts(clients(), None, (X[:0], Y[:0])), "test holds no records"),
    "several splits": (
        lambda: client_parts(cast(Any, Splits(train=TABLE)), 2),
        r"holds several data sets: write one of them, such as data\['train'\]",
    ),
    "columns of another name": (
        lambda: client_parts([Table({"x": [[1.0]], "fine_label": [1]})], None),
        "'x', 'fine_label': .*rename_column",
    ),
    "two columns of records": (
        lambda: client_parts([Table({"x": [[1.0]], "z": [[1.0]], "label": [1]})], None),
        "'x', 'z', 'label'",
    ),
    "a number beside the record": (
        lambda: client_parts([Table({"x": [[1.0]], "age": [61], "label": [1]})], None),
        "'x', 'age', 'label': keep one",
    ),
    "texts of a table": (
        lambda: client_parts([Table({"text": ["a"], "label": [1]})], None),
        "lists of numbers",
    ),
    "a picture with a palette": (
        lambda: client_parts([Table({"img": [Image.new("P", (2, 2))], "label": [1]})], None),
        r"mode 'P': write picture.convert\('RGB'\)",
    ),
}


@pytest.mark.parametrize(("wrong", "line"), WRONG.values(), ids=WRONG)
def test_what_is_no_data_ends_in_one_line(wrong: Callable[[], Any], line: str) -> None:
    with pytest.raises((ValueError, TypeError), match=line) as refused:
        wrong()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", [np.int64, np.float32])
@pytest.mark.parametrize("of_items", [False, True])
def test_labels_may_be_a_column(kind: Any, of_items: bool) -> None:
    records, labels = X[:4], np.array([[0], [1], [1], [0]], kind)
    data: Any = (records, labels)
    if of_items:
        data = TensorDataset(torch.from_numpy(records), torch.from_numpy(labels))
    [(_, read)], _ = client_parts([data], None)
    assert read.tolist() == [0, 1, 1, 0] and read.shape == (4,)


@pytest.mark.parametrize("given", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_numbers_get_the_module_s_type(given: Any, kind: torch.dtype) -> None:
    module = nn.Linear(3, 2).to(kind)
    data = [(records.astype(given), labels) for records, labels in clients()]
    trained = train_private(module, data, test=arrays(99), **BUDGET)
    assert next(trained.model.parameters()).dtype is kind


def test_how_many_records_a_client_has_refuses_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    data = clients()
    data[3], data[5] = (X[:0], Y[:0]), Items([])
    train_private(nn.Linear(3, 2), data, **BUDGET)
    assert f"2 of {CLIENTS} clients have no records and contribute nothing" in caplog.text


# Data sets of Hugging Face, and partitions of flwr-datasets.


def table(seed: int = 0) -> Table:
    records, labels = arrays(seed)
    return Table({"x": records.tolist(), "label": labels.tolist(), "name": ["someone"] * ROWS})


def as_they_come(data: Table) -> Table:
    return data


def in_torch(data: Table) -> Table:
    return data.with_format("torch")


def transformed(data: Table) -> Table:
    return data.with_transform(
        lambda batch: batch | {"x": [torch.tensor(record) for record in batch["x"]]}
    )


FORMATS = [as_they_come, in_torch, transformed]


@pytest.mark.parametrize("form", FORMATS)
def test_a_table_of_hugging_face_is_its_column_and_its_labels(form: Any) -> None:
    records, labels = arrays()
    [(read, read_labels)], _ = client_parts([form(table())], None)
    assert torch.equal(read, torch.from_numpy(records))
    assert read_labels.tolist() == labels.tolist()
    dealt, _ = client_parts(form(table()), [[0, 1], [5]])
    assert torch.equal(dealt[1][0], torch.from_numpy(records[[5]]))


@pytest.mark.parametrize("form", FORMATS)
def test_a_module_trains_on_partitions(form: Any) -> None:
    data = [form(table(seed)) for seed in range(CLIENTS)]
    trained = train_private(nn.Linear(3, 2), data, test=form(table(99)), **BUDGET)
    assert trained.accuracy is not None


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_pictures_are_channels_of_numbers_from_0_to_1(mode: str, channels: int) -> None:
    shape = (4, 5) if mode == "L" else (4, 5, channels)
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    picture = Image.fromarray(pixels)
    assert picture.mode == mode
    table = Table({"img": [picture], "label": [1]})
    for data in (table, Items([(picture, 1)]), Items([[picture, 1]])):
        [(records, _)], _ = client_parts([data], None)
        expected = torch.from_numpy(pixels.reshape(4, 5, channels) / 255.0).permute(2, 0, 1)
        torch.testing.assert_close(records[0], expected.float())
