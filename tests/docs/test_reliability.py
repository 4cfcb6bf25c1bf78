"""The page on faults names tests that are there, and every test of tests/faults stands on it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def names_in(folder: Path) -> set[str]:
    return {
        name
        for file in folder.rglob("test_*.py")
        for name in _TEST.findall(file.read_text(encoding="utf-8"))
    }


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named
    assert named <= names_in(ROOT / "tests")
    files = re.findall(r"`(tests/\S+\.py)`", PAGE)
    assert files and all((ROOT / file).is_file() for file in files)


def test_every_fault_that_is_tested_has_its_row() -> None:
    faults = names_in(ROOT / "tests" / "faults")
    assert faults
    assert faults <= set(re.findall(r"`(test_\w+)`", PAGE))


def test_every_row_says_what_was_lost_and_when_it_is_tested() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| [A-Z\"].*`test", line)]
    assert len(rows) > 15
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 5 and all(cells), row
        assert set(cells[-1].split("; ")) <= {"suite", "by hand", "not run"}
