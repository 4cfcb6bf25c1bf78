"""Imports of the source, read off its syntax: between its own files, and of other packages.

A name that a package passes on counts as an import of the file that the package has it from.
`import a.b` also runs `a/__init__.py`, which does not count: else each package that imports its
own files would be a circle.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"fl_dp": "fl_dp", "strategies": "fl_dp.strategies"}
TEMPLATE = ROOT / "fl_dp" / "commands" / "new_app" / "template"

_BY_NAME = {"import_module", "optional_import"}
"""Functions that import the module whose name they are given."""


class When(IntEnum):
    """Moment of an import; of several, the earliest counts."""

    WITH_THE_FILE = 0
    IN_A_CALL = 1
    FOR_TYPE_CHECKERS = 2


def files() -> dict[str, Path]:
    """Files of the source by import name."""
    modules = {}
    for folder, package in PACKAGES.items():
        for file in (ROOT / folder).rglob("*.py"):
            if not file.is_relative_to(TEMPLATE):
                below = file.relative_to(ROOT / folder).with_suffix("").parts
                modules[".".join([package, *(part for part in below if part != "__init__")])] = file
    # `strategies.py` stands for the folder.
    modules["fl_dp.strategies"] = ROOT / "strategies" / "__init__.py"
    return modules


def statements(
    node: ast.AST, when: When = When.WITH_THE_FILE
) -> Iterator[tuple[ast.Import | ast.ImportFrom | ast.Call, When]]:
    """Yield the imports in a tree, by statement or by the module's name, and their moments."""
    for child in ast.iter_child_nodes(node):
        inside = when
        if isinstance(child, ast.Import | ast.ImportFrom) or _by_name(child):
            yield child, when
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for statement in child.body:
                yield from statements(ast.Module([statement], []), When.FOR_TYPE_CHECKERS)
            for statement in child.orelse:
                yield from statements(ast.Module([statement], []), when)
            continue
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside = max(when, When.IN_A_CALL)
        yield from statements(child, inside)


def _by_name(node: ast.AST) -> TypeGuard[ast.Call]:
    """Tell whether a module is imported by a name that stands there."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
    return name in _BY_NAME and bool(node.args) and isinstance(node.args[0], ast.Constant)


@cache
def found_imports() -> dict[str, list[tuple[str, str, When]]]:
    """Module, name and moment of each import, by the file that has it."""
    modules = files()
    return {module: list(imported(module, modules)) for module in modules}


def imported(module: str, known: Mapping[str, Path]) -> Iterator[tuple[str, str, When]]:
    """Yield module, name and moment of each import of a file; the name is "" for a whole module."""
    package = module if known[module].name == "__init__.py" else module.rpartition(".")[0]
    for statement, when in statements(ast.parse(known[module].read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            yield from ((alias.name, "", when) for alias in statement.names)
        elif isinstance(statement, ast.Call):
            yield ast.literal_eval(statement.args[0]), "", when
        else:
            above = package.split(".")[: len(package.split(".")) - statement.level + 1]
            base = ".".join(
                [*(above if statement.level else []), *filter(None, [statement.module])]
            )
            for alias in statement.names:
                inside = f"{base}.{alias.name}"
                yield (inside, "", when) if inside in known else (base, alias.name, when)


@cache
def arrows() -> dict[tuple[str, str], When]:
    """Which file imports which, and when."""
    modules, imports = files(), found_imports()
    passed_on = {
        module: {name: file for file, name, _ in imports[module] if name}
        for module, file in modules.items()
        if file.name == "__init__.py"
    }
    arrows: dict[tuple[str, str], When] = {}
    for module, targets in imports.items():
        for target, name, when in targets:
            while name in passed_on.get(target, {}):
                target = passed_on[target][name]
            if target in modules and target != module:
                arrows[module, target] = min(arrows.get((module, target), when), when)
    return arrows


@cache
def others() -> dict[str, dict[str, When]]:
    """Others' packages that each file imports, by their first name, and when."""
    rooms: dict[str, dict[str, When]] = {}
    for module, targets in found_imports().items():
        of_file = rooms.setdefault(module, {})
        for target, _, when in targets:
            top = target.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in PACKAGES:
                of_file[top] = min(of_file.get(top, when), when)
    return rooms
