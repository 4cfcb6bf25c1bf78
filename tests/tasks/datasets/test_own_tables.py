"""Tables of one's own: read as they are, or refused with what to write instead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from fl_dp.tasks.datasets import DataFormat, Dataset, client_indices, data, load_dataset

TRAIN: dict[str, list[Any]] = {
    "age": [61, 35, 48, 52],
    "pressure": [140.5, 120.0, 131.25, 118.0],
    "smokes": [True, False, False, True],
    "clinic": ["north", "south", "north", "east"],
    "label": ["ill", "well", "ill", "well"],
}
TEST = {name: values[:2] for name, values in TRAIN.items() if name != "clinic"}
CLASSES = ("well", "ill")
FORMAT = DataFormat(classes=CLASSES, client_column="clinic")
KINDS = pytest.mark.parametrize("kind", ["csv", "parquet"])


def write(folder: Path, kind: str, **splits: Any) -> None:
    for split, columns in splits.items():
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        file = folder / f"{split}.{kind}"
        csv.write_csv(table, file) if kind == "csv" else parquet.write_table(table, file)


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Any]:
    """Return a data set that is made of columns."""

    def made(kind: str = "csv", data_format: DataFormat = FORMAT, **splits: Any) -> Dataset:
        write(tmp_path, kind, **splits)
        data._load_once.cache_clear()  # the files have changed
        return load_dataset(kind, data_dir=str(tmp_path), data_format=data_format)

    return made


def changed(**columns: Any) -> dict[str, Any]:
    return TRAIN | columns


def without(*names: str) -> dict[str, Any]:
    return {name: values for name, values in TRAIN.items() if name not in names}


# What is read.


@KINDS
def test_numbers_are_features_as_they_are_and_labels_are_numbered_by_the_public_list(
    load: Callable[..., Any], kind: str
) -> None:
    dataset = load(kind, train=TRAIN, test=TEST)
    expected = [[61, 140.5, 1], [35, 120, 0], [48, 131.25, 0], [52, 118, 1]]
    np.testing.assert_array_equal(dataset.features(slice(None)), np.array(expected, np.float32))
    np.testing.assert_array_equal(
        dataset.features(slice(None), "test"), np.array(expected[:2], np.float32)
    )
    assert dataset.labels(slice(None)).tolist() == [1, 0, 1, 0]
    assert dataset.labels(slice(None), "test").tolist() == [1, 0]
    assert (dataset.input_shape, len(dataset.class_names), dataset.name) == ((3,), 2, kind)


@KINDS
def test_the_client_column_names_natural_clients(load: Callable[..., Any], kind: str) -> None:
    dataset = load(kind, train=TRAIN, test=TEST)
    assert dataset.client_names == ("east", "north", "south")
    assert dataset.train_clients.tolist() == [1, 2, 1, 0]


def test_the_partition_natural_gives_each_client_its_rows(
    load: Callable[..., Any], tmp_path: Path
) -> None:
    load(train=TRAIN, test=TEST)
    clients = client_indices(
        "csv", num_clients=3, kind="natural", seed=0, data_dir=str(tmp_path), data_format=FORMAT
    )
    assert [rows.tolist() for rows in clients] == [[3], [0, 2], [1]]


@KINDS
def test_columns_choose_the_features_and_their_order(load: Callable[..., Any], kind: str) -> None:
    data_format = DataFormat(classes=CLASSES, columns=("pressure", "age"))
    dataset = load(kind, data_format, train=TRAIN, test=TEST)
    np.testing.assert_array_equal(dataset.train_x[0], np.array([140.5, 61], np.float32))
    assert dataset.train_clients is None


def test_public_means_and_deviations_scale_the_features(load: Callable[..., Any]) -> None:
    data_format = DataFormat(
        classes=CLASSES, columns=("age", "pressure"), mean=(50.0, 120.0), std=(10.0, 5.0)
    )
    dataset = load(data_format=data_format, train=TRAIN, test=TEST)
    np.testing.assert_allclose(dataset.train_x[0], [1.1, 4.1], rtol=1e-6)
    np.testing.assert_allclose(dataset.test_x[1], [-1.5, 0.0], rtol=1e-6)


@KINDS
def test_integers_from_zero_are_labels_without_a_list(load: Callable[..., Any], kind: str) -> None:
    columns = {"x": [1.0, 2.0, 3.0], "label": [2, 0, 1]}
    dataset = load(kind, DataFormat(), train=columns, test=columns)
    assert (dataset.train_y.tolist(), dataset.num_classes) == ([2, 0, 1], 3)


def test_whole_numbers_in_a_float_column_are_labels(load: Callable[..., Any]) -> None:
    columns = {"x": [1.0, 2.0], "label": [1.0, 0.0]}
    dataset = load("parquet", DataFormat(), train=columns, test=columns)
    assert dataset.train_y.tolist() == [1, 0]


def test_a_category_column_of_parquet_is_text(load: Callable[..., Any]) -> None:
    columns = pa.table({"x": [1.0, 2.0], "label": pa.array(["a", "b"]).dictionary_encode()})
    dataset = load("parquet", DataFormat(classes=("b", "a")), train=columns, test=columns)
    assert dataset.train_y.tolist() == [1, 0]


def test_a_csv_column_may_turn_from_integers_to_fractions_late(load: Callable[..., Any]) -> None:
    values = [1] * 300_000 + [0]  # beyond the first block that a reader looks at
    columns = {"x": pa.array([str(v) for v in values[:-1]] + ["0.5"]), "label": values}
    dataset = load(data_format=DataFormat(), train=columns, test=columns)
    assert dataset.train_x[-2:].tolist() == [[1.0], [0.5]]


def test_no_row_of_an_order_decides_the_numbers_of_classes_and_clients(
    load: Callable[..., Any], tmp_path: Path
) -> None:
    first = load(train=TRAIN, test=TEST)
    backwards = {name: values[::-1] for name, values in TRAIN.items()}
    second = load(train=backwards, test=TEST)
    assert second.client_names == first.client_names
    assert second.train_clients.tolist() == first.train_clients.tolist()[::-1]
    assert second.train_y.tolist() == first.train_y.tolist()[::-1]


def test_a_test_fraction_holds_out_the_same_rows_each_time(load: Callable[..., Any]) -> None:
    rows = 40
    columns: dict[str, list[Any]] = {
        "x": list(range(rows)),
        "who": ["a", "b"] * (rows // 2),
        "label": [0, 1, 1, 0] * 10,
    }
    data_format = DataFormat(client_column="who", test_fraction=0.25)
    dataset, again = (load(data_format=data_format, train=columns) for _ in range(2))
    assert (len(dataset.train_y), len(dataset.test_y)) == (30, 10)
    np.testing.assert_array_equal(dataset.test_x, again.test_x)
    both = np.concatenate([dataset.train_x, dataset.test_x]).ravel()
    assert sorted(both) == list(range(rows))
    # Every row keeps its label and its client.
    number = dataset.train_x.ravel().astype(int)
    assert dataset.train_y.tolist() == [columns["label"][i] for i in number]
    assert dataset.train_clients.tolist() == [i % 2 for i in number]


# One node's rows, and a server that has none of them.


NODE = DataFormat(classes=CLASSES, columns=("age", "pressure"), splits=("train",))
SERVER = DataFormat(classes=CLASSES, columns=("age", "pressure"), splits=("test",))


@KINDS
def test_a_node_reads_its_training_rows_alone(load: Callable[..., Any], kind: str) -> None:
    dataset = load(kind, NODE, train=TRAIN, test={"rubbish": [1]})
    assert len(dataset.train_y) == 4
    assert dataset.test_x.shape == (0, 2)


def test_a_node_s_rows_are_its_own_whatever_the_client_column_says(
    load: Callable[..., Any],
) -> None:
    dataset = load(data_format=replace(NODE, client_column="nobody"), train=TRAIN)
    assert dataset.train_clients is None


def test_a_node_holds_nothing_out(load: Callable[..., Any]) -> None:
    assert len(load(data_format=replace(NODE, test_fraction=0.5), train=TRAIN).train_y) == 4


@KINDS
def test_a_server_of_nodes_reads_its_test_rows_alone(load: Callable[..., Any], kind: str) -> None:
    dataset = load(kind, SERVER, train={"rubbish": [1]}, test=TEST)
    assert dataset.train_x.shape == (0, 2)
    assert len(dataset.test_y) == 2


def test_a_model_s_shape_never_comes_from_one_node_s_rows(load: Callable[..., Any]) -> None:
    only_one_class = {name: values[:1] for name, values in TRAIN.items()}
    dataset = load(data_format=NODE, train=only_one_class)
    assert (dataset.input_shape, dataset.num_classes) == ((2,), 2)
    for missing in ("columns", "classes"):
        left_out: dict[str, Any] = {missing: None}
        with pytest.raises(ValueError, match=rf"task\.{missing} must be given where nodes bring"):
            load(data_format=replace(NODE, **left_out), train=TRAIN)


# What is refused.


@KINDS
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (changed(pressure=[1.0, None, None, 2.0]), r"missing values in 'pressure' \(2\)"),
        (changed(age=[None] * 4), r"missing values in 'age' \(4\)"),
        (changed(label=["ill", "", "ill", "well"]), r"missing values in 'label' \(1\)"),
        (changed(clinic=["", "", "", "x"]), r"missing values in 'clinic' \(3\)"),
        (changed(pressure=[1.0, float("inf"), 0.0, 0.0]), "infinite values: 'pressure'"),
        (changed(pressure=[1.0, 1e300, 0.0, 0.0]), "infinite values: 'pressure'"),
        (changed(sex=["f", "m", "f", "m"]), r"not numbers: 'sex'.*task\.columns="),
        (changed(label=["ill", "dead", "ill", "well"]), r"does not list: 'dead'.*'well', 'ill'"),
        (without("label"), r"no column 'label'.*'age'.*task\.label_column"),
        (without("clinic"), r"no column 'clinic'.*task\.client_column"),
        (without("age", "pressure", "smokes"), "no column of features"),
    ],
)
def test_columns_that_can_t_be_used_are_refused(
    load: Callable[..., Any], kind: str, columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        load(kind, train=columns, test=TEST)
    assert f"train.{kind}" in str(refused.value)


TIMES = pa.array([0, 1, 2, 3], pa.timestamp("s"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (changed(pressure=[1.0, float("nan"), 0.0, 0.0]), r"missing values in 'pressure' \(1\)"),
        (changed(since=TIMES), "not numbers: 'since'"),
    ],
)
def test_what_only_parquet_can_hold_is_refused_too(
    load: Callable[..., Any], columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load("parquet", train=columns, test=TEST)


@pytest.mark.parametrize(
    ("changes", "splits", "message"),
    [
        ({"mean": (0.0,)}, {"test": TEST}, r"task\.mean has 1 numbers for 3 columns"),
        ({"std": (1.0,) * 4}, {"test": TEST}, r"task\.std has 4 numbers for 3 columns"),
        ({"test_fraction": 0.5}, {"test": TEST}, r"=0\.5 would hold out.*test\.csv"),
        ({"test_fraction": 0.1}, {}, "of 4 rows are 0"),
        ({"image_shape": (1, 8, 8)}, {"test": TEST}, r"task\.image_shape is for task=folder"),
    ],
)
def test_a_format_that_does_not_fit_the_files_is_refused(
    load: Callable[..., Any], changes: dict[str, Any], splits: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(data_format=replace(FORMAT, **changes), train=TRAIN, **splits)


@pytest.mark.parametrize("labels", [["1", "2"], ["0", "0"], ["a", "b"], ["0", "01"], ["0", "-1"]])
def test_labels_without_a_list_that_are_not_counted_from_zero_are_refused(
    load: Callable[..., Any], labels: list[str]
) -> None:
    columns = {"x": [1.0, 2.0], "label": labels}
    with pytest.raises(ValueError, match=r"not 0, 1, 2.*task\.classes=\[name,name\]"):
        load(data_format=DataFormat(), train=columns, test=columns)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("x,x,label\n1,2,0\n1,2,1\n")
    with pytest.raises(ValueError, match="several columns 'x'"):
        load_dataset("csv", data_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("csv", b""),
        ("csv", b"a,label\n1,0\n1\n"),
        ("csv", b"a,label\n\xff,0\n"),
        ("parquet", b"no"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_name(
    tmp_path: Path, kind: str, content: bytes
) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.{kind}").write_bytes(content)
    with pytest.raises(ValueError, match=rf"train\.{kind}"):
        load_dataset(kind, data_dir=str(tmp_path))


def test_a_missing_file_is_an_error_with_the_ways_out(
    load: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match=r"train\.csv.*task\.partition=nodes"):
        load(test=TEST)
    (tmp_path / "test.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.csv.*task\.test_fraction=0\.2"):
        load(train=TRAIN)
    with pytest.raises(ValueError, match=r"write task\.data_dir=/absolute/folder"):
        load_dataset("csv")
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        load_dataset("csv", data_dir=str(tmp_path / "nowhere"))


def test_pyarrow_is_asked_for_where_it_is_missing(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"task=csv needs pyarrow.*fl-dp\[tables\]"):
        load_dataset("csv", data_dir="/")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age;label\n61;ill\n35;well\n", "train.csv has semicolons between its columns: "),
        ("age\tlabel\n61\till\n35\twell\n", "train.csv has tabs between its columns: "),
        ("age,label\n61,malade à Genève\n35,well\n", "train.csv can't be read: .*save it as UTF-8"),
        ("âge,label\n61,ill\n35,well\n", "train.csv can't be read: .*save it as UTF-8"),
    ],
)
def test_a_table_of_another_program_is_refused_with_how_to_save_it(
    text: str, said: str, tmp_path: Path
) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text(text, encoding="latin-1")
    data._load_once.cache_clear()
    with pytest.raises(ValueError, match=said) as refused:
        load_dataset("csv", data_dir=str(tmp_path), data_format=DataFormat(classes=CLASSES))
    assert "\n" not in str(refused.value)
