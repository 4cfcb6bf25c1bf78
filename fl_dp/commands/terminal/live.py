"""Live lines: where they can be shown."""

from __future__ import annotations

from rich.console import Console


def shows_live(console: Console) -> bool:
    """Return whether a line can be written over: on a terminal that knows how.

    A notebook or a log may ask for colours by `FORCE_COLOR`, and rich takes it for a terminal then;
    a line that is written over would fill it.
    """
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
