"""The wheel and Flower's bundle hold what they need, and import the same way everywhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fl_dp
from fl_dp.app.settings import Settings

pytestmark = pytest.mark.xdist_group("packaging")

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NAME = PYPROJECT["project"]["name"]
CONF = {path.relative_to(ROOT).as_posix() for path in (ROOT / "conf").rglob("*.yaml")}
STRATEGIES = {path.relative_to(ROOT).as_posix() for path in (ROOT / "strategies").rglob("*.py")}

IMPORTS = """
import importlib, json, sys
import fl_dp
from fl_dp.app.compose import compose_settings, config_folder
from fl_dp.strategies import DPFedAvg

print(json.dumps({
    "first_on_path": sys.path[0],
    "package": fl_dp.__file__,
    "strategies": sys.modules[DPFedAvg.__module__].__file__,
    "module": DPFedAvg.__module__,
    "one_class": importlib.import_module("fl_dp.strategies.dp_fedavg").DPFedAvg is DPFedAvg,
    "conf": str(config_folder()),
    "composed": json.loads(compose_settings([]).to_json()),
}))
"""

APPS = """
import json
import fl_dp.client_app, fl_dp.server_app

print(json.dumps({
    "files": [fl_dp.client_app.__file__, fl_dp.server_app.__file__],
    "types": [type(fl_dp.client_app.app).__name__, type(fl_dp.server_app.app).__name__],
}))
"""


def call(command: list[Any], *, cwd: Path, **environment: Any) -> str:
    """Run a command to its end, with Flower kept off the network."""
    quiet = {
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | quiet | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(code: str, *, cwd: Path, path: Path | None = None, **environment: Any) -> Any:
    """Run code in a fresh interpreter whose first place to import from is `cwd`, then `path`."""
    found = {} if path is None else {"PYTHONPATH": str(path)}
    return json.loads(call([sys.executable, "-c", code], cwd=cwd, **found, **environment))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation")
    call([*build, "--outdir", folder, ROOT], cwd=folder)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `flwr build` makes of the files that git knows or would add."""
    copy = tmp_path_factory.mktemp("bundle") / NAME
    listed = call(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    if not (copy / "docs").exists():
        (copy / "docs").mkdir()
        (copy / "docs" / "x.md").write_text("x\n", encoding="utf-8")
    call([Path(sys.executable).with_name("flwr"), "build"], cwd=copy, FLWR_HOME=str(copy.parent))
    [built] = copy.glob("*.fab")
    return built


def names_in(archive: Any) -> set[str]:
    with zipfile.ZipFile(archive) as opened:
        return {name for name in opened.namelist() if not name.endswith("/")}


def unpacked(archive: Any, target: Path) -> Path:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(target)
    return target


# The wheel.


def test_the_wheel_holds_the_strategies_inside_the_package(wheel: Path) -> None:
    assert {f"fl_dp/{name}" for name in STRATEGIES} <= names_in(wheel)
    assert "fl_dp/strategies/dp_fedavg.py" in names_in(wheel)


def test_the_wheel_holds_the_whole_configuration_inside_the_package(wheel: Path) -> None:
    conf = {name for name in names_in(wheel) if name.startswith("fl_dp/conf/")}
    assert conf == {f"fl_dp/{name}" for name in CONF}
    assert "fl_dp/conf/config.yaml" in conf


def test_the_wheel_holds_the_template_of_a_new_app(wheel: Path) -> None:
    folder = ROOT / "fl_dp" / "commands" / "new_app" / "template"
    files = {path for path in folder.rglob("*") if path.suffix in (".py", ".txt")}
    assert files
    assert {path.relative_to(ROOT).as_posix() for path in files} <= names_in(wheel)
    assert len(files) == 9


def test_the_wheel_holds_the_texts_of_papers_and_pages(wheel: Path) -> None:
    folder = ROOT / "fl_dp" / "viewer"
    files = {path for path in folder.rglob("*") if path.suffix in (".j2", ".json", ".yaml")}
    assert {"edpb_28_2024.md.j2", "registry.yaml", "zh.json"} <= {path.name for path in files}
    assert {path.relative_to(ROOT).as_posix() for path in files} <= names_in(wheel)


def test_the_wheel_says_that_it_is_typed(wheel: Path) -> None:
    assert "fl_dp/py.typed" in names_in(wheel)


def test_the_wheel_leaves_out_the_module_that_stands_for_the_folder_of_strategies(
    wheel: Path,
) -> None:
    assert "fl_dp/strategies.py" not in names_in(wheel)


def test_the_wheel_puts_nothing_but_the_package_at_the_top(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names_in(wheel)}
    assert tops == {"fl_dp", f"fl_dp-{fl_dp.__version__}.dist-info"}


def test_the_wheel_holds_the_license(wheel: Path) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names_in(wheel))


