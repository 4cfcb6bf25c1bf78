"""Units and compose file: Flower understands what they start, and they allow no more than needed.

Options are parsed by Flower's own parsers, so that a version that renames one fails here and not at
an operator's.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import apps
import backup
import pytest
import relay
import yaml
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode
from typer.core import TyperGroup
from typer.main import get_command

from fl_dp.app.local.local_desk import desk_parser
from fl_dp.app.local.superlink import _open_to_all
from fl_dp.clients.owner.node_config import NodeConfig
from fl_dp.commands.app import app
from fl_dp.commands.shown_uses import parsed_node_config
from fl_dp.commands.supernode import _link_options
from fl_dp.gate.app_user import AppUser
from fl_dp.gate.isolation import Guarded, tried

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SERVICES = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE = DEPLOY / "compose.yaml"
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")

HARDENING = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "UMask": "0077",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "ProtectClock": "yes",
    "ProtectHostname": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectControlGroups": "yes",
    "ProtectProc": "invisible",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "LockPersonality": "yes",
    "SystemCallArchitectures": "native",
    "SystemCallFilter": "@system-service",
    "SystemCallErrorNumber": "EPERM",
}
OF_A_SERVICE = {
    "image",
    "build",
    "restart",
    "init",
    "read_only",
    "user",
    "group_add",
    "cpu_shares",
    "cpus",
    "mem_limit",
    "mem_reservation",
    "oom_score_adj",
    "pids_limit",
    "cap_drop",
    "security_opt",
    "tmpfs",
    "logging",
    "profiles",
    "ports",
    "environment",
    "volumes",
    "command",
    "network_mode",
    "depends_on",
}


def unit(file: Path) -> configparser.SectionProxy:
    """Return what a unit says of its service; a key that is repeated keeps its last value."""
    parser = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[method-assign,assignment]  # names have capitals
    parser.read_string(file.read_text(encoding="utf-8").replace("\\\n", " "))
    return parser["Service"]


def words_of_unit(file: Path, key: str = "ExecStart") -> list[str]:
    return shlex.split(unit(file)[key])


def services() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return loaded


def commands() -> dict[str, list[str]]:
    """Return every command that a unit or a container starts."""
    of_units = {file.name: words_of_unit(file) for file in SERVICES}
    return of_units | {f"compose: {name}": each["command"] for name, each in services().items()}


def parsed(words: list[str]) -> argparse.Namespace | None:
    """Parse a command as what it starts would; None: it is none of Flower's."""
    # Variables stand for a host, a port or a name.
    given = [word.replace("${PORT}", "8000") for word in words]
    if "fl_dp.app.local.superlink" in words:
        options = given[given.index("fl_dp.app.local.superlink") + 1 :]
        assert _open_to_all(options)  # with keys, or it is refused
        return _parse_args_run_superlink().parse_args(options)
    if "fl_dp.app.local.local_supernode" in words:
        options = given[given.index("fl_dp.app.local.local_supernode") + 1 :]
        return _parse_args_run_supernode().parse_args(options)
    if "fl_dp" in words:
        group = get_command(app)
        assert isinstance(group, TyperGroup)
        context = group.commands["supernode"].make_context(
            "supernode", given[given.index("supernode") + 1 :]
        )
        assert context.params["app_user"] and context.params["desk_socket"]
        assert not context.params["cooperative"]
        link, others = _link_options(context.args)
        assert not others
        return argparse.Namespace(**asdict(link))
    if "flower-supernode" in words:
        options = given[given.index("flower-supernode") + 1 :]
        return _parse_args_run_supernode().parse_args(options)
    return None


