"""The decisions have one form, no gaps, and an index that says what they say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
FORM = re.compile(
    r"# (?P<number>\d{4}): (?P<title>\S.*)\n\n"
    r"Date: (?P<date>\d{4}-\d{2}-\d{2})\n"
    r"Status: (?P<status>accepted|superseded by (?P<successor>\d{4}))\n\n"
    r"## Context\n\n\S[^#]*\n## Decision\n\n\S[^#]*"
)


@dataclass(frozen=True)
class Decision:
    """The front lines of a decision's file, which is called `name`."""

    name: str
    number: str
    title: str
    date: str
    status: str
    successor: str | None

    @classmethod
    def read(cls, path: Path) -> Decision:
        found = FORM.fullmatch(path.read_text(encoding="utf-8"))
        assert found, f"{path.name} does not have the form of TEMPLATE.md"
        return cls(name=path.name, **found.groupdict())

    @property
    def row(self) -> str:
        return f"| [{self.number}]({self.name}) | {self.title} | {self.date} | {self.status} |"


def decisions() -> list[Decision]:
    return [Decision.read(path) for path in sorted(FOLDER.glob("[0-9]*.md"))]


def test_a_folder_of_decisions_holds_nothing_else() -> None:
    others = {path.name for path in FOLDER.iterdir()} - {one.name for one in decisions()}
    assert others == {"README.md", "TEMPLATE.md"}


def test_decisions_are_numbered_from_one_without_gaps() -> None:
    numbers = [one.number for one in decisions()]
    assert numbers == [f"{number:04d}" for number in range(1, len(numbers) + 1)]
    assert len(numbers) >= 70  # those taken before each had a file


def test_a_decision_s_file_is_named_by_its_number_and_a_slug() -> None:
    for one in decisions():
        assert re.fullmatch(rf"{one.number}(-[a-z0-9]+)+\.md", one.name), one.name


def test_the_index_lists_every_decision_as_its_file_has_it() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in index if re.match(r"\| \[", line)] == [one.row for one in decisions()]


def test_dates_of_decisions_are_days_of_the_calendar() -> None:
    for one in decisions():
        date.fromisoformat(one.date)


def test_a_superseded_decision_names_a_later_one_that_is_there_and_names_it_back() -> None:
    by_number = {one.number: one for one in decisions()}
    superseded = [one for one in by_number.values() if one.successor is not None]
    assert superseded
    for one in superseded:
        assert one.successor is not None and one.successor > one.number, one.name
        successor = FOLDER / by_number[one.successor].name
        assert f"({one.name})" in successor.read_text(encoding="utf-8"), one.name


def test_the_template_has_the_form_once_its_placeholders_are_filled() -> None:
    template = (FOLDER / "TEMPLATE.md").read_text(encoding="utf-8")
    assert FORM.fullmatch(template.replace("NNNN", "0071").replace("YYYY-MM-DD", "2026-11-22"))
