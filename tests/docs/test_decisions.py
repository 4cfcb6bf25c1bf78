"""The decisions have one form, no gaps, and a table of topics that names each of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
HEADING = re.compile(r"^## Decision (?=\d{4}$)", re.MULTILINE)
FORM = re.compile(
    r"(?P<number>\d{4})\n\n"
    r"(?:\*\*\S.*\*\* \((?P<date>\d{4}-\d{2}-\d{2})\)"
    r"|~~\S.*~~ \((?P<struck>\d{4}-\d{2}-\d{2});"
    r" superseded by \[(?P<successor>\d{4})\]\(\S+\)\))\n\n"
    r"Context: (?s:\S.*)\n\nDecision: (?s:\S.*)\n"
)


@dataclass(frozen=True)
class Decision:
    """One entry of a topic's page."""

    page: str
    number: str
    date: str
    successor: str | None
    text: str

    @classmethod
    def read(cls, page: str, text: str) -> Decision:
        found = FORM.fullmatch(text)
        assert found, f"{page}: an entry does not have the form of TEMPLATE.md:\n{text[:200]}"
        day = found["date"] or found["struck"]
        return cls(page, found["number"], day, found["successor"], text)

    @property
    def link(self) -> str:
        return f"{self.page}#decision-{self.number}"


def topics() -> list[Path]:
    return sorted(
        path for path in FOLDER.iterdir() if path.name not in ("README.md", "TEMPLATE.md")
    )


def decisions() -> list[Decision]:
    """Return every entry, in the order of their numbers."""
    found = []
    for path in topics():
        title, *entries = HEADING.split(path.read_text(encoding="utf-8"))
        assert re.fullmatch(r"# Decisions: \S.*\n\n", title), path.name
        found += [Decision.read(path.name, text) for text in entries]
    return sorted(found, key=lambda one: one.number)


def test_decisions_are_numbered_from_one_without_gaps() -> None:
    numbers = [one.number for one in decisions()]
    assert numbers == [f"{number:04d}" for number in range(1, len(numbers) + 1)]
    assert len(numbers) >= 164  # those taken while each had a page of its own


def test_the_table_of_topics_names_every_decision_on_its_page() -> None:
    rows = re.findall(
        r"^\| \[[^]]+\]\((\S+\.md)\) \| (.*) \|$",
        (FOLDER / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    for page, numbers in rows:
        of_page = [one for one in decisions() if one.page == page]
        assert numbers == ", ".join(f"[{one.number}]({one.link})" for one in of_page), page
    assert {page for page, _ in rows} == {path.name for path in topics()}


def test_dates_of_decisions_are_days_of_the_calendar() -> None:
    for one in decisions():
        date.fromisoformat(one.date)


def test_a_superseded_decision_names_a_later_one_that_is_there_and_names_it_back() -> None:
    by_number = {one.number: one for one in decisions()}
    superseded = [one for one in by_number.values() if one.successor is not None]
    assert superseded
    for one in superseded:
        assert one.successor is not None and one.successor > one.number, one.number
        assert f"#decision-{one.number})" in by_number[one.successor].text, one.number


def test_the_template_has_the_form_once_its_placeholders_are_filled() -> None:
    template = (FOLDER / "TEMPLATE.md").read_text(encoding="utf-8")
    filled = template.replace("NNNN", "0071").replace("YYYY-MM-DD", "2026-11-22")
    assert Decision.read("TEMPLATE.md", filled.removeprefix("## Decision ")).number == "0071"
