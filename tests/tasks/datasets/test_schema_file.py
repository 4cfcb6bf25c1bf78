"""A schema beside a table: text, gaps and sentinels are encoded by it, and blanks train nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fl_dp.tasks.datasets import DataFormat, DataSource, Form, data_source, form_of, load_dataset
from fl_dp.tasks.datasets.own_tables import kinds_of
from fl_dp.tasks.datasets.schema_file import draft, read_schema
from fl_dp.tasks.datasets.text_bytes import texts_of

SCHEMA = """\
label_column: outcome
classes: [no, yes]           # texts as they stand, not truth values
shares: [0.9, 0.1]
client_column: clinic
columns:
  age: {kind: integer, range: [0, 100], missing: [-999]}
  bmi: {kind: number, range: [10, 50], missing: []}
  sex: {kind: category, categories: [f, m], missing: ['*']}
"""
TABLE = """\
clinic,age,bmi,sex,outcome
north,75,,f,yes
south,-999,30.0,unsure,no
north,200,50,m,no
"""
# By the root of three columns; a number and its gap, twice, and two categories and theirs.
EXPECTED = np.array(
    [[0.5, 0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0, 1], [1, 0, 1, 0, 0, 1, 0]]
) / np.sqrt(3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A hospital's folder: a table with text and gaps, in both formats, and its schema."""
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text(TABLE)
        columns = {
            "clinic": ["north", "south", "north"],
            "age": [75, -999, 200],
            "bmi": [None, 30.0, 50.0],
            "sex": ["f", "unsure", "m"],
            "outcome": ["yes", "no", "no"],
        }
        parquet.write_table(pa.table(columns), tmp_path / f"{split}.parquet")
    data_source._load_once.cache_clear()
    return tmp_path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("alone", [False, True])
def test_a_table_with_text_and_gaps_is_encoded_by_its_schema(
    folder: Path, kind: str, alone: bool
) -> None:
    data_format = read_schema(folder / "schema.yaml")
    if alone:  # one node's rows, each read by itself
        data_format = replace(data_format, splits=("train",), leave_out_unfit=True)
    dataset = load_dataset(DataSource(kind, data_dir=str(folder), data_format=data_format))
    np.testing.assert_allclose(dataset.train_x, EXPECTED, rtol=1e-6)
    assert dataset.train_y.tolist() == [1, 0, 0]
    assert form_of(kind, data_format) == dataset.form
    if not alone:
        assert (dataset.measure, dataset.client_names) == ("auc", ("north", "south"))
        assert dataset.column_names[1:5] == ("age is missing", "bmi", "bmi is missing", "sex=f")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_cell_that_the_schema_does_not_describe_is_refused_or_its_row_is_empty(
    folder: Path, kind: str
) -> None:
    strict = SCHEMA.replace(", missing: ['*']", "").replace("[-999]", "[NA]")
    (folder / "schema.yaml").write_text(strict)
    shared = read_schema(folder / "schema.yaml")
    with pytest.raises(ValueError, match=r"does not describe in 'sex' \(1\): add") as error:
        load_dataset(DataSource(kind, data_dir=str(folder), data_format=shared))
    assert "unsure" not in str(error.value)
    own = replace(shared, splits=("train",), leave_out_unfit=True)
    dataset = load_dataset(DataSource(kind, data_dir=str(folder), data_format=own))
    assert dataset.train_fit is not None
    assert dataset.train_fit.tolist() == [True, False, True]
    assert not dataset.train_x[1].any()


@pytest.mark.parametrize("alone", [False, True])
def test_a_text_alone_is_carried_as_its_bytes(tmp_path: Path, alone: bool) -> None:
    schema = "label_column: good\nclasses: ['no', 'yes']\ncolumns: {note: {kind: text, length: 6}}"
    (tmp_path / "schema.yaml").write_text(schema)
    (tmp_path / "train.csv").write_text('note,good\n"so, so good",yes\n,no\nbad,no\n')
    (tmp_path / "test.csv").write_text("note,good\nNA,no\n")
    data_format = read_schema(tmp_path / "schema.yaml")
    if alone:
        data_format = replace(data_format, splits=("train",), leave_out_unfit=True)
    dataset = load_dataset(DataSource("csv", data_dir=str(tmp_path), data_format=data_format))
    assert texts_of(dataset.train_x) == ["so, so", "", "bad"]
    assert texts_of(dataset.test_x) == ([] if alone else ["NA"])
    assert dataset.form == form_of("csv", data_format) == Form((6,), 2, 256)
    assert dataset.column_names == ()


def test_a_draft_has_names_and_kinds_alone_and_trains_nothing(folder: Path) -> None:
    text = draft(kinds_of(folder / "train.csv"))
    for line in ("age: {kind: integer, range: }", "sex: {kind: category, categories: }"):
        assert line in text
    assert not any(cell in text for cell in ("north", "unsure", "75", "yes"))
    assert kinds_of(folder / "train.parquet") == kinds_of(folder / "train.csv")
    (folder / "schema.yaml").write_text(text)
    with pytest.raises(ValueError, match="label_column is blank: write what is publicly known"):
        read_schema(folder / "schema.yaml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("shares: [0.9, 0.1]", "shares: [0.9, 0.2]", "shares must be one number for each class"),
        ("[10, 50]", "", "column 'bmi': its range is blank: write what is publicly known, or buy"),
        ("range: [10", "ranges: [10", "column 'bmi': there is no key 'ranges': did you mean range"),
        ("  age:", "  outcome:", "'outcome' is the label_column, and can't be a feature"),
        ("kind: number", "kind: float", "column 'bmi': kind must be number, integer, truth, cat"),
        ("{kind: integer, range", "{range", "column 'age' must have facts like"),
        ("[f, m]", "f", "column 'sex': categories must be a list, got 'f'"),
        ("columns:", "mean: [1, 2, 3]\ncolumns:", "describe all of them, and leave out mean"),
    ],
)
def test_a_schema_that_is_wrong_says_what_to_write(
    folder: Path, old: str, new: str, words: str
) -> None:
    file = folder / "schema.yaml"
    file.write_text(SCHEMA.replace(old, new, 1))
    with pytest.raises(ValueError, match=words) as error:
        read_schema(file)
    assert str(error.value).startswith(f"{file}: ")


def test_a_format_without_facts_stays_as_it_was(folder: Path) -> None:
    plain = DataFormat(columns=("age",), types=("integer",), label_column="outcome")
    dataset = load_dataset(
        DataSource("csv", data_dir=str(folder), data_format=replace(plain, classes=("no", "yes")))
    )
    assert dataset.train_x.ravel().tolist() == [75.0, -999.0, 200.0]
