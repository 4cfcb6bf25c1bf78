"""Columns of a table: public facts encode them into the unit ball, and nothing is fitted."""

from __future__ import annotations

import numpy as np
import pytest

from fl_dp.tasks.datasets.columns import (
    Cells,
    Column,
    coordinate_names,
    encoded_rows,
    encoding_of,
    width,
)
from fl_dp.tasks.datasets.forms import DataFormat

NAN = float("nan")
AGE = Column(kind="integer", range=(0.0, 100.0), missing=("-999", "unknown"))
JOB = Column(kind="category", categories=("None", "clerk", "1"), missing=())
DOSE = Column(kind="number", range=(-1.0, 3.0))
SMOKES = Column(kind="truth", missing=("*",))


@pytest.mark.parametrize(
    ("column", "cells", "expected"),
    [
        (DOSE, ["1", "-1", "2.0", "99"], [[0.0], [-1.0], [0.5], [1.0]]),
        (DOSE, ["", "nan", "inf", "high", "1_0", None], [[NAN]] * 6),
        (AGE, ["75", "-999", "-999.0", "unknown", ""], [[0.5, 0], [0, 1], [0, 1], [0, 1], [0, 1]]),
        (AGE, ["7.5", "old", None], [[NAN, 0]] * 3),
        (JOB, ["None", "1.0", "", "NA"], [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]]),
        (JOB, ["baker", None], [[NAN, NAN, NAN, 0]] * 2),
        (SMOKES, ["true", "0", "sometimes", "2"], [[1, 0], [-1, 0], [0, 1], [0, 1]]),
    ],
)
def test_a_cell_becomes_numbers_by_its_column_s_facts_alone(
    column: Column, cells: list[str | None], expected: list[list[float]]
) -> None:
    np.testing.assert_array_equal(column.coordinates(cells), expected)
    assert column.width == len(expected[0])
    assert Column.of_text(column.text) == column


def test_every_row_is_in_the_unit_ball_and_depends_on_no_other() -> None:
    texts = [
        ["-5", "100", "-999", "200"],
        ["clerk", "", "1", "None"],
        ["3", "-8", "1e9", "-1"],
        ["true", "?", "false", ""],
    ]
    columns = [AGE, JOB, DOSE, SMOKES]
    x = encoded_rows(columns, [Cells.of(column) for column in texts])
    assert x.shape == (4, width(columns)) == (4, 9)
    norms = np.linalg.norm(x, axis=1)
    assert norms.max() <= 1.0 + 1e-12
    assert norms[[0, 1]] == pytest.approx(1.0)  # each column is as long as it may be
    alone = encoded_rows(columns, [Cells.of(column[2:3]) for column in texts])
    np.testing.assert_array_equal(alone, x[2:3])
    assert len(coordinate_names(["age", "job", "dose", "smokes"], columns)) == 9


def test_any_text_is_counted_and_one_that_is_none_is_missing() -> None:
    note = Column(kind="words", missing=("unknown",))
    cells = ["Pain, pain in the knee", "", "unknown", "n/a", "knee, pain the in pain"]
    x = note.coordinates([*cells, None])
    assert x.shape == (6, note.width) == (6, 1025)
    assert len(coordinate_names(["note"], [note])) == 1025
    np.testing.assert_allclose(np.linalg.norm(x[:5], axis=1), 1.0)
    assert x[:5, -1].tolist() == [0, 1, 1, 1, 0]
    np.testing.assert_array_equal(x[0], x[4])  # words, not their order
    assert np.isnan(x[5, :-1]).all()
    without = Column(kind="words").coordinates(cells)
    np.testing.assert_array_equal(without[0], x[0, :-1])
    assert np.isnan(without[1:4]).all(axis=1).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"kind": "integer"}, "its range is blank: write what is publicly known"),
        ({"kind": "category"}, "its categories are blank"),
        (
            {"kind": "note"},
            "kind must be number, integer, truth, category, words, text, got 'note'",
        ),
        ({"kind": "text"}, "its length is blank"),
        ({"kind": "text", "length": 0}, "length must be at least 1, got 0"),
        ({"kind": "text", "length": 9, "missing": ()}, "kind text has no missing: leave it out"),
        ({"kind": "number", "range": (1.0, 1.0)}, "range must be two numbers that rise"),
        ({"kind": "category", "categories": ("1", "1.0")}, "categories must be two or more, each"),
        ({"kind": "number", "range": (0.0, 1.0), "categories": ("a", "b")}, "has no categories"),
        ({"kind": "words", "range": (0.0, 1.0)}, "kind words has no range: leave it out"),
    ],
)
def test_facts_that_are_blank_or_contradict_each_other_are_refused(
    facts: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Column(**facts)  # type: ignore[arg-type]  # as a file may hold them


def test_columns_are_all_described_or_none_is() -> None:
    some = DataFormat(columns=("age", "dose"), types=(AGE.text, "number"))
    with pytest.raises(ValueError, match="describe all of them"):
        encoding_of(some)
    text = Column(kind="text", length=9)
    with pytest.raises(ValueError, match="beside other columns write kind: words"):
        encoding_of(DataFormat(columns=("age", "note"), types=(AGE.text, text.text)))
    assert encoding_of(DataFormat(columns=("age",), types=("integer",))) is None
    assert encoding_of(DataFormat(columns=("age",), types=(AGE.text,))) == (AGE,)
