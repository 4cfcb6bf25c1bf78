"""Completion by shells, which is Typer's: commands and options."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import sys
sys.argv = ["fl-dp"]
from fl_dp.commands.entry import main
main()
"""


def completed(words: str) -> subprocess.CompletedProcess[str]:
    """Ask as bash's script does what may stand in the place of the last word."""
    asked = {
        "_FL_DP_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_shell_completes_commands() -> None:
    assert completed("fl-dp ru").stdout.split() == ["run", "runs"]


def test_a_shell_that_completes_after_a_misspelt_command_is_told_no_error() -> None:
    done = completed("fl-dp rnu --ve")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["--version"], "")
