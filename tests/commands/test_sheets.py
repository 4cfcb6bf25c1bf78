"""A sheet shows its text as it is, on the terminal and in a file."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fl_dp.terminal.sheets import sheet, write_sheet


def shown(width: int) -> str:
    """Return a sheet on a terminal of some columns, without colours."""
    rows: list[tuple[str | Text, str]] = [("clipping=[red]", "4"), (Text("weight_cap=1"), "12.5")]
    text = io.StringIO()
    console = Console(file=text, width=width)
    console.print(sheet("[bold] of runs", ("setting", "epsilon"), rows, numbers=("epsilon",)))
    return text.getvalue()


def test_no_text_is_markup_and_numbers_stand_to_the_right() -> None:
    text = shown(60)
    assert "[bold] of runs" in text
    assert "│ clipping=[red] │       4 │" in text
    assert "│ weight_cap=1   │    12.5 │" in text


def test_where_there_is_no_room_text_is_folded_and_never_cut() -> None:
    text = shown(20)
    assert "…" not in text
    cells = [line.split("│")[1].strip() for line in text.splitlines() if "│" in line]
    assert "".join(cells) == "clipping=[red]weight_cap=1"


def test_a_file_has_a_head_line_and_an_empty_cell_for_none(tmp_path: Path) -> None:
    write_sheet(tmp_path / "a.csv", ("name", "mse"), [("a, b", 0.5), ("c", None)])
    assert (tmp_path / "a.csv").read_bytes() == b'name,mse\n"a, b",0.5\nc,\n'
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as stream:
        assert list(csv.reader(stream)) == [["name", "mse"], ["a, b", "0.5"], ["c", ""]]
