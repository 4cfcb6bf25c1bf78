"""For each kind of plan, the page of files that must be right lists those that are called."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = re.compile(r"(?<=\| )\d+(?= \|)")


PAGE = ROOT / "docs" / "rests_on.md"


def test_each_file_on_the_page_is_there() -> None:
    row = re.compile(r"^- `([\w/]+)`.*?: (`\w+`(?:, `\w+`)*)$", re.MULTILINE)
    rows = row.findall(PAGE.read_text(encoding="utf-8"))
    files = [f"{folder}{name}.py" for folder, names in rows for name in re.findall(r"\w+", names)]
    assert len(files) == len(set(files)) > 100
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.nightly
def test_the_page_lists_the_files_that_a_training_of_each_kind_calls(tmp_path: Path) -> None:
    """Otherwise: `make docs`. Numbers of lines may be a little old; nothing else may."""
    measured = tmp_path / "rests_on.md"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    subprocess.run(
        [sys.executable, str(ROOT / "docs" / "rests_on.py"), str(measured)],
        env=os.environ | {"PYTHONPATH": paths},
        check=True,
    )
    now = measured.read_text(encoding="utf-8").splitlines()
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert [LINES.sub("n", line) for line in page] == [LINES.sub("n", line) for line in now]
    for shown, line in zip(page, now, strict=True):
        counts = [int(count) for count in LINES.findall(line)]
        assert [int(count) for count in LINES.findall(shown)] == pytest.approx(
            counts, rel=0.2, abs=15
        ), line
