"""The guide's table of settings that exclude each other, written from the rows themselves.

`docs/tables.py` writes it into docs/configuration.md.
"""

from __future__ import annotations

from typing import Any

from fl_dp.app.option_keys import in_keys
from fl_dp.app.settings.run import EVERY_RUN
from fl_dp.lab.tuning.candidates import CHOOSING
from fl_dp.option_errors import Exclusion, rendered
from fl_dp.plan.exclusions import EXCLUSIONS

ROWS: tuple[Exclusion[Any], ...] = (*EXCLUSIONS, *EVERY_RUN, *CHOOSING)
"""Every row that a configuration is checked by."""


def table() -> str:
    """Return the table in Markdown, a line per row."""
    lines = ["| settings | why not | what to write |", "|---|---|---|"]
    for row in ROWS:
        why, instead = (rendered(text, in_keys) for text in row.for_any_value)
        lines.append(f"| {', '.join(_keys(row))} | {why} | {instead} |")
    return "\n".join(lines)


def _keys(row: Exclusion[Any]) -> list[str]:
    """Return the keys that a row is about, as code."""
    return [f"`{key}`" for key in dict.fromkeys(in_keys(each, None) for each in row.options)]
