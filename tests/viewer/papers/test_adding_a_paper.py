"""Whoever follows the row of a paper has one that is written by its name."""

from __future__ import annotations

from pathlib import Path

from additions import Addition, check_row, copy_with, run_in

PAPER = Addition(
    row="paper",
    written={
        "fl_dp/viewer/papers/templates/letter.md.j2": (
            "Dear patient: epsilon {{ facts.epsilon | figures }}.\n"
        )
    },
    registered={
        "fl_dp/viewer/papers/paper_files.py": {
            '    "edpb": ': '    "letter": "letter.md",\n    "edpb": ',
        },
        "fl_dp/commands/report.py": {"pipl, trade-off.": "pipl, trade-off, letter."},
    },
)

PROGRAM = """
from pathlib import Path

from typer.testing import CliRunner
from written_runs import write_run

from fl_dp.commands.app import app

write_run(Path("runs") / "a", epsilon=2.0)
told = CliRunner().invoke(app, ["report", "runs/a", "--format", "letter"])
assert told.exit_code == 0, told.output
print((Path("runs") / "a" / "letter.md").read_text())
"""


def test_the_row_names_the_files_and_their_number() -> None:
    check_row(PAPER)


def test_a_paper_that_was_added_is_written_by_its_name(tmp_path: Path) -> None:
    copy = copy_with([PAPER], tmp_path / "copy", without=["lab"])
    assert "Dear patient: epsilon 2." in run_in(copy, PROGRAM)
