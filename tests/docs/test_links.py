"""Every link in the repository's pages leads to a file, and to a heading in it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (".", ".github", "docs", "examples")
    for path in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and GitLab write them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def has_anchor(target: Path, anchor: str) -> bool:
    """Return whether a page has a heading, or a file of Python a function, of that name."""
    if target.suffix == ".py":
        return f"\ndef {anchor}(" in target.read_text(encoding="utf-8")
    return anchor in anchors(target)


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and not has_anchor(target, anchor)):
            broken.append(link)
    return broken


def test_the_pages_are_those_that_a_reader_meets_first_and_more() -> None:
    assert {"README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/privacy.md"} < set(PAGES)


def test_links_lead_to_a_file_and_to_a_heading_in_it() -> None:
    broken = {page: broken_links(ROOT / page) for page in PAGES}
    assert {page: links for page, links in broken.items() if links} == {}


def test_a_missing_file_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A `heading`, with marks\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[1](there.md#a-heading-with-marks) [2](there.md#none) [3](gone.md) `[4](code.md)` [5](#x)",
        encoding="utf-8",
    )
    assert broken_links(page) == ["there.md#none", "gone.md", "#x"]


def test_files_that_the_architecture_names_are_there() -> None:
    """Somebody who wants to add something opens them; `NAME` and `CODE` stand for what is new."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:fl_dp|strategies|tests|conf|docs|deploy|benchmarks)/[\w/.-]+)`", text)
    real = [name for name in named if not re.search(r"NAME|CODE", name)]
    assert len(real) > 50
    assert [name for name in real if not (ROOT / name).exists()] == []
