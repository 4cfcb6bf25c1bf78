"""Additions to a copy of the package, made as a row of docs/architecture.md says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"


@dataclass(frozen=True, kw_only=True)
class Addition:
    """Something new, and every file of the source that it touches.

    Attributes:
        row: The thing in bold, of the page's table.
        written: New files with their text.
        registered: For each file that must know it, lines that are there once, and what replaces
            them.
    """

    row: str
    written: Mapping[str, str]
    registered: Mapping[str, Mapping[str, str]]

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that is touched."""
        return (*self.written, *self.registered)

    def add_to(self, copy: Path) -> None:
        """Write what is new into a copy of the package."""
        for name, text in self.written.items():
            assert not (copy / name).exists()
            (copy / name).write_text(text, encoding="utf-8")
        for name, changes in self.registered.items():
            text = (copy / name).read_text(encoding="utf-8")
            for before, after in changes.items():
                assert text.count(before) == 1, f"{name} has {before!r} {text.count(before)} times"
                text = text.replace(before, after)
            (copy / name).write_text(text, encoding="utf-8")


def check_row(addition: Addition) -> None:
    """Check that the page's row says how many files there are, and where each is."""
    start = f"| a **{addition.row}**", f"| an **{addition.row}**"
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    [row] = [line for line in lines if line.startswith(start)]
    told = re.search(r"\b(\d+) files?\b", row)
    assert told, f"the row says no number: {row}"
    assert len(addition.files) == int(told[1]), addition.files
    for name in addition.written:
        assert f"`{PurePosixPath(name).parent}/" in row, f"the row has no folder of {name}"
    for name in addition.registered:
        file = PurePosixPath(name)
        assert f"`{file}`" in row or f"`{file.name}`" in row, f"the row does not name {name}"


def copy_with(additions: Sequence[Addition], copy: Path, *, without: Sequence[str] = ()) -> Path:
    """Copy the package, without some of its folders, and add to it."""
    for folder in ("fl_dp", "strategies", "conf"):
        ignored = shutil.ignore_patterns("__pycache__", *(without if folder == "fl_dp" else ()))
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for addition in additions:
        addition.add_to(copy)
    return copy


def run_in(copy: Path, program: str, *support: Path) -> str:
    """Run a Python program with a copy's package, and return what it prints.

    `support` are folders of helpers besides that of all tests.
    """
    folders = [copy, ROOT / "tests" / "support", *support]
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
