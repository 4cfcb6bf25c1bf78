"""The wheel and Flower's bundle hold what they need, and import the same way everywhere."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from outside_commands import call
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
import fl_dp, fl_dp.client_app, fl_dp.server_app
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
    "apps": [type(fl_dp.client_app.app).__name__, type(fl_dp.server_app.app).__name__],
    "app_files": [fl_dp.client_app.__file__, fl_dp.server_app.__file__],
}))
"""


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


def test_the_wheel_holds_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    names = names_in(wheel)
    assert {f"fl_dp/{name}" for name in STRATEGIES} <= names
    assert {name for name in names if name.startswith("fl_dp/conf/")} == {
        f"fl_dp/{name}" for name in CONF
    }
    assert "fl_dp/py.typed" in names
    assert "fl_dp/strategies.py" not in names  # it stands for the folder of strategies
    viewer = (ROOT / "fl_dp" / "viewer").rglob("*")
    texts = [path for path in viewer if path.suffix in (".j2", ".json", ".yaml")]
    assert {"edpb_28_2024.md.j2", "registry.yaml", "zh.json"} <= {path.name for path in texts}
    assert {path.relative_to(ROOT).as_posix() for path in texts} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {
        "fl_dp",
        f"fl_dp-{fl_dp.__version__}.dist-info",
    }


def test_the_wheel_holds_the_template_of_a_new_app(wheel: Path) -> None:
    folder = ROOT / "fl_dp" / "commands" / "new_app" / "template"
    files = {path for path in folder.rglob("*") if path.suffix in (".py", ".txt")}
    assert files
    assert {path.relative_to(ROOT).as_posix() for path in files} <= names_in(wheel)
    assert len(files) == 9


def test_an_index_accepts_what_the_wheel_says_of_itself(wheel: Path) -> None:
    [name] = [name for name in names_in(wheel) if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as opened:
        metadata = Metadata.from_email(opened.read(name), validate=True)
    assert metadata.name == NAME
    assert metadata.license_expression == PYPROJECT["project"]["license"]
    assert metadata.description_content_type == "text/markdown"
    # A node installs neither torch nor Ray unless an extra says so.
    brought: dict[str, set[str]] = {"": set(), "torch": set(), "simulation": set()}
    for needed in metadata.requires_dist or []:
        for extra, names in brought.items():
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                names |= {needed.name, *(f"{needed.name}[{inner}]" for inner in needed.extras)}
    assert "flwr" in brought[""]
    assert not {"torch", "flwr[simulation]"} & brought[""]
    assert "torch" in brought["torch"] and "flwr[simulation]" in brought["simulation"]


# Flower's bundle.


def test_the_bundle_holds_the_package_and_neither_tests_nor_docs(bundle: Any) -> None:
    names = names_in(bundle)
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "fl_dp").rglob("*.py")}
    # Flower bundles no tests; who is given a bundle writes no new app.
    modules.remove("fl_dp/commands/new_app/template/tests/test_app.py")
    assert names >= modules | STRATEGIES | CONF | {"LICENSE"}
    assert not [name for name in names if name.startswith(("tests/", "docs/", "examples/"))]


# One name, wherever it is imported from.


@pytest.mark.parametrize("archive", ["wheel", "bundle"])
def test_beside_folders_of_the_same_names_all_comes_from_one_place(
    archive: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A project of somebody's has `strategies/` and `conf/` of its own."""
    site = unpacked(request.getfixturevalue(archive), tmp_path / "site")
    project = tmp_path / "project"
    for folder in ("strategies", "conf"):
        (project / folder).mkdir(parents=True)
    (project / "strategies" / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    (project / "conf" / "config.yaml").write_text("defaults: [nonsense]\n")
    told = python(IMPORTS, cwd=project, path=site, FLWR_HOME=str(tmp_path))
    beside = site / "fl_dp" if archive == "wheel" else site
    assert told == {
        "first_on_path": "",
        "package": str(site / "fl_dp" / "__init__.py"),
        "strategies": str(beside / "strategies" / "dp_fedavg.py"),
        "module": "fl_dp.strategies.dp_fedavg",
        "one_class": True,
        "conf": str(beside / "conf"),
        "composed": json.loads(Settings().to_json()),
        "apps": ["ClientApp", "ServerApp"],
        "app_files": [str(site / "fl_dp" / f"{name}_app.py") for name in ("client", "server")],
    }


# Versions.


def pinned_versions() -> list[str]:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return re.findall(r"^([a-z0-9-]+==\S+)", lock, re.MULTILINE)


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
