"""A command with one way out of its network: what it sends to a port arrives at a Unix socket."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import relay
from deployment import free_port

ASKS = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as asking:
    asking.sendall(b"x" * 300_000)
    asking.shutdown(socket.SHUT_WR)
    answer = b"".join(iter(lambda: asking.recv(1 << 16), b""))
sys.exit(7 if answer == b"y" * 300_000 else 8 if not answer else 9)
"""


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.read()).replace(b"x", b"y"))
    writer.write_eof()


def run(socket: Path, *, listens: bool) -> int:
    async def both() -> int:
        server = await asyncio.start_unix_server(answered, socket) if listens else None
        port = free_port()
        status = await relay.relay(port, str(socket), [sys.executable, "-c", ASKS, str(port)])
        if server is not None:
            server.close()
        return status

    return asyncio.run(both())


def test_what_is_asked_at_the_port_is_answered_at_the_socket_and_the_status_is_the_command_s() -> (
    None
):
    with tempfile.TemporaryDirectory() as folder:  # the name of a socket must be short
        assert run(Path(folder, "runtime.sock"), listens=True) == 7


def test_while_nobody_listens_at_the_socket_a_connection_ends() -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert run(Path(folder, "runtime.sock"), listens=False) in (1, 8)  # it is reset, or empty


def test_a_command_that_calls_nobody_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_SILENCE", 0.0)
    hangs = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(relay.relay(free_port(), str(Path(folder, "fleet.sock")), hangs))
    assert told == -signal.SIGKILL
