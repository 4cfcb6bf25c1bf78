"""The SuperLink of `fl-dp run` answers nobody else on the machine."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from flwr.supercore.routers.runtime.router import router as runtime
from flwr.superlink.main import create_app
from flwr.superlink.routers.control.router import router as control
from flwr.superlink.routers.fleet.router import router as fleet

from fl_dp.app.local import local_supernode
from fl_dp.app.local import superlink as local_superlink
from fl_dp.app.local.launch import LaunchError, LocalSuperLink, answers
from fl_dp.app.local.one_process import OneProcess
from fl_dp.app.local.processes import stop_with_descendants
from fl_dp.app.local.superlink import (
    CLOSED_PATH,
    FOR_NODES,
    OPEN_TO_NODES,
    OwnUserOnly,
    _open_to_all,
    user_of,
)
from fl_dp.clients.owner import app_verification

linux_only = pytest.mark.skipif(
    not local_superlink.users_can_be_told_apart(), reason="only Linux says who connects to a port"
)
SOMEBODY_ELSE = 65534


@pytest.fixture
def connection() -> Any:
    """Return the two ends of a connection over loopback, and the socket of the first one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        mine = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        with mine, accepted:
            yield mine.getsockname(), accepted.getsockname(), mine


def status_of(
    client: Any, server: Any, path: str = "/v1/control/run", open_to_all: tuple[str, ...] = ()
) -> int | None:
    """Ask a guarded app that answers 200; None: nothing was answered."""
    said: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(event: Any) -> None:
        said.extend([event["status"]] if "status" in event else [])

    async def receive() -> Any:
        return {}

    scope = {"type": "http", "path": path, "client": client, "server": server}
    asyncio.run(OwnUserOnly(app, open_to_all=open_to_all)(scope, receive, send))
    return said[0] if said else None


def answer_to_somebody_else(address: str) -> bytes:
    """Ask from a process of another user, which only root can start."""
    host, port = address.split(":")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # it must not come back into pytest
        try:
            os.setgroups([])
            os.setuid(SOMEBODY_ELSE)
            with socket.create_connection((host, int(port)), timeout=120) as asking:
                asking.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                os.write(writing, asking.recv(1000))
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as answer:
        return answer.read()


@linux_only
def test_the_system_says_whose_the_other_end_is(connection: Any) -> None:
    client, server, _ = connection
    assert user_of(client, server) == os.getuid()
    assert status_of(client, server) == 200
    assert status_of(client, server, CLOSED_PATH) == 204


@linux_only
def test_whose_connection_is_unknown_is_refused(connection: Any) -> None:
    client, server, _ = connection
    for other in [(client[0], 0), ("127.0.0.2", client[1]), ("::1", client[1]), None]:
        assert user_of(other, server) is None
        assert status_of(other, server) == 403
        assert status_of(other, server, CLOSED_PATH) == 403
    assert status_of(client, None) == 403


