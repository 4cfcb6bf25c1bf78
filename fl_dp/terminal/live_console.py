"""Whether a console can overwrite a line."""

from __future__ import annotations

from rich.console import Console


def shows_live(console: Console) -> bool:
    """Return whether a line can be overwritten: only on a terminal that can do it.

    `FORCE_COLOR` makes rich take a notebook or a log for a terminal; lines that are overwritten
    would fill it.
    """
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
