"""Public tables, on a few rows in their files' own format."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.columns import encoding_of, width
from fl_dp.tasks.datasets.public_tables import (
    adult_rows,
    encoded_part,
    load_adult,
    load_hospital_stay,
    schema_of,
)
from fl_dp.tasks.datasets.r_data import rows_of_table

TRAIN = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K\n"
    "52, ?, 209642, HS-grad, 9, Married-civ-spouse, ?, Wife, Black, Female, 0, 1902, 45, ?, >50K\n"
    "\n"
)
TEST = (
    "|1x3 Cross validator\n"
    "25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, Male, "
    "0, 0, 40, United-States, <=50K.\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two tiny files, which are expected."""
    files = {"adult.data": TRAIN, "adult.test": TEST}
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    made = {file: hashlib.md5(text.encode()).hexdigest() for file, text in files.items()}
    monkeypatch.setitem(sources.SOURCES, "adult", replace(sources.SOURCES["adult"], md5=made))
    return tmp_path


def parse(text: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    return encoded_part("adult", adult_rows(text))


def column(name: str) -> int:
    """Return where a column's numbers begin."""
    before = (schema_of("adult").columns or ()).index(name)
    return width((encoding_of(schema_of("adult")) or ())[:before])


def test_both_files_load_with_their_own_split(folder: Path) -> None:
    adult = load_adult(str(folder))
    assert adult.input_shape == (92,)
    assert adult.train_y.tolist() == [0, 1]
    assert adult.test_y.tolist() == [0]
    assert adult.num_classes == 2


def test_numbers_and_categories_stand_where_the_schema_says_in_the_unit_ball() -> None:
    x, _ = parse(TRAIN)
    rows = x * np.sqrt(13)
    np.testing.assert_allclose(rows[0, column("age")], 2 * 22 / 73 - 1, rtol=1e-5)
    np.testing.assert_allclose(rows[0, column("capital-gain")], 2 * 0.1087 - 1, rtol=1e-5)
    np.testing.assert_allclose(rows[1, column("capital-loss")], 2 * 0.4755 - 1, rtol=1e-5)
    # Seven columns of categories, one 1 each.
    encoding = encoding_of(schema_of("adult")) or ()
    numbers = [
        column(name)
        for name, one in zip(schema_of("adult").columns or (), encoding, strict=True)
        if one.range
    ]
    np.testing.assert_allclose(np.delete(rows, numbers, 1).sum(axis=1), [7, 7], rtol=1e-6)
    assert np.linalg.norm(x, axis=1).max() <= 1.0


def test_an_unknown_value_is_a_category_of_its_own() -> None:
    rows, _ = parse(TRAIN)
    for name in ("workclass", "occupation", "native-country"):
        assert rows[:, column(name)].astype(bool).tolist() == [0, 1]


def test_a_label_may_end_with_a_full_stop() -> None:
    assert parse(TEST)[1].tolist() == [0]
    assert parse(TEST.replace("<=50K.", ">50K."))[1].tolist() == [1]


@pytest.mark.parametrize(
    "text",
    [
        "39, State-gov\n",
        TRAIN.replace("State-gov", "Pirate"),
        TRAIN.replace("<=50K", "rich"),
        TRAIN.replace("77516", "many"),
    ],
)
def test_a_row_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


STAYS = """"","los","procedure","sex","age75","admit","hospital"
"1",9,1,0,0,1,3.60000014305115
"2",8,0,0,1,1,6.5
"""


def test_a_stay_is_long_from_nine_days_on_and_each_hospital_is_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = STAYS + "".join(f'"{row}",{row},0,1,0,0,6.5\n' for row in range(1, 19))
    (tmp_path / "azpro.csv").write_text(table)
    digest = hashlib.md5(table.encode()).hexdigest()
    source = replace(sources.SOURCES["hospital_stay"], md5={"azpro.csv": digest})
    monkeypatch.setitem(sources.SOURCES, "hospital_stay", source)
    stays = load_hospital_stay(str(tmp_path))
    assert stays.client_names == ("hospital 3.6", "hospital 6.5")
    assert stays.class_names == ("short", "long")
    assert (len(stays.train_y), len(stays.test_y)) == (16, 4)
    assert stays.train_clients is not None and stays.test_clients is not None
    rows = np.concatenate([stays.train_x, stays.test_x])
    long = np.concatenate([stays.train_y, stays.test_y]) == 1
    assert long.sum() == 11  # of nine days, and of 9 to 18
    hospitals = np.concatenate([stays.train_clients, stays.test_clients])
    [first] = np.flatnonzero(hospitals == 0)
    assert long[first] and rows[first].tolist() == [0.5, -0.5, -0.5, 0.5]


def r_object(kind: int, body: bytes, **attributes: bytes) -> bytes:
    """Write an object as R serializes it, with attributes as pairs of a symbol and a value."""
    raw = struct.pack(">i", kind | (512 if attributes else 0)) + body
    for name, value in attributes.items():
        raw += struct.pack(">ii", 2 | 1024, 1) + r_text(name) + value
    return raw + struct.pack(">i", 254) if attributes else raw


def r_text(text: str) -> bytes:
    return struct.pack(">ii", 9, len(text)) + text.encode()


def r_texts(*texts: str) -> bytes:
    return r_object(16, struct.pack(">i", len(texts)) + b"".join(map(r_text, texts)))


def r_numbers(kind: int, *values: float, **attributes: bytes) -> bytes:
    form = f">i{len(values)}{'i' if kind == 13 else 'd'}"
    return r_object(kind, struct.pack(form, len(values), *values), **attributes)


def r_list(**items: bytes) -> bytes:
    return r_object(
        19, struct.pack(">i", len(items)) + b"".join(items.values()), names=r_texts(*items)
    )


def test_a_table_of_r_is_read_without_r_and_a_damaged_one_is_refused() -> None:
    head = b"X\n" + struct.pack(">iiii", 3, 0, 0, 5) + b"UTF-8"
    table = r_list(
        grade=r_numbers(13, 2, -(2**31), 1, levels=r_texts("A", "B")),
        income=r_numbers(14, 0.5, 35000.0, float("nan")),
        loans=r_numbers(13, 3, -(2**31), 0),
    )
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
    packed = lzma.compress(head + table, format=lzma.FORMAT_RAW, filters=filters)
    database = b"before" + struct.pack(">I", len(table)) + b"Z" + packed
    place = r_numbers(13, 6, 5 + len(packed))
    index = gzip.compress(head + r_list(variables=r_list(one=place)))
    assert rows_of_table(index, database, "one") == [
        {"grade": "B", "income": "0.5", "loans": "3"},
        {"grade": "", "income": "35000", "loans": ""},
        {"grade": "A", "income": "", "loans": "0"},
    ]
    for damaged in ((index[:20], database), (index, database[:20]), (b"", b"")):
        with pytest.raises(ValueError, match="no table 'one' of R can be read"):
            rows_of_table(*damaged, "one")
    with pytest.raises(ValueError):
        rows_of_table(index, database, "two")
