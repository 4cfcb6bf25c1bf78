"""Imports between files run one way: no file imports itself by way of others.

An import counts wherever it stands: on top of a file, in a function, or for type checkers alone. A
name that a package passes on counts as an import of the file that the package has it from. That
`import a.b` also runs `a/__init__.py` does not count: each package that imports its own files would
be a circle.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"fl_dp": "fl_dp", "strategies": "fl_dp.strategies"}
TEMPLATE = ROOT / "fl_dp" / "commands" / "new_app" / "template"


def files() -> dict[str, Path]:
    """Return the files of the source by the name that they are imported by."""
    found = {}
    for folder, package in PACKAGES.items():
        for file in (ROOT / folder).rglob("*.py"):
            if not file.is_relative_to(TEMPLATE):
                below = file.relative_to(ROOT / folder).with_suffix("").parts
                found[".".join([package, *(part for part in below if part != "__init__")])] = file
    # `strategies.py` stands for the folder.
    found["fl_dp.strategies"] = ROOT / "strategies" / "__init__.py"
    return found


def imported(module: str, known: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield file and name of what a file imports."""
    package = module if known[module].name == "__init__.py" else module.rpartition(".")[0]
    for statement in ast.walk(ast.parse(known[module].read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            yield from ((alias.name, "") for alias in statement.names)
        if not isinstance(statement, ast.ImportFrom):
            continue
        above = package.split(".")[: len(package.split(".")) - statement.level + 1]
        base = ".".join([*(above if statement.level else []), *filter(None, [statement.module])])
        for alias in statement.names:
            inside = f"{base}.{alias.name}"
            yield (inside, "") if inside in known else (base, alias.name)


def arrows() -> set[tuple[str, str]]:
    """Return which file imports which."""
    known = files()
    found = {module: list(imported(module, known)) for module in known}
    passed_on = {
        module: {name: file for file, name in found[module] if name}
        for module, file in known.items()
        if file.name == "__init__.py"
    }
    arrows = set()
    for module, each in found.items():
        for target, name in each:
            while name in passed_on.get(target, {}):
                target = passed_on[target][name]
            if target in known and target != module:
                arrows.add((module, target))
    return arrows


def circle(arrows: Iterable[tuple[str, str]]) -> list[str]:
    """Return one circle of files; empty: there is none."""
    graph: dict[str, set[str]] = {}
    for module, target in arrows:
        graph.setdefault(module, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_a_circle_is_found() -> None:
    assert circle([("a", "b"), ("b", "c")]) == []
    assert set(circle([("a", "b"), ("b", "c"), ("c", "a")])) == {"a", "b", "c"}


def test_files_do_not_import_each_other_in_circles() -> None:
    found = arrows()
    assert len(found) > 1000
    assert ("fl_dp.strategies.dp_fedavg", "fl_dp.accounting.budget") in found  # by the package
    assert circle(found) == []