@linux_only
def test_another_user_is_refused(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, server, _ = connection
    monkeypatch.setattr(os, "getuid", lambda: SOMEBODY_ELSE)
    assert status_of(client, server) == 403


@linux_only
def test_a_socket_that_was_closed_is_not_root_s(connection: Any) -> None:
    client, server, mine = connection
    mine.close()  # the kernel then shows it with user 0
    assert user_of(client, server) is None


STRANGER = ("192.0.2.7", 40000)


@linux_only
def test_other_machines_reach_what_nodes_need_and_nothing_else(connection: Any) -> None:
    _, server, _ = connection
    opened = _open_to_all(["superlink", OPEN_TO_NODES, "--enable-supernode-auth"])
    assert status_of(STRANGER, server, f"{FOR_NODES}pull-messages", opened) == 200
    # Starting runs, joining as a node, taking the ServerApp's tasks, reading the interface.
    for path in (
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/control/list-nodes",
        "/v1/runtime/acquire-task",
        "/v1/runtime/pull-messages",
        "/docs",
        "/openapi.json",
        "/health",
        CLOSED_PATH,
        "/",
        "/V1/FLEET/x",
        "/v1/fleet",
        "//v1/fleet/x",
    ):
        assert status_of(STRANGER, server, path, opened) == 403, path
    assert status_of(STRANGER, server, f"{FOR_NODES}pull-messages") == 403  # unless it was opened


@linux_only
def test_flower_s_own_superlink_asks_nodes_for_keys_and_nobody_else_for_anything() -> None:
    """The reason for the guard: should Flower ask one day, the page on deployment has to say so."""
    superlink = create_app()
    superlink.state.enable_supernode_auth = True
    protobuf = {"Content-Type": "application/protobuf", "Accept": "application/protobuf"}
    open_to_all = (FOR_NODES,)

    def status(app: Any, path: str) -> int:
        # An empty message is one of each kind.
        return int(TestClient(app).post(path, content=b"", headers=protobuf).status_code)

    for path in ("/v1/control/list-nodes", "/v1/runtime/acquire-task"):
        assert status(superlink, path) == 200
        assert status(OwnUserOnly(superlink, open_to_all=open_to_all), path) == 403
    for app in (superlink, OwnUserOnly(superlink, open_to_all=open_to_all)):
        assert status(app, f"{FOR_NODES}pull-messages") == 401


def test_the_paths_of_nodes_are_those_that_flower_asks_a_key_for() -> None:
    routes = {route.path for route in fleet.routes if isinstance(route, APIRoute)}
    assert routes and all(path.startswith(FOR_NODES) for path in routes)
    others = {
        route.path
        for router in (control, runtime)
        for route in router.routes
        if isinstance(route, APIRoute)
    }
    assert others and not any(path.startswith(FOR_NODES) for path in others)


@pytest.mark.parametrize("given", [[], ["--insecure"]])
def test_the_port_is_not_opened_to_nodes_without_keys(given: list[str]) -> None:
    with pytest.raises(SystemExit, match="lets everybody in as a node"):
        _open_to_all(["superlink", OPEN_TO_NODES, *given])


def test_the_port_is_not_opened_where_users_can_t_be_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_superlink, "users_can_be_told_apart", lambda: False)
    with pytest.raises(SystemExit, match="by a proxy"):
        _open_to_all(["superlink", OPEN_TO_NODES, "--enable-supernode-auth"])


def test_flower_is_not_told_of_an_option_that_it_does_not_have() -> None:
    words = ["superlink", OPEN_TO_NODES, "--enable-supernode-auth", "--port", "8000"]
    assert _open_to_all(words) == (FOR_NODES,)
    assert words == ["superlink", "--enable-supernode-auth", "--port", "8000"]
    assert _open_to_all(words) == ()


def test_the_guarded_supernode_is_known_to_the_check_of_apps() -> None:
    assert app_verification.is_supernode([sys.executable, "-P", "-m", local_supernode.__name__])
    assert not app_verification.is_supernode([sys.executable, "-P", "-m", local_superlink.__name__])


