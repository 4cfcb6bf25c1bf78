"""The library needs no room of the app: it imports, trains README's lines, and is tested alone."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
APP = (
    *("tasks", "app", "terminal", "commands", "lab", "viewer"),
    *("server_app.py", "client_app.py", "__main__.py"),
)
IMPORTS = """
import importlib, importlib.util, pkgutil, sys
import fl_dp, fl_dp.strategies
for package in (fl_dp, fl_dp.strategies):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        # Triton comes with PyTorch's build for CUDA alone.
        if module.name != "fl_dp.accelerator.chacha_triton" or importlib.util.find_spec("triton"):
            importlib.import_module(module.name)
print(*sorted(name for name in sys.modules if name.startswith("fl_dp.")))
"""
IN_MEMORY = """
    from local_grid import LocalGrid, answer_with_app
    main(LocalGrid(answer_with_app(client_app, 50), 50), None)
"""
BY_FLOWER = """
    from flwr.simulation import run_simulation
    run_simulation(server, client_app, num_supernodes=50)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the library alone."""
    folder = tmp_path_factory.mktemp("library")
    ignored = shutil.ignore_patterns(*APP)
    for package in ("fl_dp", "strategies"):
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    return folder


@pytest.fixture(scope="module")
def tests(copy: Path) -> Path:
    """Return the folder of the library's own tests beside it."""
    rooms = {room.name for room in (copy / "fl_dp").iterdir()} | {"strategies"}
    for name in ("pyproject.toml", "README.md", "docs"):  # pages that tests read
        (copy / name).symlink_to(ROOT / name)
    for part in (ROOT / "tests").iterdir():
        if part.name in rooms | {"support", "conftest.py"}:
            ignored = shutil.ignore_patterns("__pycache__", "axe")
            place = copy / "tests" / part.name
            place.parent.mkdir(exist_ok=True)
            if part.is_dir():
                shutil.copytree(part, place, ignore=ignored)
            else:
                shutil.copy(part, place)
    return copy / "tests"


def printed(copy: Path, folder: Path, code: str) -> str:
    """Return what a program prints in a folder, with the library alone to import."""
    program = folder / "program.py"
    program.write_text(code, encoding="utf-8")
    paths = os.pathsep.join([str(copy), str(ROOT / "tests" / "support")])
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_own_strategy(simulation: str) -> str:
    """Return README's lines around Flower's FedAdam, whose nodes are simulated in another way."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = code.replace("from fl_dp.app import simulate\n", "")
    code = code.replace("with_budget(", "with_budget(FedAdam(eta=0.1), ")
    lines, _ = code.split("    simulate(")
    head = "from flwr.serverapp.strategy import FedAdam\n"
    return f"{head}{lines}    client_app = numpy_client_app(lambda context: Client())\n{simulation}"


def test_every_module_of_the_library_imports(copy: Path, tmp_path: Path) -> None:
    imported = printed(copy, tmp_path, IMPORTS).split()
    assert len(imported) > 150
    assert not [name for name in imported if name.split(".")[1] in APP]


def nodes_of(files: Iterable[Path]) -> Iterator[tuple[Path, ast.AST]]:
    """Yield each part of the syntax of files."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            yield file, node


def test_no_string_of_the_library_names_a_module_or_class_of_the_app(copy: Path) -> None:
    rooms = [ROOT / "fl_dp" / name for name in APP if not name.endswith(".py")]
    library = {file: file.read_text(encoding="utf-8") for file in copy.rglob("*.py")}
    of_app = [file.read_text(encoding="utf-8") for room in rooms for file in room.rglob("*.py")]
    classes = {name for text in of_app for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    assert "InProcessGrid" in classes
    quoted = {name for text in library.values() for name in re.findall(r"[\"'](\w+)[\"']", text)}
    quoted &= classes
    own = {
        node.id
        for text in library.values()
        if any(name in text for name in quoted)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name)
    }
    assert quoted - own == set()
    module = re.compile(rf"fl_dp[./](?:{'|'.join(room.name for room in rooms)})\b")
    naming = [
        (file.relative_to(copy).as_posix(), node.value)
        for file, text in library.items()
        if module.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if module.search(node.value)
    ]
    assert naming == []


GROUPS = ("privacy", "dp_sgd", "client", "task", "model", "tracking", "simulation", "statistic")
"""Groups of keys of the app that are no argument of the library."""


def test_no_text_of_the_library_names_a_key_of_the_app(copy: Path) -> None:
    key = re.compile(rf"(?<![\w.])(?:(?:{'|'.join(GROUPS)})\.\w+|privacy|dp_sgd)=(?=\w|\{{)")
    texts = [
        (file.relative_to(copy).as_posix(), node.value)
        for file, node in nodes_of(copy.rglob("*.py"))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert len(texts) > 5000
    assert [text for text in texts if key.search(text[1])] == []


@pytest.mark.parametrize(
    "simulation",
    [
        pytest.param(IN_MEMORY, id="in memory"),
        pytest.param(
            BY_FLOWER,
            id="by Flower",
            marks=[pytest.mark.nightly, pytest.mark.simulation, pytest.mark.timeout(900)],
        ),
    ],
)
def test_readme_s_lines_train_around_a_strategy_of_flower(
    copy: Path, tmp_path: Path, simulation: str
) -> None:
    output = printed(copy, tmp_path, with_own_strategy(simulation))
    mean = [float(number) for number in re.findall(r"-?\d+\.\d+", output.partition("[1, 2]:")[2])]
    assert len(mean) == 2
    assert mean != [0.0, 0.0]
    assert (tmp_path / "ledger.db").is_file()


def imported(file: Path) -> set[str]:
    """Return the modules that a file imports, and what it imports of them, by their full names."""
    names = set()
    for _, node in nodes_of([file]):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_library_s_tests_and_their_helpers_import_nothing_of_the_app(tests: Path) -> None:
    files = [file for file in tests.rglob("*.py") if file.parent.name != "support"]
    assert len(files) > 150
    app = re.compile(rf"fl_dp\.(?:{'|'.join(name.removesuffix('.py') for name in APP)})\b")
    importing, read = [], set[Path]()
    while files:
        file = files.pop()
        read.add(file)
        names = imported(file)
        place = file.relative_to(tests).as_posix()
        importing += [(place, name) for name in names if app.match(name)]
        helpers = {tests / "support" / f"{name.partition('.')[0]}.py" for name in names}
        files += [helper for helper in helpers - read if helper.is_file()]
    assert importing == []


@pytest.mark.nightly
def test_the_library_s_tests_are_collected_without_the_app(copy: Path, tests: Path) -> None:
    rooms = [room for room in tests.iterdir() if room.is_dir() and room.name != "support"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *map(str, rooms)],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+)/?\d* tests collected", done.stdout)[0]) > 3000
