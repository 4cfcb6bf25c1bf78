"""Pages as a browser reads them, and what must be in none of them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Elements, scripts (their type and text) and visible text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str, str]] = []
        self.text = ""
        self._inside = self._kind = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside, self._kind = tag, dict(attrs).get("type") or ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append((self._kind, data))
        elif self._inside != "style":
            self.text += data


def require_harmless(text: str, *, in_one_file: bool = False) -> None:
    """Check that a page has the scripts, addresses and attributes of our own templates alone.

    Args:
        text: Of the page.
        in_one_file: Whether scripts, styles and pictures of ours are in it, as in a report.
    """
    page = Page(text)
    address = r"(/(?!/)|\?|#|data:image/)" if in_one_file else r"(/(?!/)|\?|#)"
    for tag, attributes in page.elements:
        assert tag not in ("iframe", "object", "embed", "base"), tag
        if tag == "meta":
            assert {"content", "charset"} & set(attributes)
        if tag == "script" and not in_one_file:
            src = attributes.get("src") or ""
            assert src.startswith("/static/") or attributes["type"] == "application/json"
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert in_one_file or name != "style"
            if name in ("href", "src", "action", "formaction"):
                assert re.match(address, value or ""), (tag, name, value)
    for kind, said in page.scripts:
        if kind == "application/json":
            json.loads(said)
        else:
            assert "alert(" not in said
