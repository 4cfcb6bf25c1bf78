"""Apps for Flower's hub: its own commands take them, and what they bundle trains.

What `flwr app publish` would send is caught where it leaves; nobody is asked over a network.
"""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PathDistribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w
from flwr.cli.auth_plugin.oidc_cli_plugin import OidcCliPlugin
from flwr.cli.config_utils import load
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format
from outside_commands import call

from fl_dp import __version__
from fl_dp.commands.new_app import write
from fl_dp.commands.new_app.write import write_app
from fl_dp.protocol.flower_versions import TESTED

# Its package has a function of the same name.
publishing = import_module("flwr.cli.app_cmd.publish")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "hub"


def copy_of_the_example(folder: Path) -> Path:
    return shutil.copytree(
        EXAMPLE, folder / "hub", ignore=shutil.ignore_patterns("__pycache__", ".*_cache")
    )


def new_app(folder: Path) -> Path:
    return write_app("ward-seven", folder)


APPS = {"examples/hub": copy_of_the_example, "fl-dp new": new_app}


@pytest.fixture(params=list(APPS.values()), ids=list(APPS))
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made: Callable[[Path], Path] = request.param
    return made(tmp_path)


def alone(folder: Path) -> dict[str, str]:
    """Return an environment in which neither Flower nor uv asks the network."""
    return {"UV_OFFLINE": "1", "FLWR_HOME": str(folder / "flower")}


def published(app: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files that `flwr app publish` sends."""
    plugin = OidcCliPlugin.__new__(OidcCliPlugin)
    plugin.access_token = "of nobody"
    monkeypatch.setattr(OidcCliPlugin, "load_tokens", lambda _: None)
    monkeypatch.setattr(publishing, "load_cli_auth_plugin_from_connection", lambda _: plugin)
    sent: list[str] = []

    def post(url: str, *, files: list[tuple[str, tuple[str, Any, str]]], **_: Any) -> Any:
        sent.extend(name for _, (name, *_) in files)
        return SimpleNamespace(ok=True)

    monkeypatch.setattr(publishing.requests, "post", post)
    publishing.publish(app)
    return sent


def bundled(app: Path) -> Path:
    """Return what `flwr build` makes of an app, unpacked."""
    folder = app.parent / "built"
    folder.mkdir()
    call(
        [Path(sys.executable).with_name("flwr"), "build", "--app", app], cwd=folder, **alone(folder)
    )
    [bundle] = folder.glob("*.fab")
    with zipfile.ZipFile(bundle) as opened:
        opened.extractall(folder)
    return folder


def test_the_hub_takes_the_app(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = published(app, monkeypatch)
    assert {"pyproject.toml", "README.md", "LICENSE"} <= set(sent)
    assert any(name.endswith("/client_app.py") for name in sent)


def test_flower_builds_the_app_in_its_newest_format(app: Path) -> None:
    folder = bundled(app)
    config = load(folder / "pyproject.toml")
    assert config is not None
    metadata = normalize_and_validate_fab_format(config)
    assert metadata.fab_format_version == 1
    assert metadata.flwr_version_target is not None
    assert metadata.flwr_version_target.rpartition(".")[0] in TESTED
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


TRAIN = """
import sys, tomllib
from pathlib import Path
from flwr.app import Context, RecordDict
from fl_dp.app.in_process import InProcessGrid
from private_digits import client_app, server_app

config = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
config["runs-folder"] = sys.argv[1]
places = [{"partition-id": node, "num-partitions": 2} for node in range(2)]
grid = InProcessGrid(client_app.app, places, run_id=7, run_config=config)
server_app.app(grid, Context(7, 0, {}, RecordDict(), config))
"""


@pytest.mark.slow
def test_the_example_learns_from_its_bundle_within_its_budget(tmp_path: Path) -> None:
    """Five trainings ended between 0.853 and 0.883; chance is 0.1."""
    folder = bundled(copy_of_the_example(tmp_path))
    told = call(
        [sys.executable, "-c", TRAIN, tmp_path], cwd=folder, PYTHONPATH=str(ROOT), **alone(folder)
    )
    said = dict(line.split(": ", 1) for line in told.splitlines())
    assert float(said["Accuracy on public records"]) > 0.6
    assert 3.9 < float(said["Spent"].split()[1]) <= 4.0
    assert Path(said["Privacy statement"]).read_text("utf-8").startswith("# Privacy statement")


# How Flower's installer finds an fl-dp that is on no index.


def installed_from(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fl-dp be installed from a place."""
    metadata = folder / "fl_dp.dist-info"
    metadata.mkdir()
    text = json.dumps({"url": url, "archive_info": {}})
    (metadata / "direct_url.json").write_text(text, encoding="utf-8")
    monkeypatch.setattr(write, "distributions", lambda name: [PathDistribution(metadata)])


def test_an_app_written_where_fl_dp_is_of_an_index_names_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_from("https://files.example/fl_dp.whl", tmp_path, monkeypatch)
    assert "tool.uv" not in (new_app(tmp_path) / "pyproject.toml").read_text(encoding="utf-8")


# Of Flower, as it installs an app's dependencies before a run.
INSTALLER = """
import sys
from flwr.supercore.superexec.dependency_installer import install_app_dependencies

install_app_dependencies(sys.argv[1])
import fl_dp
print(fl_dp.__file__)
"""


def small_wheel(folder: Path) -> Path:
    """Return a wheel of fl-dp's name and version that needs nothing, and so no network."""
    wheel = folder / f"fl_dp-{__version__}-py3-none-any.whl"
    metadata = f"fl_dp-{__version__}.dist-info"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr("fl_dp/__init__.py", "")
        opened.writestr(
            f"{metadata}/METADATA",
            f"Metadata-Version: 2.1\nName: fl-dp\nVersion: {__version__}\nProvides-Extra: torch\n",
        )
        opened.writestr(
            f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        opened.writestr(f"{metadata}/RECORD", "")
    return wheel


def test_flower_s_installer_takes_fl_dp_from_where_it_was_installed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app's other dependencies are left out: they come from an index."""
    wheels = tmp_path / "wheels of ours"
    wheels.mkdir()
    installed_from(small_wheel(wheels).as_uri(), tmp_path, monkeypatch)
    folder = bundled(new_app(tmp_path))
    config = load(folder / "pyproject.toml")
    assert config is not None
    project = config["project"]
    del project["optional-dependencies"]
    project["dependencies"] = [need for need in project["dependencies"] if "fl-dp" in need]
    (folder / "pyproject.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    told = call([sys.executable, "-c", INSTALLER, folder], cwd=tmp_path, **alone(tmp_path))
    environments = tmp_path / "flower" / "runtime-envs"
    assert Path(told.splitlines()[-1]).is_relative_to(environments)