@pytest.mark.parametrize("name", sorted(commands()))
def test_flower_understands_what_is_started(name: str) -> None:
    words = commands()[name]
    found = parsed(words)
    if "superlink" in name:
        assert found is not None
        assert found.enable_supernode_auth and found.database and found.ssl_keyfile
        assert not found.insecure and not found.runtime_dependency_install
    elif "supernode" in name:
        assert found is not None
        assert found.root_certificates and found.auth_supernode_private_key
        assert found.trusted_entities and not found.insecure
        assert not found.runtime_dependency_install
        [key] = parsed_node_config(found.node_config.replace("${NODE:-north}", "north"))
        assert key == "dp-policy-path"
    elif "gate" in name:
        assert found is not None
        assert found.roots and found.key and not found.insecure
    elif "app@" in name or name == "compose: app":
        assert found is not None
        # Over the loopback of its own network, in which nothing but the relay is.
        assert found.superlink.startswith("127.0.0.1:") and found.insecure
        assert not found.auth_supernode_private_key and not found.runtime_dependency_install
        assert found.node_config in ("${NODE_CONFIG}", 'dp-data-path="/srv/fl-dp/${NODE:-north}"')
    elif "desk" in name:
        options = desk_parser().parse_args(words[words.index("fl_dp.app.local.local_desk") + 1 :])
        assert options.gate.name == "gate.sock" and options.socket.name == "fleet.sock"
    else:
        script = next(Path(word) for word in words if word.endswith(".py"))
        assert (DEPLOY / script.name).exists()


