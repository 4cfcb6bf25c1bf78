"""Tables of a page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the page.

    Attributes:
        caption: Above it.
        headings: Of its columns.
        rows: Text, as many in each as there are headings.
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
