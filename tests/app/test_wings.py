"""A wing can be deleted: what is left runs, and no test of it asks for the wing."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_dp.app.wings import wings

ROOT = Path(__file__).resolve().parents[2]
WINGS = {"lab": ("tune", "price", "audit", "attack"), "viewer": ("runs", "report", "dashboard")}
ALWAYS = ("run", "plan", "ledger", "node", "stats", "config", "new")

# Commands of `fl-dp`, one after the other in one process; what they print comes back as JSON.
COMMANDS = """
import json, sys
from typer.testing import CliRunner
from fl_dp.commands.app import app
told = [CliRunner().invoke(app, words) for words in json.loads(sys.argv[1])]
print(json.dumps([[each.exit_code, each.output] for each in told]))
"""
SMALL = ["rounds=2", "task.num_clients=20", "client.epochs=1", "simulation.engine=in_process"]


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports by their full names, and what it imports of them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


@pytest.fixture(params=[*WINGS, "both"])
def without(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    """A copy of the package without a wing, and the names of what is gone."""
    gone = list(WINGS) if request.param == "both" else [request.param]
    copy = tmp_path / "copy"
    for folder in ("fl_dp", "strategies", "conf"):
        ignored = shutil.ignore_patterns("__pycache__", *(gone if folder == "fl_dp" else ()))
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    return copy, gone


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
    assert [type(wing).__name__.lower() for wing in wings()] == list(WINGS)


def test_a_training_and_its_ledger_need_no_wing(without: tuple[Path, list[str]]) -> None:
    copy, gone = without
    missing = WINGS[gone[0]][0]
    listed, ran, planned, read, unknown = called(
        copy,
        ["--help"],
        ["run", *SMALL, "run_name=a", "--json"],
        ["plan", *SMALL, "--json"],
        ["ledger", "runs/a", "--json"],
        [missing],
    )
    assert [status for status, _ in (listed, ran, planned, read)] == [0, 0, 0, 0], (ran, read)
    assert all(name in listed[1] for name in ALWAYS)
    assert "runs/a" in ran[1]
    assert (copy / "runs" / "a" / "privacy.json").is_file()
    assert (copy / "runs" / "a" / "report.html").is_file() is ("viewer" not in gone)
    assert unknown[0] == 2
    [line] = [line for line in unknown[1].splitlines() if line]
    assert f"there is no command '{missing}'" in line


def test_keys_of_a_wing_that_is_not_there_are_unknown(without: tuple[Path, list[str]]) -> None:
    copy, gone = without
    if "lab" not in gone:
        pytest.skip("the viewer has no keys")
    status, said = called(copy, ["run", *SMALL, "tune.candidates=[rounds=2,rounds=3]"])[0]
    assert status == 2  # a choice that nobody would charge for is not left out in silence
    assert "tune.candidates" in said
    assert not (copy / "runs").exists()


@pytest.mark.parametrize("wing", WINGS)
def test_tests_of_what_stays_do_not_ask_for_a_wing(wing: str) -> None:
    inside = (ROOT / "tests" / wing, ROOT / "fl_dp" / wing)
    support = {path.stem for path in (ROOT / "tests" / wing / "support").glob("*.py")}
    asking = [
        str(path.relative_to(ROOT))
        for path in python_files("fl_dp", "strategies", "tests", "deploy")
        if not any(path.is_relative_to(folder) for folder in inside)
        and any(
            name.startswith(f"fl_dp.{wing}") or name.partition(".")[0] in support
            for name in imported(path)
        )
    ]
    assert asking == []