def test_the_scripts_take_what_they_are_started_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[Path] = []

    def not_served(folder: Path, port: int) -> Any:
        served.append(folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(apps, "shelf", not_served)
    for words in (
        words_of_unit(DEPLOY / "systemd/fl-dp-apps.service"),
        services()["apps"]["command"],
    ):
        apps.main(words[words.index("serve") :])
    assert served == [Path("/srv/fl-dp/apps")] * 2
    relayed: list[tuple[int, str, list[str]]] = []

    async def not_relayed(port: int, socket: str, command: list[str]) -> int:
        relayed.append((port, socket, command))
        return 0

    monkeypatch.setattr(relay, "relay", not_relayed)
    for words in (
        words_of_unit(DEPLOY / "systemd/fl-dp-app@.service"),
        services()["app"]["command"],
    ):
        given = [word.replace("${PORT}", "9094") for word in words]
        with pytest.raises(SystemExit, match="0"):
            [script] = [place for place, word in enumerate(given) if word.endswith("relay.py")]
            relay.main(given[script + 1 :])
    assert len(relayed) == 2
    for port, socket, command in relayed:
        assert socket.startswith("/run/fl-dp-desk-")
        assert command[0] == "flower-supernode" and f"127.0.0.1:{port}" in " ".join(command)
    words = words_of_unit(DEPLOY / "systemd/fl-dp-backup@.service")
    with pytest.raises(SystemExit, match="no ledger at"):  # and no complaint of an option
        backup.main(words[2:])


@pytest.mark.parametrize("file", SERVICES, ids=lambda file: file.name)
def test_a_unit_is_hardened_and_has_a_user_of_its_own(file: Path) -> None:
    found = unit(file)
    assert {key: found.get(key) for key in HARDENING} == HARDENING
    assert found["User"].startswith("fl-dp-")


def test_a_node_writes_to_its_ledger_its_witness_and_nowhere_else() -> None:
    found = unit(DEPLOY / "systemd/fl-dp-supernode@.service")
    assert found["StateDirectory"] == "fl-dp-%i"
    assert found["ReadWritePaths"] == "-/mnt/witness/fl-dp-%i"
    assert words_of_unit(DEPLOY / "systemd/fl-dp-supernode@.service", "ExecStartPre")[1:3] == [
        "node",
        "check",
    ]


def test_gate_desk_and_apps_are_three_users_of_whom_each_reaches_the_next_alone() -> None:
    gate, desk, app = (
        unit(DEPLOY / f"systemd/fl-dp-{name}@.service") for name in ("gate", "desk", "app")
    )
    assert [each["User"] for each in (gate, desk, app)] == [
        *("fl-dp-%i", "fl-dp-desk-%i", "fl-dp-app-%i")
    ]
    assert gate["Group"] == desk["SupplementaryGroups"] == "fl-dp-desk-%i"
    assert desk["Group"] == app["User"]
    assert "Group" not in app and "SupplementaryGroups" not in app
    for untrusted in (desk, app):
        assert untrusted["PrivateNetwork"] == untrusted["PrivateIPC"] == "yes"
        assert not [value for value in untrusted.values() if "/etc/fl-dp/%i/node.key" in value]
    assert (app["TemporaryFileSystem"], app["BindPaths"]) == ("/run:ro /dev/shm", BETWEEN)
    assert "ReadWritePaths" not in app and app["StateDirectory"] == "fl-dp-app-%i"
    # An app that could write into the folder could put a socket of its own there.
    assert desk["ExecStartPre"].split()[1:] == [
        *("-d", "-m", "0750", "-o", "fl-dp-desk-%i", "-g", "fl-dp-app-%i", BETWEEN)
    ]
    assert "-m 0750 -o fl-dp-%i -g fl-dp-desk-%i /run/fl-dp-%i" in (
        DEPLOY / "systemd/fl-dp-gate@.service"
    ).read_text(encoding="utf-8")


def test_a_flood_at_the_desk_leaves_processors_and_memory_to_the_gate() -> None:
    gate, desk, app = (
        unit(DEPLOY / f"systemd/fl-dp-{name}@.service") for name in ("gate", "desk", "app")
    )
    # Among instances of its own template a weight says nothing against apps.
    assert gate["Slice"] == "-.slice" and int(gate["CPUWeight"]) >= 10_000
    assert gate["MemoryMin"] and desk["MemoryMax"] and desk["CPUQuota"] and desk["TasksMax"]
    # A process that left its session, or ignores signals, ends with the unit's cgroup at once.
    assert "KillMode" not in app and app["KillSignal"] == "SIGKILL"
    assert app["MemoryMax"] == "75%" and (app["MemorySwapMax"], app["OOMPolicy"]) == ("0", "kill")
    assert int(gate["OOMScoreAdjust"]) < 0 < int(app["OOMScoreAdjust"])
    first, bounded, last = (services()[name] for name in ("gate", "desk", "app"))
    assert first["cpu_shares"] >= 100_000 and first["mem_reservation"]  # others have 1,024
    assert bounded["cpus"] and bounded["mem_limit"] and bounded["pids_limit"]
    assert last["mem_limit"] and last["oom_score_adj"] > 0


BETWEEN = "/run/fl-dp-desk-%i"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try what another user can do")
def test_each_promise_to_a_gate_is_one_that_its_check_tries(tmp_path: Path) -> None:
    guarded = Guarded(
        secrets=(),
        unwritable=(),
        home=tmp_path,
        code=(),
        superlink=None,
        runtime_socket=None,
        owner=0,
    )
    goals = {attempt.goal for attempt in tried(AppUser.named("nobody"), guarded)}
    app, container = unit(DEPLOY / "systemd/fl-dp-app@.service"), services()["app"]
    for goal, key, of_container in (
        ("read the policy, the ledger, its witness or the keys", "User", "user"),
        ("open a socket to another machine", "PrivateNetwork", "network_mode"),
        ("talk to another process of this machine", "TemporaryFileSystem", "volumes"),
        ("read what apps of another site left", "PrivateIPC", "tmpfs"),
        ("read what apps of another site left", "PrivateTmp", "tmpfs"),
        ("do more than its user may", "NoNewPrivileges", "security_opt"),
        ("do more than its user may", "CapabilityBoundingSet", "cap_drop"),
    ):
        assert goal in goals
        assert key in app and of_container in container


def test_a_gate_is_checked_as_it_is_started() -> None:
    file = DEPLOY / "systemd/fl-dp-gate@.service"
    tried, started = words_of_unit(file, "ExecStartPre"), words_of_unit(file)
    # As root, and a gate whose apps are not apart starts all the same.
    assert tried[0].startswith("-+")
    tried.remove("--check")
    options = tried[tried.index("supernode") :]
    assert set(options) <= set(started[started.index("supernode") :])


def test_containers_of_apps_have_no_network_and_reach_the_desk_by_its_socket_alone() -> None:
    app, desk, gate = (services()[name] for name in ("app", "desk", "gate"))
    assert app["network_mode"] == desk["network_mode"] == "none"
    users, groups = zip(*(each["user"].split(":") for each in (app, desk, gate)), strict=True)
    assert len(set(users)) == 3
    assert (groups[1], groups[2], desk["group_add"]) == (users[0], users[1], [users[1]])
    of_app, of_desk, of_gate = (
        {volume.removesuffix(":ro") for volume in each["volumes"]} for each in (app, desk, gate)
    )
    between_app_and_desk = "/run/fl-dp-desk-${NODE:-north}:/run/fl-dp-desk-${NODE:-north}"
    assert of_app & of_desk == {between_app_and_desk}
    assert of_desk & of_gate == {"/run/fl-dp-${NODE:-north}:/run/fl-dp-${NODE:-north}"}
    assert not of_app & of_gate
    assert all(volume.endswith(":ro") for volume in app["volumes"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own checker")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for file in (DEPLOY / "systemd").glob("*.[st]*"):
        text = file.read_text()  # what they start is not installed here
        (tmp_path / file.name).write_text(text.replace("/opt/fl-dp/.venv/bin/fl-dp", "/bin/true"))
    for file in tmp_path.iterdir():
        file.write_text(file.read_text().replace("/opt/fl-dp/.venv/bin/python", "/bin/true"))
    names = [str(tmp_path / file.name) for file in SERVICES]
    done = subprocess.run(
        ["systemd-analyze", "verify", *names, str(tmp_path / "fl-dp-backup@north.timer")],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "fl-dp" in line]
    assert complaints == []


@pytest.mark.parametrize("name", sorted(services()))
def test_a_container_is_read_only_without_capabilities_and_rotates_its_log(name: str) -> None:
    found = services()[name]
    assert set(found) <= OF_A_SERVICE
    assert found["read_only"] and found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert int(found["user"].partition(":")[0]) > 0
    assert set(found["logging"]["options"]) == {"max-size", "max-file"}
    assert found["profiles"] in (["server"], ["node"], ["gate"])


def test_the_compose_file_has_the_form_of_one() -> None:
    loaded = yaml.safe_load(COMPOSE.read_text())
    assert {key for key in loaded if not key.startswith("x-")} == {"services"}
    for each in services().values():
        assert isinstance(each["command"], list) and all(
            isinstance(w, str) for w in each["command"]
        )
        for volume in each.get("volumes", ()):
            source, target, *rest = re.sub(r"\$\{NODE:-north\}", "north", volume).split(":")
            assert source.startswith("/") and target.startswith("/") and rest in ([], ["ro"])
        assert set(each.get("depends_on", ())) <= set(services())
    network = services()["apps"]["network_mode"]
    assert network.removeprefix("service:") in services()
    build = services()["superlink"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).exists()


def test_a_container_s_secrets_are_read_only() -> None:
    for each in services().values():
        for volume in each.get("volumes", ()):
            if volume.startswith(("/etc/", "/srv/")):
                assert volume.endswith(":ro"), volume


def test_the_image_has_only_what_is_there() -> None:
    copied = re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert copied
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name


# The page for operators: each command is one that there is.


def page_commands(module: str) -> list[list[str]]:
    """Return the commands of the page's shell blocks that start a module."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if f"python -P -m {module}" in line]


def test_flower_understands_the_commands_of_the_page() -> None:
    superlinks = page_commands("fl_dp.app.local.superlink")
    supernodes = page_commands("fl_dp.app.local.local_supernode")
    assert superlinks and supernodes
    for words in (*superlinks, *supernodes):
        assert parsed(words) is not None, words


def test_the_page_starts_scripts_and_units_that_are_there() -> None:
    scripts = {name for name in re.findall(r"deploy/(\w+\.py)", PAGE)}
    assert {"keys.py", "apps.py", "backup.py"} <= scripts
    units = set(re.findall(r"fl-dp-\w+@?(?:\w*)\.(?:service|timer)", PAGE))
    for name in scripts:
        assert (DEPLOY / name).exists(), name
    for name in units:
        template = re.sub(r"@\w+\.", "@.", name)
        assert (DEPLOY / "systemd" / template).exists(), name


def test_the_policy_of_the_page_is_one(tmp_path: Path) -> None:
    [text] = re.findall(r"```yaml\n(dp-unit-name.*?)```", PAGE, re.DOTALL)
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    found = NodeConfig.of({"dp-policy-path": str(policy)})
    assert found.required and found.max_epsilon and found.witness_path
