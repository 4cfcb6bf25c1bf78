"""The guide's list of settings that exclude each other, written from the rows themselves.

`docs/tables.py` writes it into docs/configuration.md.
"""

from __future__ import annotations

from typing import Any

from fl_dp.app.charged_choice import CHOOSING
from fl_dp.app.settings.run import EVERY_RUN
from fl_dp.option_errors import Exclusion
from fl_dp.plan.exclusions import EXCLUSIONS

ROWS: tuple[Exclusion[Any], ...] = (*EXCLUSIONS, *EVERY_RUN, *CHOOSING)
"""Every row that a configuration is checked by."""


def listed() -> str:
    """Return the rows as a list in Markdown; errors also say what to write instead."""
    lines = []
    for row in ROWS:
        options = ", ".join(f"`{option}`" for option in row.options)
        lines.append(f"- {options}: {row.why}.")
    return "\n".join(lines)
