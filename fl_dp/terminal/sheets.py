"""Sheets: rows under headings, as a table of the terminal or a file for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from rich.console import JustifyMethod
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
    """Return rows as a table of the terminal; its text is neither read as markup nor cut.

    Columns that `numbers` names are aligned to the right.
    """
    if title is not None:
        title = escape(title)
    table = Table(title=title)
    for heading in headings:
        side: JustifyMethod = "right" if heading in numbers else "left"
        table.add_column(escape(heading), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def write_sheet(
    target: Path, headings: Sequence[str], rows: Iterable[Sequence[object]], *, public: bool = False
) -> None:
    """Write rows as a CSV with a head line, whole or not at all.

    None is an empty cell. Other users of this machine may read a public file.

    Raises:
        OSError: If it can't be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    write_text(target, text.getvalue(), public=public)
