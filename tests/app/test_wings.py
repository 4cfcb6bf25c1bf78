"""A wing can be deleted: what is left runs, and no test of it asks for the wing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from fl_dp.commands.extras import has_wing

ROOT = Path(__file__).resolve().parents[2]
WINGS = ("lab", "viewer")
ALWAYS = ("run", "plan", "tune", "ledger", "node", "stats", "config", "new")
OF_WINGS = ("attack", "audit", "runs", "report", "dashboard")

# Commands of `fl-dp`, one after the other in one process; what they print comes back as JSON.
COMMANDS = """
import json, sys
from typer.testing import CliRunner
from fl_dp.commands.app import app
told = [CliRunner().invoke(app, words) for words in json.loads(sys.argv[1])]
print(json.dumps([[each.exit_code, each.output] for each in told]))
"""
OF_THE_OTHER = {
    "lab": ["runs", ".", "--json"],
    "viewer": ["audit", "--help"],
}
SMALL = ["rounds=2", "task.num_clients=20", "client.epochs=1", "simulation.engine=in_process"]


def copy_without(gone: Iterable[str], copy: Path) -> Path:
    """Copy the package, but for some wings."""
    for folder in ("fl_dp", "strategies", "conf"):
        ignored = shutil.ignore_patterns(*(gone if folder == "fl_dp" else ()))
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    return copy


def called(copy: Path, *commands: list[str]) -> list[tuple[int, str]]:
    """Return the exit status and the output of commands of the copy."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(status, output) for status, output in json.loads(done.stdout.splitlines()[-1])]


def test_both_wings_are_here() -> None:
    assert all(map(has_wing, WINGS))


def test_a_training_and_its_ledger_need_no_wing(tmp_path: Path) -> None:
    copy = copy_without(WINGS, tmp_path / "copy")
    listed, ran, planned, read, attacked, tuned = called(
        copy,
        ["--help"],
        ["run", *SMALL, "run_name=a", "--json"],
        ["plan", *SMALL, "--json"],
        ["ledger", "runs/a", "--json"],
        ["run", "experiment=data_recovery"],
        ["tune", *SMALL, "client.learning_rate=0.1,1", "tune.by=public", "tune.rounds=1", "--json"],
    )
    assert [status for status, _ in (listed, ran, planned, read, tuned)] == [0] * 5, (ran, tuned)
    assert all(f" {name} " in listed[1] for name in ALWAYS)
    assert not any(f" {name} " in listed[1] for name in OF_WINGS)
    assert (copy / "runs" / "a" / "privacy.json").is_file()
    assert not (copy / "runs" / "a" / "report.html").exists()
    # An attack that nobody could make is not left out in silence.
    assert attacked[0] == 2
    assert "recovery.attacks" in attacked[1]


@pytest.mark.parametrize("wing", WINGS)
def test_a_command_of_the_other_wing_works(wing: str, tmp_path: Path) -> None:
    copy = copy_without([wing], tmp_path / "copy")
    listed, ran = called(copy, ["--help"], OF_THE_OTHER[wing])
    assert (listed[0], ran[0]) == (0, 0), ran[1]


@pytest.mark.parametrize("wing", WINGS)
def test_commands_alone_and_their_tests_name_files_of_a_wing(wing: str) -> None:
    support = [path.stem for path in (ROOT / "tests" / wing / "support").glob("*.py")]
    named = re.compile(rf"\bfl_dp\.{wing}\.|^(?:from|import) (?:{'|'.join(support)})\b", re.M)
    inside = ("tests", wing), ("fl_dp", wing), ("fl_dp", "commands")
    naming = [
        str(path.relative_to(ROOT))
        for folder in ("fl_dp", "strategies", "tests", "deploy")
        for path in (ROOT / folder).rglob("*.py")
        if not any(path.is_relative_to(ROOT.joinpath(*parts)) for parts in inside)
        and named.search(path.read_text(encoding="utf-8"))
    ]
    assert naming == []
