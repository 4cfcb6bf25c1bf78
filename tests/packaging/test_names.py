"""One name, one thing: no two files, classes or functions of the source share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]

# What is named twice, and why both names are right.
_SHARED = {
    # A command's file has the command's name; its settings, or what it shows, have it too.
    "file data",
    "file node",
    "file run",
    "file tune",
    # `dp_sgd=NAME` lists the keys, and the clients' class computes.
    "file dp_sgd",
    # `fl-dp ledger` and `fl-dp node ledger`; and what `python -m` and an entry point call.
    "def ledger",
    "def main",
}


def names(root: Path) -> dict[str, set[Path]]:
    """The files in which each file's, class's and public function's name stands."""
    files_of: dict[str, set[Path]] = defaultdict(set)
    for path in [*root.glob("fl_dp/**/*.py"), *root.glob("strategies/**/*.py")]:
        if "template" in path.parts:  # an app that `fl-dp new` writes
            continue
        if path.stem not in ("__init__", "__main__"):
            files_of[f"file {path.stem}"].add(path)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                files_of[f"class {node.name}"].add(path)
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                files_of[f"def {node.name}"].add(path)
    return files_of


def test_no_two_things_share_a_name_besides_those_listed() -> None:
    shared = {name for name, files in names(_ROOT).items() if len(files) > 1}
    assert shared <= _SHARED, f"rename one of each: {sorted(shared - _SHARED)}"
    assert shared == _SHARED, f"no longer shared: {sorted(_SHARED - shared)}"


def test_a_second_thing_of_a_name_is_noticed(tmp_path: Path) -> None:
    for room in ("fl_dp/plan", "strategies"):
        (tmp_path / room).mkdir(parents=True)
        (tmp_path / room / "sum.py").write_text("class Sum:\n    pass\n\n\ndef _own(): ...\n")
    shared = {name for name, files in names(tmp_path).items() if len(files) > 1}
    assert shared == {"file sum", "class Sum"}
