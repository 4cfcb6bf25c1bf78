"""Words, values and tables as a page shows them; a language is another file with the same keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).parent / "assets"

WORDS: Mapping[str, str] = json.loads((ASSETS / "page/words.json").read_text(encoding="utf-8"))


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


def shown_value(value: Any) -> str:
    """Return a setting's value as it is written, at most 80 characters of it."""
    match value:
        case None:
            text = "null"
        case bool():
            text = str(value).lower()
        case list():
            text = f"[{','.join(map(shown_value, value))}]"
        case _:
            text = str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
