"""Public tables, on a few rows in their files' own format."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_dp.tasks.datasets import sources
from fl_dp.tasks.datasets.columns import encoding_of, width
from fl_dp.tasks.datasets.public_tables import adult_rows, encoded_part, load_adult, schema_of

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
