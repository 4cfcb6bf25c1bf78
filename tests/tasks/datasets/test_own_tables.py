"""Tables of one's own: read as they are, or refused with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from fl_dp.tasks.datasets import DataFormat, Dataset, DataSource, data_source, load_dataset

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
        data_source._load_once.cache_clear()  # the files have changed
        return load_dataset(DataSource(kind, data_dir=str(tmp_path), data_format=data_format))

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


@KINDS
@pytest.mark.parametrize("classes", [None, ("0", "1"), ("0.0", "1.0")])
def test_whole_numbers_in_a_float_column_are_labels(
    load: Callable[..., Any], kind: str, classes: tuple[str, str] | None
) -> None:
    ones: Any = ["1.0", "0.0"] if kind == "csv" else [1.0, 0.0]
    columns = {"x": [1.0, 2.0], "label": ones}
    dataset = load(kind, DataFormat(classes=classes), train=columns, test=columns)
    assert dataset.train_y.tolist() == [1, 0]


def test_a_csv_column_may_turn_from_integers_to_fractions_late(load: Callable[..., Any]) -> None:
    values = [1] * 300_000 + [0]  # beyond the first block that a reader looks at
    columns = {"x": pa.array([str(v) for v in values[:-1]] + ["0.5"]), "label": values}
    dataset = load(data_format=DataFormat(), train=columns, test=columns)
    assert dataset.train_x[-2:].tolist() == [[1.0], [0.5]]


def test_a_test_fraction_holds_out_the_same_rows_each_time(load: Callable[..., Any]) -> None:
    rows = 40
    columns: dict[str, list[Any]] = {
        "x": [float(number) for number in range(rows)],
        "who": ["a", "b"] * (rows // 2),
        "label": [0, 1, 1, 0] * 10,
    }
    data_format = DataFormat(columns=("x",), client_column="who", test_fraction=0.25)
    dataset, again = (load(data_format=data_format, train=columns) for _ in range(2))
    assert (len(dataset.train_y), len(dataset.test_y)) == (30, 10)
    np.testing.assert_array_equal(dataset.test_x, again.test_x)
    both = np.concatenate([dataset.train_x, dataset.test_x]).ravel()
    assert sorted(both) == list(range(rows))
    assert dataset.test_x.min() < 10 < 30 < dataset.test_x.max()  # tables are often sorted
    # Every row keeps its label and its client.
    number = dataset.train_x.ravel().astype(int)
    assert dataset.train_y.tolist() == [columns["label"][i] for i in number]
    assert dataset.train_clients.tolist() == [i % 2 for i in number]


# One node's rows, and a server that has none of them.


NODE = DataFormat(classes=CLASSES, columns=("age", "pressure"), splits=("train",))
SERVER = DataFormat(classes=CLASSES, columns=("age", "pressure"), splits=("test",))


@KINDS
def test_a_node_reads_its_training_rows_alone(load: Callable[..., Any], kind: str) -> None:
    asked = replace(NODE, client_column="nobody", test_fraction=0.5)  # neither is of its rows
    dataset = load(kind, asked, train=TRAIN, test={"rubbish": [1]})
    assert len(dataset.train_y) == 4
    assert dataset.train_clients is None
    assert dataset.test_x.shape == (0, 2)


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
        (changed(clinic=["", "", "", "x"]), r"missing values in 'clinic' \(3\)"),
        (changed(pressure=[1.0, float("inf"), 0.0, 0.0]), "infinite values: 'pressure'"),
        (changed(pressure=[1.0, 1e300, 0.0, 0.0]), "infinite values: 'pressure'"),
        (changed(sex=["f", "m", "f", "m"]), "not numbers: 'sex'"),
        (changed(label=["ill", "dead", "ill", "well"]), "does not list: 'dead'"),
        (without("label"), "no column 'label'"),
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
    ("changes", "splits"),
    [
        ({"mean": (0.0,)}, {"test": TEST}),
        ({"test_fraction": 0.5}, {"test": TEST}),
        ({"test_fraction": 0.1}, {}),
        ({"image_shape": (1, 8, 8)}, {"test": TEST}),
    ],
)
def test_a_format_that_does_not_fit_the_files_is_refused(
    load: Callable[..., Any], changes: dict[str, Any], splits: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=rf"task\.{next(iter(changes))}"):
        load(data_format=replace(FORMAT, **changes), train=TRAIN, **splits)


@pytest.mark.parametrize("labels", [["1", "2"], ["0", "0"], ["a", "b"], ["0", "01"]])
def test_labels_without_a_list_that_are_not_counted_from_zero_are_refused(
    load: Callable[..., Any], labels: list[str]
) -> None:
    columns = {"x": [1.0, 2.0], "label": labels}
    with pytest.raises(ValueError, match="the labels are not 0, 1, 2"):
        load(data_format=DataFormat(), train=columns, test=columns)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("x,x,label\n1,2,0\n1,2,1\n")
    with pytest.raises(ValueError, match="several columns 'x'"):
        load_dataset(DataSource("csv", data_dir=str(tmp_path)))


def test_a_missing_file_is_an_error_with_the_ways_out(
    load: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match=r"train\.csv.*task\.partition=nodes"):
        load(test=TEST)
    (tmp_path / "test.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.csv.*task\.test_fraction=0\.2"):
        load(train=TRAIN)


# What would be read as something else than its owner means.


def table(folder: Path, text: str | bytes, data_format: DataFormat | None = None) -> Dataset:
    """Return the data set of one CSV text, which is both of its parts."""
    for split in ("train", "test"):
        content = text if isinstance(text, bytes) else text.encode()
        (folder / f"{split}.csv").write_bytes(content)
    data_source._load_once.cache_clear()
    return load_dataset(DataSource("csv", data_dir=str(folder), data_format=data_format))


SECONDS = [1_700_000_000 + number for number in range(0, 3600, 7)]
DAYS = [20240101 + number % 28 + 100 * (number % 12) for number in range(300)]
LARGE = pytest.mark.parametrize("large", [SECONDS, DAYS], ids=["seconds", "days"])


@LARGE
def test_dates_keep_their_differences_where_they_are_scaled(
    load: Callable[..., Any], large: list[int]
) -> None:
    columns = {"when": large, "label": [number % 2 for number in range(len(large))]}
    mean, std = large[0], 1000.0
    scaled = DataFormat(columns=("when",), mean=(mean,), std=(std,))
    dataset = load("csv", scaled, train=columns, test=columns)
    expected = (np.array(large, np.float64)[:, None] - mean) / std
    np.testing.assert_allclose(dataset.train_x, expected, rtol=1e-6, atol=1e-9)


@LARGE
def test_dates_that_float32_would_round_to_each_other_are_refused(
    load: Callable[..., Any], large: list[int]
) -> None:
    columns = {"when": large, "label": [number % 2 for number in range(len(large))]}
    with pytest.raises(ValueError, match=r"round to each other: 'when'; .*task\.mean") as refused:
        load("parquet", DataFormat(), train=columns, test=columns)
    assert str(large[0]) not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        [0.1] * 4,  # float32 has no 0.1, and all are the same
        [1_700_000_000, 0, 10**9, 5],  # rounded by less than matters
        [20240101] * 4,
        [2**24, 2**24 + 2, 2**24 + 4, 2**24],
    ],
)
def test_large_numbers_of_which_little_is_lost_are_read(
    load: Callable[..., Any], values: list[float]
) -> None:
    columns = {"x": values, "label": [0, 1, 1, 0]}
    assert len(load("csv", DataFormat(), train=columns, test=columns).train_x) == 4


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "Unnamed: 0.1", "__index_level_0__"])
def test_a_saved_index_is_no_feature(load: Callable[..., Any], name: str) -> None:
    columns = {name: [4, 7, 1, 9], "x": [1.0, 2.0, 3.0, 4.0], "label": [0, 0, 1, 1]}
    kind = "parquet" if name.startswith("__") else "csv"
    with pytest.raises(ValueError, match=r"as a saved index: .*index=False.*task\.columns"):
        load(kind, DataFormat(), train=columns, test=columns)
    named = DataFormat(columns=("x",))
    assert load(kind, named, train=columns, test=columns).input_shape == (1,)


def test_an_index_that_pandas_names_in_parquet_is_no_feature(load: Callable[..., Any]) -> None:
    columns = pa.table({"x": [1.0, 2.5], "patient": [417, 12], "label": [0, 1]})
    columns = columns.replace_schema_metadata(
        {"pandas": '{"index_columns": ["patient"], "columns": []}'}
    )
    with pytest.raises(ValueError, match="as a saved index: 'patient'"):
        load("parquet", DataFormat(), train=columns, test=columns)


@pytest.mark.parametrize(("first", "order"), [(0, 1), (1, -1), (4711, 7)])
def test_a_column_that_numbers_the_rows_is_no_feature_whatever_its_name_and_order(
    load: Callable[..., Any], first: int, order: int
) -> None:
    rows = 30
    numbers = [first + (row * order) % rows for row in range(rows)]
    columns = {"id": numbers, "x": [0.5] * rows, "label": [row % 2 for row in range(rows)]}
    with pytest.raises(ValueError, match=r"number the rows .*: 'id'"):
        load(data_format=DataFormat(), train=columns, test=columns)
    asked = DataFormat(columns=("id", "x"))
    assert load(data_format=asked, train=columns, test=columns).input_shape == (2,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,label\n1,0\n2,1\n".encode("utf-16"), "can't be read: .*save it as UTF-8"),
        ("a,label\n1,0\n2,1\n".encode("utf-16-le"), "can't be read: .*save it as UTF-8"),
        ("a,label\n61,malade à Genève\n".encode("latin-1"), "can't be read: .*save it as UTF-8"),
        ("âge,label\n61,0\n".encode("latin-1"), "can't be read: .*save it as UTF-8"),
        (b"\x1f\x8b\x08\x00\x01", "can't be read: .*not packed"),
        (b"a,label\n1,0\n1\n", "the first line names 2 columns, and 1 rows"),
        (b"age;label\n61;0\n35;1\n", "has semicolons between its columns: "),
        (b"age\tlabel\n61\t0\n35\t1\n", "has tabs between its columns: "),
    ],
)
def test_a_table_of_another_program_is_refused_in_our_words(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"train\.csv:? {message}"):
        table(tmp_path, content)


SECRET = "4711"


@pytest.mark.parametrize(
    "text",
    [
        f"a,label\n1,0\n2,{SECRET},1\n",  # a long row
        f"a,b,label\n1,2,0\n{SECRET}\n",  # a short one
        f'a,label\n1,0\n"{SECRET},1\n',  # a quote that is not closed
        f'a,label\n1,0\n2,"1\n{SECRET},0\n',  # one in the label
        f"a;label\n1,5;{SECRET}\n",  # decimal commas
        f"{SECRET},2,0\n2,3,1\n",  # no names of columns
        f"a,label\n1,{SECRET}.5\n2,1\n",  # no classes, but values
        f"a,label\n1,{SECRET}a\n" + "".join(f"2,b{n}\n" for n in range(9)),
    ],
)
def test_no_refusal_holds_a_row(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"train\.csv") as refused:
        table(tmp_path, text, DataFormat(label_column="label"))
    message = str(refused.value)
    if ".5" not in text:  # a label that no class has is named: classes are public
        assert SECRET not in message
    assert "\n" not in message
    assert "CSV parse error" not in message


@pytest.mark.parametrize("column", ["label", "clinic"])
@pytest.mark.parametrize("missing", ["NaN", "N/A", "null", "<NA>", " "])
def test_a_word_for_a_missing_value_is_neither_a_class_nor_a_client(
    load: Callable[..., Any], missing: str, column: str
) -> None:
    columns = changed(**{column: [missing, *TRAIN[column][1:]]})
    with pytest.raises(ValueError, match=rf"missing values in '{column}' \(1\)"):
        load("parquet", train=columns, test=TEST)


@pytest.mark.parametrize("classes", [("ill", "ill "), ("True", "true"), ("1", "1.0")])
def test_two_classes_that_are_one_name_are_refused(
    load: Callable[..., Any], classes: tuple[str, str]
) -> None:
    columns = {"x": [1.0, 2.0], "label": list(classes)}
    with pytest.raises(ValueError, match="written in two ways"):
        load("csv", DataFormat(classes=classes), train=columns, test=columns)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([float("nan"), 0.0], r"missing values in 'label' \(1\)"),
        ([1.5, 0.0], "'label' holds 1 numbers that are not whole"),
        ([float("inf"), 0.0], "'label' holds 1 numbers that are not whole"),
        ([[1], [0]], "'label' must hold texts or whole numbers alone"),
    ],
)
def test_labels_that_are_none_are_refused_in_our_words(
    load: Callable[..., Any], values: list[Any], message: str
) -> None:
    columns = {"x": [1.0, 2.0], "label": values}
    with pytest.raises(ValueError, match=message) as refused:
        load("parquet", DataFormat(), train=columns, test=columns)
    assert "truncated" not in str(refused.value)


COMPOSED, SPLIT = "Z\u00fcrich", "Zu\u0308rich"


@KINDS
def test_one_client_written_with_blanks_or_split_letters_is_one_unit(
    load: Callable[..., Any], kind: str
) -> None:
    columns = changed(clinic=[COMPOSED, SPLIT, f"{COMPOSED} ", "east"])
    dataset = load(kind, train=columns, test=TEST)
    assert dataset.client_names == (COMPOSED, "east")
    assert dataset.train_clients.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "names",
    [["North", "north"], ["St. Mary", "St.  Mary"], ["007", "7"], ["7.0", "7"], ["fi", "\ufb01"]],
)
def test_clients_that_could_be_one_are_refused_and_not_named(
    load: Callable[..., Any], names: list[str]
) -> None:
    columns = changed(clinic=[*names, "x", "y"])
    with pytest.raises(ValueError, match=r"2 names of clients differ .* in one way") as refused:
        load("parquet", train=columns, test=TEST)
    assert repr(names[0]) not in str(refused.value)


@KINDS
def test_blanks_and_split_letters_in_names_of_columns_and_classes_are_passed_over(
    load: Callable[..., Any], kind: str
) -> None:
    columns = {f" {SPLIT} ": [1.0, 2.0], " label": [f" {SPLIT}", "b "]}
    data_format = DataFormat(columns=(COMPOSED,), classes=(COMPOSED, "b"))
    dataset = load(kind, data_format, train=columns, test=columns)
    assert (dataset.train_x.ravel().tolist(), dataset.train_y.tolist()) == ([1.0, 2.0], [0, 1])


@KINDS
@pytest.mark.parametrize("labels", [[True, False], ["TRUE", "False"]])
def test_truth_values_are_classes_however_they_are_spelt(
    load: Callable[..., Any], kind: str, labels: list[Any]
) -> None:
    columns = {"x": [1.0, 2.0], "label": labels}
    dataset = load(kind, DataFormat(classes=("False", "true")), train=columns, test=columns)
    assert dataset.train_y.tolist() == [1, 0]


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.csv has no rows"):
        table(tmp_path, "a,label\n")
