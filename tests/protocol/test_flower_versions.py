"""Parts of Flower that may move: one that is gone is named, with the versions that were tested."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fl_dp.protocol.flower_versions import TESTED, FlowerChanged, parts_of_flower

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = re.compile(
    r"flwr(\.(app|client|clientapp\.typing|common\.typing|serverapp)(\..*)?|\.clientapp)?$"
)


def test_a_part_that_is_gone_is_named_with_the_versions_that_were_tested() -> None:
    with pytest.raises(FlowerChanged, match=r"of_old.*tested with flwr 1\.41 and 1\.42"):
        with_a_part_of_old()


@parts_of_flower()
def with_a_part_of_old() -> None:
    """Import something that Flower does not have."""
    importlib.import_module("flwr.supercore.of_old")


@pytest.mark.parametrize(
    ("started", "gone"),
    [
        ("fl_dp.client_app", "flwr.common.constant.ErrorCode"),
        ("fl_dp.strategies.dp_fedavg", "flwr.common.constant.ErrorCode"),
        ("fl_dp.app.local.simulation", "flwr.supercore.task_identity.TaskIdentity"),
    ],
)
def test_what_starts_says_so_at_once(started: str, gone: str) -> None:
    module, _, name = gone.rpartition(".")
    flower = "import flwr.app, flwr.serverapp, flwr.clientapp"  # which needs the part itself
    code = f"{flower}; import {module} as m; del m.{name}; import {started}"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert name in said
    assert "fl-dp was tested with flwr 1.41 and 1.42" in said


def imports_outside_the_block(file: Path) -> list[str]:
    """Return what a file imports of Flower's undocumented parts without saying so."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    marked = {
        statement
        for block in ast.walk(tree)
        if isinstance(block, ast.With) and "parts_of_flower" in ast.unparse(block.items[0])
        for statement in ast.walk(block)
    }
    found = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n not in marked]
    return [
        f"{file.name}: {n.module}"
        for n in found
        if (n.module or "").partition(".")[0] == "flwr" and not DOCUMENTED.match(n.module or "")
    ]


def sources() -> list[Path]:
    """Return the files of every room."""
    places = ("fl_dp", "strategies", "deploy")
    return [file for place in places for file in (ROOT / place).rglob("*.py")]


def test_every_undocumented_part_is_imported_in_the_block() -> None:
    assert [found for file in sources() for found in imports_outside_the_block(file)] == []


def test_one_file_alone_reaches_into_parts_that_may_move() -> None:
    reach = re.compile(
        r"parts_of_flower\(|\.__dict__\[\"_message_id|InMemoryGrid|_ray_actor|uvicorn\.\w+ = "
    )
    reaching = {file.name for file in sources() if reach.search(file.read_text(encoding="utf-8"))}
    assert reaching == {"flower_compat.py", "flower_versions.py"}


def test_continuous_integration_runs_every_version_that_is_said_to_be_tested() -> None:
    checks = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text(encoding="utf-8"))
    beside = checks["jobs"]["flower"]["strategy"]["matrix"]["flwr"]
    locked = re.search(r"^flwr==(\d+\.\d+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert locked is not None
    assert {locked[1], *beside} == set(TESTED)
