"""Completion by shells, which is Typer's: commands and options."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from command_line import call

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


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fl-dp ru", ["run", "runs"]),
        ("fl-dp attack inv", ["inversion"]),
        ("fl-dp runs --so", ["--sort"]),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, offered: list[str]) -> None:
    assert completed(words).stdout.split() == offered


def test_a_shell_that_completes_after_a_misspelt_command_is_told_no_error() -> None:
    done = completed("fl-dp rnu --ve")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["--version"], "")


def test_help_says_how_to_install_it() -> None:
    assert "--install-completion" in call("--help").stdout
