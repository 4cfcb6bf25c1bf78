"""A node's own rows, each read by itself: what one holds decides nothing of another."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fresh_data_sets import fresh_data_sets as fresh_data_sets
from PIL import Image
from pyarrow import parquet

from fl_dp.tasks.datasets import DataFormat, Dataset, DataSource, data_source, load_dataset

COLUMNS, CLASSES = ("age", "pressure"), ("well", "ill")
TABLE = DataFormat(columns=COLUMNS, classes=CLASSES, splits=("train",), leave_out_unfit=True)
IMAGES = DataFormat(classes=CLASSES, image_shape=(1, 4, 4), splits=("train",), leave_out_unfit=True)
GOOD = [b"61,140.5,ill,x", b'35,120,"well","a, b"', b"48,true,ill,", b"52,118,well,z"]
HEADER = b"age,pressure,label,note"
FOUND = np.array([[61, 140.5], [35, 120], [48, 1], [52, 118]], np.float32)


def csv_of(folder: Path, lines: list[bytes], *, end: bytes = b"\n") -> Dataset:
    data_source._load_once.cache_clear()
    (folder / "train.csv").write_bytes(end.join([HEADER, *lines]) + end)
    return load_dataset(DataSource("csv", data_dir=str(folder), data_format=TABLE))


BAD_LINES = {
    "missing cell": b"50,,ill,x",
    "text": b"50,high,ill,x",
    "nan": b"50,nan,ill,x",
    "infinite": b"inf,1,ill,x",
    "beyond float32": b"50,1e300,ill,x",
    "unknown label": b"50,1,dead,x",
    "no label": b"50,1,,x",
    "short": b"50,1",
    "long": b"50,1,ill,x,y,z",
    "a quote that is not closed": b'50,"1,ill,x',
    "a quote in the middle": b'50,1"2"3,ill,x',
    "thousands as Python writes them": b"50,1_000,ill,x",
    "thousands as people write them": b'50,"1,000",ill,x',
    "a decimal comma": b'50,"1,5",ill,x',
    "no text": b"50,1,ill,\xff\xfe",
    "null bytes": b"50\x00,1,ill,x",
    "carriage return": b"50\r51,1,ill,x",
    "separators alone": b",,,",
    "the header again": HEADER,
    "a huge cell": b"50,1,ill," + b"x" * 200_000,
}


@pytest.mark.parametrize("bad", BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_that_is_no_record_counts_as_one_without_content_and_changes_no_other(
    tmp_path: Path, bad: bytes
) -> None:
    place = 2
    dataset = csv_of(tmp_path, [*GOOD[:place], bad, *GOOD[place:]])
    fit = np.arange(5) != place
    assert dataset.train_fit is not None
    assert dataset.train_fit.tolist() == fit.tolist()
    np.testing.assert_array_equal(dataset.train_x[fit], FOUND)
    assert dataset.train_y[fit].tolist() == [1, 0, 1, 0]
    assert not dataset.train_x[place].any()


def test_lines_may_end_as_on_windows_and_begin_with_a_mark(tmp_path: Path) -> None:
    dataset = csv_of(tmp_path, GOOD, end=b"\r\n")
    np.testing.assert_array_equal(dataset.train_x, FOUND)
    file = tmp_path / "train.csv"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    data_source._load_once.cache_clear()
    again = load_dataset(DataSource("csv", data_dir=str(tmp_path), data_format=TABLE))
    np.testing.assert_array_equal(again.train_x, FOUND)


def test_a_table_without_the_columns_has_rows_and_none_that_fits(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(b"a,b\n1,2\n3,4\n\n")
    dataset = load_dataset(DataSource("csv", data_dir=str(tmp_path), data_format=TABLE))
    assert dataset.train_fit is not None
    assert dataset.train_fit.tolist() == [False, False]
    assert dataset.input_shape == (2,)


def parquet_of(folder: Path, columns: dict[str, Any]) -> Dataset:
    data_source._load_once.cache_clear()
    parquet.write_table(pa.table(columns), folder / "train.parquet")
    return load_dataset(DataSource("parquet", data_dir=str(folder), data_format=TABLE))


@pytest.mark.parametrize(
    ("ages", "labels", "fit"),
    [
        ([61, None, 48], ["ill", "ill", "well"], [True, False, True]),
        ([61.0, math.nan, math.inf], ["ill", "ill", "well"], [True, False, False]),
        (["61", "n/a", "48"], ["ill", "ill", "well"], [True, False, True]),
        ([True, False, None], ["ill", None, "well"], [True, False, False]),
        ([61, 50, 48], ["ill", "dead", ""], [True, False, False]),
        (pa.array([0, 1, 2], pa.timestamp("s")), ["ill"] * 3, [False] * 3),
        (pa.array(["61", "x", "48"]).dictionary_encode(), ["ill"] * 3, [True, False, True]),
    ],
)
def test_a_cell_of_parquet_is_a_number_or_its_row_no_record(
    tmp_path: Path, ages: Any, labels: list[Any], fit: list[bool]
) -> None:
    dataset = parquet_of(tmp_path, {"age": ages, "pressure": [1, 2, 3], "label": labels})
    assert dataset.train_fit is not None
    assert dataset.train_fit.tolist() == fit
    assert dataset.train_x[~np.array(fit)].sum() == 0


def test_an_image_that_is_none_changes_no_other(tmp_path: Path) -> None:
    for name in ("well", "ill", "dead", "north/ill"):
        (tmp_path / "train" / name).mkdir(parents=True)
    for place, name in enumerate(("well/a.png", "ill/b.png", "dead/c.png", "north/ill/d.png")):
        Image.fromarray(np.full((4, 4), 10 + place, np.uint8)).save(tmp_path / "train" / name)
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(tmp_path / "train/ill/large.png")
    whole = (tmp_path / "train/ill/b.png").read_bytes()
    (tmp_path / "train/ill/cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "train/ill/notes.txt").write_text("patient 4711")
    (tmp_path / "train/beside.png").write_bytes(whole)
    (tmp_path / "train/.hidden").write_bytes(whole)
    dataset = load_dataset(DataSource("folder", data_dir=str(tmp_path), data_format=IMAGES))
    assert dataset.train_fit is not None
    assert len(dataset.train_fit) == 7  # in the order of their paths
    assert dataset.train_x[dataset.train_fit][:, 0, 0, 0].tolist() == [11, 13, 10]
    assert dataset.train_y[dataset.train_fit].tolist() == [1, 1, 0]


def test_a_date_is_scaled_before_it_is_rounded(tmp_path: Path) -> None:
    seconds = [1_700_000_000 + number for number in range(100)]
    lines = "".join(f"{when},1,ill\n" for when in seconds)
    (tmp_path / "train.csv").write_text(f"age,pressure,label\n{lines}")
    scaled = replace(TABLE, mean=(1.7e9, 0.0), std=(100.0, 1.0))
    dataset = load_dataset(DataSource("csv", data_dir=str(tmp_path), data_format=scaled))
    np.testing.assert_allclose(dataset.train_x[:, 0], np.arange(100) / 100, rtol=1e-6)


def test_names_and_labels_are_compared_without_blanks_and_in_one_form(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(" age, pressure ,label \n61,140, Zu\u0308rich\n35,1,TRUE\n")
    data_format = replace(TABLE, classes=("Z\u00fcrich", "true"))
    dataset = load_dataset(DataSource("csv", data_dir=str(tmp_path), data_format=data_format))
    assert dataset.train_fit is not None
    assert dataset.train_fit.tolist() == [True, True]
    assert dataset.train_y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [("age;pressure;label\n61;140,5;ill\n", "utf-8"), ("age,label\n61,140\n", "utf-16")],
)
def test_a_first_line_that_names_no_columns_leaves_no_row_and_is_logged(
    tmp_path: Path, text: str, encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "train.csv").write_bytes(text.encode(encoding))
    dataset = load_dataset(DataSource("csv", data_dir=str(tmp_path), data_format=TABLE))
    assert dataset.train_fit is not None
    assert not dataset.train_fit.any()
    assert "train.csv" in caplog.text
    assert "140" not in caplog.text
