"""The decisions have one form, a number each, and a table of topics that names each of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
HEADING = re.compile(r"^## Decision (?=\d{4}$)", re.MULTILINE)
FORM = re.compile(
    r"(?P<number>\d{4})\n\n"
    r"\*\*(?P<title>\S.*)\*\* \((?P<date>\d{4}-\d{2}-\d{2})\)\n\n"
    r"(?P<sentences>(?:\S.*\.\n){1,4})\n?"
)


@dataclass(frozen=True)
class Decision:
    """One entry of a topic's page."""

    page: str
    number: str
    date: str
    title: str
    sentences: tuple[str, ...]

    @classmethod
    def read(cls, page: str, text: str) -> Decision:
        entry = FORM.fullmatch(text)
        assert entry, f"{page}: an entry does not have the form of TEMPLATE.md:\n{text[:200]}"
        sentences = tuple(entry["sentences"].splitlines())
        return cls(page, entry["number"], entry["date"], entry["title"], sentences)

    @property
    def link(self) -> str:
        return f"{self.page}#decision-{self.number}"


def topics() -> list[Path]:
    return sorted(
        path for path in FOLDER.iterdir() if path.name not in ("README.md", "TEMPLATE.md")
    )


def decisions() -> list[Decision]:
    """Return every entry, page by page, in the order in which it stands there."""
    entries = []
    for path in topics():
        title, *texts = HEADING.split(path.read_text(encoding="utf-8"))
        assert re.fullmatch(r"# Decisions: \S.*\n\n", title), path.name
        entries += [Decision.read(path.name, text) for text in texts]
    return entries


def test_each_number_is_given_once_and_a_page_is_in_their_order() -> None:
    entries = decisions()
    numbers = [entry.number for entry in entries]
    assert len(numbers) == len(set(numbers)) >= 50
    for before, after in pairwise(entries):
        assert before.page != after.page or before.number < after.number


def test_the_table_of_topics_names_every_decision_on_its_page() -> None:
    rows = re.findall(
        r"^\| \[[^]]+\]\((\S+\.md)\) \| (.*) \|$",
        (FOLDER / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    entries = decisions()
    for page, numbers in rows:
        of_page = [entry for entry in entries if entry.page == page]
        assert numbers == ", ".join(f"[{entry.number}]({entry.link})" for entry in of_page), page
    assert {page for page, _ in rows} == {path.name for path in topics()}
