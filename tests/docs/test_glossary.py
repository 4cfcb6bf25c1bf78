"""Words: each has one meaning, which the glossary says, and retired phrases stay away."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")
# It keeps to a table of its own words.
PAGES = sorted({page.name for page in DOCS.glob("*.md")} - {"glossary.md", "pitfalls.md"})
TERMS = {
    "adversary": "adversary",
    "charge": "charges?",
    "client": "clients?",
    "cohort": "cohorts?",
    "ledger": "ledgers?",
    "node": "nodes?",
    "record": "records?",
    "release": "releases?",
    "reservation": "reservations?",
    "roster": "rosters?",
    "unit": "units?",
}
RETIRED = re.compile(
    r"goes? on with|gone on with|as they come\b|comes? about|on the way\b|in sight|its papers"
)


def prose_of(page: str) -> str:
    """Return what is no code, no table, no heading and no link."""
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "<"))]
    return re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)|\*\*[^*]*\*\*", "", "\n".join(lines))


def test_the_glossary_defines_each_word() -> None:
    defined = set(re.findall(r"^### (\w+)\n\n[A-Z]", GLOSSARY, re.MULTILINE))
    assert {*TERMS, "neighbours", "statement", "mode", "hosting"} <= defined


def test_a_page_links_each_word_that_it_uses_to_its_definition() -> None:
    unlinked = [
        (page, term)
        for page in PAGES
        for term, forms in TERMS.items()
        if re.search(rf"(?<![\w-]){forms}(?![\w-])", prose_of(page))
        and f"glossary.md#{term})" not in (DOCS / page).read_text(encoding="utf-8")
    ]
    assert unlinked == []


def test_no_page_writes_a_retired_phrase() -> None:
    pages = [*PAGES, "glossary.md"]
    assert {page: RETIRED.findall(prose_of(page)) for page in pages} == {page: [] for page in pages}