def test_the_wheel_asks_for_torch_only_in_an_extra(wheel: Path) -> None:
    [name] = [name for name in names_in(wheel) if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as opened:
        metadata = Parser().parsestr(opened.read(name).decode())
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    always = {r.name for r in required if r.marker is None or r.marker.evaluate({"extra": ""})}
    in_extra = {r.name for r in required if r.marker and r.marker.evaluate({"extra": "torch"})}
    assert "flwr" in always
    assert "torch" not in always
    assert "torch" in in_extra


def test_an_index_accepts_what_the_wheel_says_of_itself(wheel: Path) -> None:
    [name] = [name for name in names_in(wheel) if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as opened:
        metadata = Metadata.from_email(opened.read(name), validate=True)
    assert metadata.name == NAME
    assert metadata.license_expression == PYPROJECT["project"]["license"]
    assert metadata.description_content_type == "text/markdown"


def test_a_node_installs_no_ray_and_a_simulation_does(wheel: Path) -> None:
    [name] = [name for name in names_in(wheel) if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as opened:
        metadata = Parser().parsestr(opened.read(name).decode())
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]

    def extras_of_flower(extra: str) -> set[str]:
        return {
            each
            for r in required
            if r.name == "flwr" and (r.marker is None or r.marker.evaluate({"extra": extra}))
            for each in r.extras
        }

    assert extras_of_flower("") == extras_of_flower("torch") == set()
    assert extras_of_flower("simulation") == {"simulation"}


# Flower's bundle.


def test_the_bundle_holds_all_strategies_and_the_whole_configuration(bundle: Any) -> None:
    assert names_in(bundle) >= STRATEGIES | CONF


def test_the_bundle_holds_the_package(bundle: Any) -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "fl_dp").rglob("*.py")}
    # Flower bundles no tests; who is given a bundle writes no new app.
    modules.remove("fl_dp/commands/new_app/template/tests/test_app.py")
    assert names_in(bundle) >= modules


def test_the_bundle_holds_the_license(bundle: Any) -> None:
    assert "LICENSE" in names_in(bundle)


def test_the_bundle_holds_neither_tests_nor_docs(bundle: Any) -> None:
    assert not {
        name for name in names_in(bundle) if name.startswith(("tests/", "docs/", "examples/"))
    }


def test_both_apps_load_from_the_bundle(bundle: Any, tmp_path: Path) -> None:
    where = unpacked(bundle, tmp_path / "bundle")
    told = python(APPS, cwd=tmp_path, path=where, FLWR_HOME=str(tmp_path))
    assert told["types"] == ["ClientApp", "ServerApp"]
    assert told["files"] == [
        str(where / "fl_dp" / "client_app.py"),
        str(where / "fl_dp" / "server_app.py"),
    ]


# One name, wherever it is imported from.


@pytest.fixture(scope="module")
def foreign_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with its own `strategies/` and `conf/`, neither of which is ours to touch."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "strategies").mkdir()
    (folder / "strategies" / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    (folder / "conf").mkdir()
    (folder / "conf" / "config.yaml").write_text("defaults: [nonsense]\n")
    return folder


@pytest.fixture(
    scope="module",
    params=[
        "wheel in a foreign project",
        "bundle in a foreign project",
        "checkout in a foreign project",
        "checkout in its own folder",
    ],
)
def imported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, Any]:
    """Where it was imported from, where its `strategies` and `conf` lie, and what it told."""
    what, _, where = request.param.partition(" in ")
    if what == "checkout":
        site = ROOT
    else:
        archive = request.getfixturevalue(what)
        site = unpacked(archive, tmp_path_factory.mktemp("site"))
    if where == "its own folder":
        told = python(IMPORTS, cwd=ROOT)
    else:
        told = python(IMPORTS, cwd=request.getfixturevalue("foreign_project"), path=site)
    assert told["first_on_path"] == ""
    return site, site / "fl_dp" if what == "wheel" else site, told


def test_the_package_comes_from_where_it_is_meant_to(imported: tuple[Path, Path, Any]) -> None:
    site, _, told = imported
    assert told["package"] == str(site / "fl_dp" / "__init__.py")


def test_the_strategies_come_from_the_same_place(imported: tuple[Path, Path, Any]) -> None:
    _, beside, told = imported
    assert told["strategies"] == str(beside / "strategies" / "dp_fedavg.py")


def test_the_strategies_have_one_name(imported: tuple[Path, Path, Any]) -> None:
    _, _, told = imported
    assert told["module"] == "fl_dp.strategies.dp_fedavg"
    assert told["one_class"]


def test_the_configuration_comes_from_the_same_place(imported: tuple[Path, Path, Any]) -> None:
    _, beside, told = imported
    assert told["conf"] == str(beside / "conf")


def test_the_same_settings_are_composed(imported: tuple[Path, Path, Any]) -> None:
    _, _, told = imported
    assert told["composed"] == json.loads(Settings().to_json())


# Versions.


def pinned_versions() -> list[str]:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return re.findall(r"^([a-z0-9-]+==\S+)", lock, re.MULTILINE)


def test_the_lock_file_pins_torch_2_13_0() -> None:
    assert "torch==2.13.0" in pinned_versions()


def test_the_lock_file_names_nothing_twice() -> None:
    names = [canonicalize_name(line.split("==")[0]) for line in pinned_versions()]
    assert len(names) == len(set(names))


def test_the_lock_file_satisfies_every_requirement_of_the_project_and_its_tests() -> None:
    pinned = dict(line.split("==") for line in pinned_versions())
    pinned = {canonicalize_name(name): version for name, version in pinned.items()}
    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = [
        Requirement(text)
        for text in [
            *PYPROJECT["project"]["dependencies"],
            *(text for extra in extras.values() for text in extra),
        ]
    ]
    unmet = [
        str(one)
        for one in wanted
        if one.name != NAME
        and not one.specifier.contains(pinned.get(canonicalize_name(one.name), "0"))
    ]
    assert unmet == []


def test_the_version_is_said_the_same_everywhere() -> None:
    assert fl_dp.__version__ == PYPROJECT["project"]["version"]
