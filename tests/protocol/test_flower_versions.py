"""Parts of Flower that may move: one that is gone is named, with the versions that were tested."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uvicorn
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message, RecordDict

from fl_dp.protocol import flower_compat
from fl_dp.protocol.flower_versions import TESTED, FlowerChanged, parts_of_flower

ROOT = Path(__file__).resolve().parents[2]
COMPAT = ROOT / "fl_dp/protocol/flower_compat.py"
WIRE = ROOT / "fl_dp/gate/flower_wire.py"
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".service"}
DOCUMENTED = re.compile(
    r"flwr(\.(app|client|clientapp\.typing|common\.typing|serverapp)(\..*)?|\.clientapp)?$"
)


def test_a_part_that_is_gone_is_named_with_the_versions_that_were_tested() -> None:
    with pytest.raises(FlowerChanged, match=r"of_old.*tested with flwr 1\.41 and 1\.42"):
        with_a_part_of_old()


@parts_of_flower()
def with_a_part_of_old() -> None:
    """Import something that Flower does not have."""
    importlib.import_module("flwr.supercore.of_old")


@pytest.mark.parametrize(
    ("started", "gone"),
    [
        ("fl_dp.clients.numpy_client_app", "flwr.common.constant.ErrorCode"),
        ("fl_dp.strategies.dp_fedavg", "flwr.common.constant.ErrorCode"),
    ],
)
def test_what_starts_says_so_at_once(started: str, gone: str) -> None:
    module, _, name = gone.rpartition(".")
    flower = "import flwr.app, flwr.serverapp, flwr.clientapp"  # which needs the part itself
    code = f"{flower}; import {module} as m; del m.{name}; import {started}"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert name in said
    assert "fl-dp was tested with flwr 1.41 and 1.42" in said


def private(module: str) -> bool:
    """Whether this is a part of Flower that its documentation leaves out."""
    return module.partition(".")[0] == "flwr" and not DOCUMENTED.match(module)


def imported(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports, or a call of `import_module` names."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_", "import_module")):
        return [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
    return []


def private_imports(file: Path) -> list[str]:
    """Return what a file imports of Flower's undocumented parts."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return [module for node in nodes for module in imported(node) if private(module)]


def sources() -> list[Path]:
    """Return the files of every room, of operators' scripts and of apps that readers copy.

    Benchmarks measure Flower's own parts, and tests check ours against them.
    """
    places = ("fl_dp", "strategies", "deploy", "examples", "docs")
    return [file for place in places for file in (ROOT / place).rglob("*.py")]


def test_two_files_alone_import_parts_that_flower_s_documentation_leaves_out() -> None:
    """The gate's hook reaches further into Flower than all else, and is refused as a whole."""
    assert {file for file in sources() if private_imports(file)} == {COMPAT, WIRE}


@pytest.mark.parametrize(
    "statement",
    [
        "from flwr.supercore.address import parse_address",
        "import flwr.superlink.cli",
        "import flwr.supercore as parts",
        "importlib.import_module('flwr.supernode')",
    ],
)
def test_every_way_to_import_such_a_part_is_noticed(statement: str, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(statement)
    assert private_imports(tmp_path / "file.py")


@pytest.mark.parametrize("file", [COMPAT, WIRE], ids=["all else", "a gate's messages"])
def test_every_such_import_stands_in_the_block_that_names_what_to_install(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    blocks = [
        block
        for block in ast.walk(tree)
        if isinstance(block, ast.With) and "parts_of_flower" in ast.unparse(block.items[0])
    ]
    marked = [module for block in blocks for each in ast.walk(block) for module in imported(each)]
    assert sorted(filter(private, marked)) == sorted(private_imports(file))


KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("flwr.superlink.cli", lambda: flower_compat.superlink_behind(None)),
        ("flwr.supernode.cli", lambda: flower_compat.supernode_behind(lambda app: app)),
        ("flwr.common.config", lambda: flower_compat.parsed_config("a=1")),
        ("flwr.common.config", lambda: flower_compat.bundle_name_and_version(Path("x"))),
        (
            "flwr.supercore.primitives.asymmetric_ed25519",
            lambda: flower_compat.signature_of(KEY, b"", 0),
        ),
    ],
)
def test_what_is_imported_later_is_named_in_one_line(
    module: str, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        FlowerChanged, match=rf"^flwr 1\.\d+.* lacks .*{module}.*'flwr==1\.42"
    ) as said:
        call()
    assert "\n" not in str(said.value)


def test_a_field_that_is_read_no_more_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    flower_compat.be_in_a_run()
    message = Message(RecordDict(), dst_node_id=1, message_type="query")
    flower_compat.give_id(message, "m1")
    assert message.metadata.message_id == "m1"
    monkeypatch.setattr(type(message.metadata), "message_id", "of another field")
    with pytest.raises(FlowerChanged, match="_message_id"):
        flower_compat.give_id(message, "m2")


def test_no_interface_without_a_guard_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "run", uvicorn.run)
    older = ["FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"]
    for each in older:
        monkeypatch.setenv(each, "1")
    flower_compat.superlink_behind(lambda app: app)
    assert not os.environ.keys() & set(older)


@pytest.mark.parametrize("place", ["fl_dp", "deploy", "tests", "docs"])
def test_no_option_of_flower_s_older_transport_is_used(place: str) -> None:
    """From 1.43 on they are taken and configure nothing."""
    older = re.compile("--(control|fleet|serverappio|clientappio)-api-(address|type)")
    files = [each for each in (ROOT / place).rglob("*") if each.suffix in SUFFIXES]
    assert [file for file in files if older.search(file.read_text(encoding="utf-8"))] == []


def test_no_file_besides_these_reaches_into_parts_that_may_move() -> None:
    reach = re.compile(
        r"parts_of_flower\(|_message_id\"\]|InMemoryGrid|TaskIdentity|_ray_actor|uvicorn\.\w+ = "
    )
    reaching = {file.name for file in sources() if reach.search(file.read_text(encoding="utf-8"))}
    assert reaching == {"flower_compat.py", "flower_wire.py", "flower_versions.py"}


def test_continuous_integration_runs_every_version_that_is_said_to_be_tested() -> None:
    checks = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text(encoding="utf-8"))
    beside = checks["jobs"]["flower"]["strategy"]["matrix"]["flwr"]
    locked = re.search(r"^flwr==(\d+\.\d+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert locked is not None
    released = [each.removeprefix("flwr==").removesuffix(".*") for each in beside]
    nightly = [each for each in beside if each.startswith("flwr-nightly==")]
    assert [locked[1], *sorted(set(released) - set(nightly))] == [*reversed(TESTED)]
    assert len(nightly) == 1
