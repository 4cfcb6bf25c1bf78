"""The page of the files that must be right: for each kind of plan, the code that is called.

    PYTHONPATH=tests/support python docs/rests_on.py

writes docs/rests_on.md. A small training of each kind runs in a process of its own, from the plan
to its statement, by its loop alone (`promised`). The page lists each file of the library in which a
function is called meanwhile. Calls while a file is imported do not count.
"""

from __future__ import annotations

import ast
import io
import logging
import os
import sys
import tempfile
import threading
import tokenize
import traceback
from collections.abc import Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType

from fixed_draws import fix_draws
from kind_trainings import PLANS, promised
from owned_clock import answer_at_once
from pytest import MonkeyPatch

from fl_dp.accounting.calibration_cache import SWITCH
from fl_dp.plan.as_json import KINDS

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "rests_on.md"
_OF_APP = {"app", "commands", "lab", "tasks", "terminal", "viewer"}
_BEGIN, _END = "<!-- files -->\n", "<!-- end -->\n"

# --- What is called -------------------------------------------------------------------------------


@cache
def _in_library(file: str) -> bool:
    path = Path(file)
    if not path.is_relative_to(_ROOT):
        return False
    room, *below = path.relative_to(_ROOT).parts
    return room == "strategies" or (room == "fl_dp" and below[0] not in _OF_APP)


def _importing(frame: FrameType | None) -> bool:
    """Return whether a file of the library is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _in_library(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _write_calls(written: int) -> None:
    """Append the place of each function of the library that is called, also in forked processes.

    Args:
        written: Descriptor of a file.
    """
    known: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or code in known or not _in_library(code.co_filename):
            return
        if not _importing(frame):
            known.add(code)
            file = Path(code.co_filename).relative_to(_ROOT).as_posix()
            os.write(written, f"{file}:{code.co_firstlineno}\n".encode())

    threading.setprofile(note)
    sys.setprofile(note)


def functions_called(kind: str) -> dict[str, set[int]]:
    """Return the first lines of the functions that a training of a kind calls, by file.

    Args:
        kind: Of `KINDS`.

    Raises:
        RuntimeError: If the training fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls.txt"
        child = os.fork()
        if not child:
            code = 1
            try:
                _train(kind, Path(folder), calls)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise RuntimeError(f"the training of a {kind} plan failed")
        called: dict[str, set[int]] = {}
        for line in calls.read_text(encoding="utf-8").split():
            file, _, first = line.partition(":")
            called.setdefault(file, set()).add(int(first))
        return called


def _train(kind: str, folder: Path, calls: Path) -> None:
    logging.disable(logging.CRITICAL)
    fix_draws(kind)
    os.environ[SWITCH] = "off"  # what lies on the disk would be calibrated by nobody
    with MonkeyPatch.context() as patch:
        answer_at_once(patch)  # nodes of secure sums wait for their slots otherwise
        _write_calls(os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
        promised(PLANS[kind](), folder)


# --- The page -------------------------------------------------------------------------------------


def written() -> str:
    """Return what stands between the page's marks."""
    called = {kind: functions_called(kind) for kind in KINDS}
    rows = [
        "| plan | who adds the noise | files | lines of code | in functions that are called |",
        "|---|---|---|---|---|",
    ]
    for kind, files in called.items():
        plan, lines = KINDS[kind], sum(len(_code_of(file)) for file in files)
        of_calls = sum(_lines_called(file, firsts) for file, firsts in files.items())
        rows.append(
            f"| `{plan.__name__}` | {plan.noise_location} | {len(files)} | {lines} | {of_calls} |"
        )
    return "\n\n".join(["\n".join(rows), *_lists({k: set(v) for k, v in called.items()})]) + "\n"


def _lists(called: Mapping[str, set[str]]) -> list[str]:
    """Return headings and lists of files, one for each set of kinds that call the same files."""
    files_of: dict[tuple[str, ...], list[Path]] = {}
    by_folder = sorted(map(Path, set.union(*called.values())), key=lambda file: (file.parent, file))
    for file in by_folder:
        kinds = tuple(kind for kind in called if file.as_posix() in called[kind])
        files_of.setdefault(kinds, []).append(file)
    parts, described = [], set[Path]()
    for kinds in sorted(files_of, key=len, reverse=True):
        parts.append(f"## {_names(kinds, called)}")
        rows = []
        for folder, files in groupby(files_of[kinds], key=lambda file: file.parent):
            room = "" if folder in described else _purpose(folder)
            described.add(folder)
            names = ", ".join(f"`{file.stem}`" for file in files)
            rows.append(f"- `{folder}/`{room}: {names}")
        parts.append("\n".join(rows))
    return parts


def _names(kinds: tuple[str, ...], called: Mapping[str, set[str]]) -> str:
    missing = [kind for kind in called if kind not in kinds]
    if not missing:
        return "Every kind"
    if len(missing) <= 2:
        return f"All but {' and '.join(KINDS[kind].__name__ for kind in missing)}"
    return ", ".join(KINDS[kind].__name__ for kind in kinds)


def _purpose(folder: Path) -> str:
    """Return the first sentence of a folder's package in brackets, if it has one."""
    source = (_ROOT / folder / "__init__.py").read_text(encoding="utf-8")
    first_line = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    purpose = first_line.partition(". ")[0].rstrip(".").partition(": ")[2]
    return f" ({purpose})" if purpose else ""


@cache
def _code_of(file: str) -> frozenset[int]:
    """Return a file's lines of code: neither blank, nor comment, nor docstring."""
    source = (_ROOT / file).read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.string.strip() and token.type != tokenize.COMMENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(_span(node))
    return frozenset(lines)


def _lines_called(file: str, firsts: set[int]) -> int:
    """Return how many of a file's lines of code stand in functions with these first lines."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse((_ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first in firsts:
                inside.update(_span(node))
    return len(inside & _code_of(file))


def _span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


if __name__ == "__main__":
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else _PAGE
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    page.write_text(f"{before}{_BEGIN}{written()}{_END}{rest.partition(_END)[2]}", encoding="utf-8")
