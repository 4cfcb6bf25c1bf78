"""Imports between files run one way: no file imports itself by way of others.

An import counts wherever it stands: on top of a file, in a function, or for type checkers alone. A
name that a package passes on counts as an import of the file that the package has it from. That
`import a.b` also runs `a/__init__.py` does not count: each package that imports its own files would
be a circle.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"fl_dp": "fl_dp", "strategies": "fl_dp.strategies"}
TEMPLATE = ROOT / "fl_dp" / "commands" / "new_app" / "template"

FOR_TYPE_CHECKERS = {("fl_dp.plan.calibrated", "fl_dp.plan.privacy_plan")}
"""Imports for type checkers alone, importing file first, that may close a circle: the fewer, the
better."""


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


def imports(node: ast.AST, *, typed: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the imports in a tree, each with whether it is for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, typed
        checks = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        yield from imports(child, typed=typed or checks)


def imported(module: str, known: Mapping[str, Path]) -> Iterator[tuple[str, str, bool]]:
    """Yield file, name and whether it is for type checkers alone, of what a file imports."""
    package = module if known[module].name == "__init__.py" else module.rpartition(".")[0]
    for statement, typed in imports(ast.parse(known[module].read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            yield from ((alias.name, "", typed) for alias in statement.names)
            continue
        assert isinstance(statement, ast.ImportFrom)
        above = package.split(".")[: len(package.split(".")) - statement.level + 1]
        base = ".".join([*(above if statement.level else []), *filter(None, [statement.module])])
        for alias in statement.names:
            inside = f"{base}.{alias.name}"
            yield (inside, "", typed) if inside in known else (base, alias.name, typed)


def arrows() -> dict[tuple[str, str], bool]:
    """Return which file imports which, and whether for type checkers alone."""
    known = files()
    found = {module: list(imported(module, known)) for module in known}
    passed_on = {
        module: {name: file for file, name, _ in found[module] if name}
        for module, file in known.items()
        if file.name == "__init__.py"
    }
    arrows: dict[tuple[str, str], bool] = {}
    for module, each in found.items():
        for target, name, typed in each:
            while name in passed_on.get(target, {}):
                target = passed_on[target][name]
            if target in known and target != module:
                arrows[module, target] = arrows.get((module, target), True) and typed
    return arrows


def circle(arrows: Mapping[tuple[str, str], bool]) -> list[str]:
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
    assert circle({("a", "b"): False, ("b", "c"): False}) == []
    assert set(circle({("a", "b"): False, ("b", "c"): True, ("c", "a"): False})) == {"a", "b", "c"}


def test_files_do_not_import_each_other_in_circles() -> None:
    found = arrows()
    assert len(found) > 1000
    assert ("fl_dp.strategies.dp_fedavg", "fl_dp.accounting.budget") in found  # by the package
    counted = {
        arrow: typed for arrow, typed in found.items() if not (typed and arrow in FOR_TYPE_CHECKERS)
    }
    assert circle(counted) == []
