"""Words: each has one meaning, which the glossary says, and retired phrases stay away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("term", [*TERMS, "neighbours", "statement", "mode", "hosting"])
def test_the_glossary_defines_the_word(term: str) -> None:
    assert re.search(rf"^### {term}\n\n[A-Z]", GLOSSARY, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_links_each_word_that_it_uses_to_its_definition(page: str) -> None:
    prose, text = prose_of(page), (DOCS / page).read_text(encoding="utf-8")
    unlinked = [
        term
        for term, forms in TERMS.items()
        if re.search(rf"(?<![\w-]){forms}(?![\w-])", prose) and f"glossary.md#{term})" not in text
    ]
    assert unlinked == []


@pytest.mark.parametrize("page", [*PAGES, "glossary.md"])
def test_a_page_writes_no_retired_phrase(page: str) -> None:
    assert RETIRED.findall(prose_of(page)) == []
