"""Sheets: rows under headings, as a table of the terminal or a file for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fl_dp.files import write_text


def sheet(
    title: str | None,
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    numbers: Collection[str] = (),
) -> Table:
    """Return rows as a table of the terminal; none of its text is read as markup, or cut.

    Args:
        title: Above the table.
        headings: Of the columns.
        rows: A cell for each heading.
        numbers: Headings of columns that stand to the right, as numbers do.
    """
    table = Table(title=None if title is None else escape(title))
    for heading in headings:
        table.add_column(
            escape(heading), justify="right" if heading in numbers else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def write_sheet(
    target: Path, headings: Sequence[str], rows: Iterable[Sequence[object]], *, public: bool = False
) -> None:
    """Write rows as a CSV with a head line, whole or not at all.

    Args:
        target: The file.
        headings: Of the columns.
        rows: A value for each heading; None is an empty cell.
        public: Whether other users of this machine may read it.

    Raises:
        OSError: If it can't be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    write_text(target, text.getvalue(), public=public)
