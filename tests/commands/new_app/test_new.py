"""`fl-dp new`: the app that it writes is whole, private and clean; bad names are one line."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from flwr.cli.build import build_fab_from_disk
from packaging.requirements import Requirement

from fl_dp import __version__
from fl_dp.commands.new_app import write
from fl_dp.commands.new_app.app_names import AppName
from fl_dp.commands.new_app.write import app_files, write_app

ROOT = Path(__file__).resolve().parents[3]
OURS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return write_app("Ward-Seven", tmp_path)


def files_of(app: Path) -> set[str]:
    return {path.relative_to(app).as_posix() for path in app.rglob("*") if path.is_file()}


def test_the_app_has_the_files_of_a_flower_app(app: Path) -> None:
    assert files_of(app) == {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        ".gitignore",
        "tests/test_app.py",
        *(f"ward_seven/{name}.py" for name in ("__init__", "client_app", "server_app", "task")),
    }


def test_the_name_is_spelt_for_the_folder_for_flower_and_for_python(app: Path) -> None:
    pyproject = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    assert app.name == "Ward-Seven"
    assert pyproject["project"]["name"] == "ward-seven"
    components = pyproject["tool"]["flwr"]["app"]["components"]
    assert components == {
        "serverapp": "ward_seven.server_app:app",
        "clientapp": "ward_seven.client_app:app",
    }


def test_nothing_of_the_template_s_own_name_is_left(app: Path) -> None:
    left = re.compile(r"\{\{|\}\}|private_app|new_app")
    texts = {name: (app / name).read_text(encoding="utf-8") for name in files_of(app)}
    assert [name for name, text in texts.items() if left.search(text)] == []


@pytest.mark.nightly
@pytest.mark.slow
def test_the_app_passes_its_own_tests(app: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=app,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_the_app_is_clean_by_its_own_rules(tmp_path: Path) -> None:
    app = write_app("app_of_thirty_two_letters_in_al", tmp_path)
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=app,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def test_flower_bundles_the_app_with_its_code_and_without_its_tests(app: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        bundled = set(bundle.namelist())
    assert {name for name in files_of(app) if name.startswith("ward_seven/")} <= bundled
    assert not any(name.startswith("tests/") for name in bundled)


def test_the_app_needs_the_versions_that_this_library_needs(app: Path) -> None:
    project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours = {
        Requirement(text).name: Requirement(text)
        for text in [
            *OURS["dependencies"],
            *OURS["optional-dependencies"]["torch"],
            *OURS["optional-dependencies"]["app"],
        ]
    }
    for text in project["dependencies"]:
        need = Requirement(text)
        if need.name == OURS["name"]:
            assert need.specifier.contains(__version__)
            assert not need.specifier.contains("99")
        else:
            assert need.specifier == ours[need.name].specifier
            # An app that is written to be simulated brings Ray; the library leaves it to its extra.
            assert need.extras == ({"simulation"} if need.name == "flwr" else set())
    assert project["requires-python"] == OURS["requires-python"]


def test_a_budget_is_set_from_the_start(app: Path) -> None:
    pyproject = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    config = pyproject["tool"]["flwr"]["app"]["config"]
    assert 0 < config["epsilon"] <= 8
    assert config["delta"] < 1 / config["num-clients"]
    assert config["clipping-norm"] > 0


# The command.


def test_the_command_says_what_comes_next(tmp_path: Path) -> None:
    result = call("new", "ward", "--dir", str(tmp_path))
    assert result.exit_code == 0
    assert f"Wrote {tmp_path / 'ward'}" in result.stdout
    assert f"cd {tmp_path / 'ward'} && python -m pytest" in result.stdout
    assert "flwr run ." in result.stdout


WRONG = ".. ../x a/b a\\b /tmp/x ~/x C:x -a a- a--b 1a a.b {{name}}"
HOSTILE = ["", "a b", "a\nb", "x\0y", "$(id)", "病院", "a" * 33, *WRONG.split()]


def test_a_name_of_another_form_is_one_line_and_writes_nothing(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    for name in HOSTILE:
        result = call("new", f"--dir={below}", "--", name)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: an app's name has at most 32 letters")
        assert result.stderr.count("\n") == 1
        assert [path.name for path in tmp_path.rglob("*")] == ["below"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Lambda", "a keyword of Python"),
        ("Random", "of Python's own library"),
        ("fl-dp", "an installed package"),
        ("Build", "a folder of every app"),
        ("aux", "under Windows"),
    ],
)
def test_a_name_that_is_taken_is_refused_with_the_reason(
    name: str, reason: str, tmp_path: Path
) -> None:
    result = call("new", name, "--dir", str(tmp_path))
    assert result.exit_code == 2
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_name_that_an_error_proposes_can_be_had() -> None:
    for name in (*HOSTILE, "class", "torch", "tests"):
        with pytest.raises(ValueError) as refused:
            AppName.of(name)
        proposed = str(refused.value).split()[-1]
        assert AppName.of(proposed).folder == proposed


@pytest.mark.parametrize("what", ["folder", "file", "link to nowhere"])
def test_nothing_is_overwritten(what: str, tmp_path: Path) -> None:
    there = tmp_path / "ward"
    if what == "file":
        there.write_text("mine")
    elif what == "link to nowhere":
        there.symlink_to(tmp_path / "elsewhere")
    else:
        there.mkdir()
        if what == "folder":
            (there / "README.md").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    result = call("new", "ward", "--dir", str(tmp_path))
    assert result.exit_code == 2
    assert "already, and nothing was written" in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_an_app_that_can_t_be_written_whole_is_not_there_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(name: AppName) -> Iterator[tuple[Path, str]]:
        yield next(iter(app_files(name)))
        raise OSError("No space left on device")

    monkeypatch.setattr(write, "app_files", half)
    result = call("new", "ward", "--dir", str(tmp_path))
    assert result.exit_code == 2
    assert "No space left" in result.stderr
    assert list(tmp_path.iterdir()) == []
