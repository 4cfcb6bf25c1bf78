"""Rows of tables: fixed lists of categories and fixed constants, nothing fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fl_dp.tasks.datasets.columns import Number, encoded_rows, width

COLUMNS: dict[str, Number | tuple[str, ...]] = {
    "age": Number(centre=40, scale=10),
    "job": ("?", "clerk", "smith"),
    "income": Number(logarithm=True),
}
ROWS = [
    {"age": "50", "job": "smith", "income": "0", "name": "left out"},
    {"age": "25.5", "job": "?", "income": "99"},
]


def test_numbers_are_scaled_and_categories_become_one_hot() -> None:
    encoded = encoded_rows(ROWS, COLUMNS)
    assert encoded.dtype == np.float32
    expected = [[1, 0, 0, 1, 0], [-1.45, 1, 0, 0, np.log(100)]]
    np.testing.assert_allclose(encoded, expected, rtol=1e-6)
    assert width(COLUMNS) == 5


def test_a_row_s_numbers_do_not_depend_on_the_other_rows() -> None:
    np.testing.assert_array_equal(encoded_rows(ROWS[:1], COLUMNS), encoded_rows(ROWS, COLUMNS)[:1])


def test_no_rows_make_an_empty_table() -> None:
    assert encoded_rows([], COLUMNS).shape == (0, 5)


@pytest.mark.parametrize(
    "change", [{"job": "baker"}, {"age": "old"}, {"age": "nan"}, {"age": "inf"}, {"income": None}]
)
def test_a_cell_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        encoded_rows([ROWS[0] | change], COLUMNS)