@linux_only
@pytest.mark.timeout(300)
def test_the_running_supernode_is_closed_to_others(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    node = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "fl_dp.app.local.local_supernode",
            "--insecure",
            "--superlink",
            "127.0.0.1:9",
            "--port",
            str(port),  # nobody is there
        ],
        env=os.environ | {"FLWR_HOME": str(tmp_path), "FLWR_DISABLE_UPDATE_CHECK": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        address = f"http://127.0.0.1:{port}{CLOSED_PATH}"
        while True:
            try:
                with urllib.request.urlopen(address, timeout=120) as own:
                    assert own.status == 204  # the guard's own answer
                    break
            except urllib.error.URLError:
                assert node.poll() is None
                time.sleep(0.1)
        if os.getuid() == 0:  # only root can be somebody else
            assert b" 403 " in answer_to_somebody_else(f"127.0.0.1:{port}")
    finally:
        stop_with_descendants(node)


@linux_only
@pytest.mark.timeout(300)
def test_the_running_superlink_is_closed_to_others_and_so_is_what_ray_leaves() -> None:
    with LocalSuperLink() as link:
        link.wait()
        address = next(
            line.split('"')[1]
            for line in (Path(link._folder.name) / "config.toml").read_text().splitlines()
            if line.startswith("address")
        )
        with urllib.request.urlopen(f"http://{address}/health", timeout=120) as own:
            assert own.status == 200
        forged = urllib.request.Request(
            f"http://{address}/health", headers={"X-Forwarded-For": "127.0.0.1"}
        )
        with urllib.request.urlopen(forged, timeout=120) as own:  # a header says nothing
            assert own.status == 200
        if os.getuid() == 0:  # only root can be somebody else
            assert b" 403 " in answer_to_somebody_else(address)

        assert link._environment["RAY_ADDRESS"] == "local"
        assert link._environment["RAY_AUTH_MODE"] == "token"
        assert len(link._environment["RAY_AUTH_TOKEN"]) >= 32
        folder = Path(link._environment["RAY_TMPDIR"])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def environments_of_runs(monkeypatch: pytest.MonkeyPatch, number: int) -> list[dict[str, str]]:
    """Return what so many runs would give to their processes; none comes up."""
    environments = []

    def not_started(*_: Any, env: dict[str, str], **__: Any) -> None:
        environments.append(env)
        raise ProcessLookupError("stop")

    monkeypatch.setattr("fl_dp.app.local.launch.subprocess.Popen", not_started)
    for _ in range(number):
        with pytest.raises(ProcessLookupError), LocalSuperLink():
            pass
    return environments


def test_each_run_has_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = environments_of_runs(monkeypatch, 2)
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]


@pytest.mark.parametrize("reports", ["FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"])
@pytest.mark.parametrize(("set_to", "given"), [(None, "0"), ("1", "1")])
def test_flower_and_ray_report_to_their_makers_only_if_the_user_says_so(
    reports: str, set_to: str | None, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(reports, raising=False)
    if set_to is not None:
        monkeypatch.setenv(reports, set_to)
    (environment,) = environments_of_runs(monkeypatch, 1)
    assert environment[reports] == given


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY", "no_grpc_proxy"])
def test_no_proxy_is_asked_for_what_is_on_this_machine(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv(name, "example.org")
    (environment,) = environments_of_runs(monkeypatch, 1)
    assert {"example.org", "localhost", "127.0.0.1"} <= set(environment[name].split(","))
    with socket.create_server(("127.0.0.1", 0)) as here:
        threading.Thread(target=_answer_once, args=(here,), daemon=True).start()
        assert answers(f"http://127.0.0.1:{here.getsockname()[1]}/")


def _answer_once(listening: socket.socket) -> None:
    accepted, _ = listening.accept()
    with accepted:
        accepted.recv(4096)
        accepted.sendall(b"HTTP/1.0 204 No Content\r\n\r\n")


def test_a_long_temporary_folder_leaves_room_for_the_paths_of_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("folder-" * 20)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    (environment,) = environments_of_runs(monkeypatch, 1)
    assert len(environment["RAY_TMPDIR"]) <= 40
    monkeypatch.setattr("fl_dp.app.local.launch._SHORT_FOLDER", str(long))
    with pytest.raises(LaunchError, match="write TMPDIR=") as refused, LocalSuperLink():
        pass
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("missing", "extra", "engine"),
    [
        ("ray", "simulation", LocalSuperLink()),
        ("torch", "torch", LocalSuperLink()),
        ("torch", "torch", OneProcess()),
    ],
)
def test_without_a_package_one_line_names_what_to_install(
    missing: str, extra: str, engine: LocalSuperLink | OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_dp.app.local.launch.find_spec", lambda name: name != missing or None)
    with pytest.raises(LaunchError, match=rf"pip install 'fl-dp\[{extra}\]'"), engine:
        pass
