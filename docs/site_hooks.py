"""Hooks of the documentation's site: anchors as in the repository, and links that leave `docs/`.

MkDocs calls what is named `on_...`. Pages are written for the repository's own viewer, so the site
takes its anchors, and shows a link to a file outside `docs/` as that file's name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
_SHIM = "https://unpkg.com/iframe-worker/shim"
_LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"?((?:https?:)?//[^\s\">]+)")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)\s]+|[^:)#\s]+)\)")


def anchor(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading, as GitHub and GitLab write it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def without_links_that_leave(text: str, folder: Path) -> str:
    """Return a page in which what leads out of `docs/` is the name of a file.

    Args:
        text: Markdown.
        folder: Where the page lies.
    """

    def shown(link: re.Match[str]) -> str:
        target = (folder / link[2].partition("#")[0]).resolve()
        if target.is_relative_to(DOCS) and target.suffix not in ("", ".py"):
            return link[0]
        root = DOCS.parent
        name = target.relative_to(root).as_posix() if target.is_relative_to(root) else link[2]
        return f"{link[1]} (`{name}`)"

    # Links in blocks of code are code; a link's text may be code itself.
    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)
    return "".join(p if p.startswith("```") else _LINK.sub(shown, p) for p in parts)


def on_config(config: Any) -> Any:
    """Give headings the anchors that links in the repository have."""
    config["mdx_configs"].setdefault("toc", {})["slugify"] = anchor
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write the links that leave `docs/` as names of files."""
    return without_links_that_leave(markdown, Path(page.file.abs_src_path).parent)


def on_post_build(config: Any) -> None:
    """Take out the one address that the theme's script would load, for search in a folder.

    Raises:
        ValueError: If a page or a script names another address that a browser would load.
    """
    site = Path(config["site_dir"])
    for script in site.glob("assets/javascripts/*.js"):
        text = script.read_text(encoding="utf-8")
        if _SHIM in text:
            script.write_text(text.replace(_SHIM, ""), encoding="utf-8")
    for page in site.rglob("*.html"):
        if loaded := _LOADED.search(page.read_text(encoding="utf-8")):
            raise ValueError(f"{page.relative_to(site)} would load {loaded[1]}")
