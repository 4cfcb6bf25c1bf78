"""The SuperLink of `fl-dp run` answers nobody else on the machine."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fl_dp.local import superlink as local_superlink
from fl_dp.local.launch import LocalSuperLink
from fl_dp.local.superlink import CLOSED_PATH, OwnUserOnly, user_of

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


def status_of(client: Any, server: Any, path: str = "/v1/control/run") -> int | None:
    """Ask a guarded app that answers 200; None: nothing was answered."""
    said: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(event: Any) -> None:
        said.extend([event["status"]] if "status" in event else [])

    async def receive() -> Any:
        return {}

    scope = {"type": "http", "path": path, "client": client, "server": server}
    asyncio.run(OwnUserOnly(app)(scope, receive, send))
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
            with socket.create_connection((host, int(port)), timeout=10) as asking:
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


@linux_only
@pytest.mark.timeout(300)
def test_the_running_superlink_is_closed_to_others_and_so_is_what_ray_leaves() -> None:
    with LocalSuperLink() as link:
        address = next(
            line.split('"')[1]
            for line in (Path(link._folder.name) / "config.toml").read_text().splitlines()
            if line.startswith("address")
        )
        with urllib.request.urlopen(f"http://{address}/health", timeout=10) as own:
            assert own.status == 200
        forged = urllib.request.Request(
            f"http://{address}/health", headers={"X-Forwarded-For": "127.0.0.1"}
        )
        with urllib.request.urlopen(forged, timeout=10) as own:  # a header says nothing
            assert own.status == 200
        if os.getuid() == 0:  # only root can be somebody else
            assert b" 403 " in answer_to_somebody_else(address)

        assert link._environment["RAY_AUTH_MODE"] == "token"
        assert len(link._environment["RAY_AUTH_TOKEN"]) >= 32
        folder = Path(link._environment["RAY_TMPDIR"])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def environments_of_runs(monkeypatch: pytest.MonkeyPatch, number: int) -> list[dict[str, str]]:
    """Return what so many runs would give to their processes; none comes up."""
    environments = []

    def not_started(link: LocalSuperLink, *_: Any, **__: Any) -> None:
        environments.append(dict(link._environment))
        raise urllib.error.URLError("stop")

    monkeypatch.setattr(LocalSuperLink, "_wait_until_healthy", not_started)
    for _ in range(number):
        with pytest.raises(urllib.error.URLError), LocalSuperLink():
            pass
    return environments


def test_each_run_has_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = environments_of_runs(monkeypatch, 2)
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]


@pytest.mark.parametrize("reports", ["FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"])
@pytest.mark.parametrize(("set_to", "given"), [(None, "0"), ("1", "1"), ("0", "0")])
def test_flower_and_ray_report_to_their_makers_only_if_the_user_says_so(
    reports: str, set_to: str | None, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(reports, raising=False)
    if set_to is not None:
        monkeypatch.setenv(reports, set_to)
    (environment,) = environments_of_runs(monkeypatch, 1)
    assert environment[reports] == given
