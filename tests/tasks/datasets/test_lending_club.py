"""The LendingClub loader, on a made table in the package's format."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from fl_dp.tasks.datasets.columns import Number
from fl_dp.tasks.datasets.lending_club import COLUMNS, STATES, load_lending_club, parse_lending_club

NUM_ROWS = 100


def row(number: int) -> dict[str, Any]:
    cells = {
        name: "3" if isinstance(column, Number) else column[number % len(column)]
        for name, column in COLUMNS.items()
    }
    cells["addr_state"] = STATES[number % 7]
    return cells | {"Class": "bad" if number % 10 == 0 else "good"}


ROWS = [row(number) for number in range(NUM_ROWS)]


def table(quoting: Literal[0, 2] = csv.QUOTE_MINIMAL, rows: list[Any] = ROWS) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], quoting=quoting, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def test_the_table_loads_with_its_states_as_clients() -> None:
    loans = parse_lending_club(table(), NUM_ROWS)
    assert loans.train_x.shape == (80, 69)
    assert loans.test_x.shape == (20, 69)
    assert loans.client_names == STATES
    assert len(STATES) == 50
    assert loans.train_clients is not None
    assert set(loans.train_clients) == set(range(7))
    assert np.bincount(loans.test_y).tolist() == [18, 2]


def test_the_state_is_no_input() -> None:
    moved = [row(number) | {"addr_state": "WY"} for number in range(NUM_ROWS)]
    loans, elsewhere = (parse_lending_club(text, NUM_ROWS) for text in (table(), table(rows=moved)))
    np.testing.assert_array_equal(loans.train_x, elsewhere.train_x)
    assert elsewhere.train_clients is not None
    assert set(elsewhere.train_clients) == {STATES.index("WY")}


def test_clients_follow_their_rows_through_the_split() -> None:
    # The state of a row is told by its input: every grade belongs to one state here.
    rows = [row(number) | {"addr_state": STATES[number % 35]} for number in range(NUM_ROWS)]
    loans = parse_lending_club(table(rows=rows), NUM_ROWS)
    start = 4  # after funded_amnt, term (two) and int_rate
    np.testing.assert_array_equal(
        loans.train_x[:, start : start + 35].argmax(axis=1), loans.train_clients
    )


def test_quoted_cells_as_r_writes_them_are_read_alike() -> None:
    plain = parse_lending_club(table(), NUM_ROWS)
    quoted = parse_lending_club(table(csv.QUOTE_NONNUMERIC), NUM_ROWS)
    np.testing.assert_array_equal(plain.train_x, quoted.train_x)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (table(rows=[row(1)]), "has 1 rows, the table has 100"),
        (table().replace("addr_state", "state"), "column 'addr_state' holds ''"),
        (table().replace("int_rate", "rate"), "has no column 'int_rate'"),
        (table().replace("bad", "ugly"), "column 'Class' holds 'ugly'"),
        (table().replace("term_60", "term_99"), "column 'term' holds 'term_99'"),
    ],
)
def test_another_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_lending_club(text, NUM_ROWS)


def test_a_table_of_another_size_in_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lending_club.csv").write_text(table())
    with pytest.raises(ValueError, match="has 100 rows, the table has 9857"):
        load_lending_club(str(tmp_path))


def test_the_error_without_data_says_how_r_writes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"write\.csv\(modeldata::lending_club"):
        load_lending_club()
