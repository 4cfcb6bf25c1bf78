"""Flower's SuperLink for one user of this machine: it refuses others' requests on loopback.

    python -m fl_dp.app.local.superlink --insecure --simulation --host 127.0.0.1 --port 40123 ...

A SuperLink without accounts runs any app that reaches its port, as the user who started it. Any
user of a machine reaches loopback. Linux tells whose socket a connection's other end is, and every
request is checked by that. Flower's own processes need no password; there is no secret.

A SuperLink of real nodes is as open to a whole network: whoever reaches its one port can start
runs, register a node and take the ServerApp's tasks, whatever keys SuperNodes have. With
`--open-to-nodes` the network reaches only the SuperNodes' interface, which checks their keys:

    python -m fl_dp.app.local.superlink --open-to-nodes --enable-supernode-auth --host 0.0.0.0 ...
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .processes import delete_in_use, descendants, end_with, kill_all

if TYPE_CHECKING:  # with Flower, which whoever starts a SuperLink can spare
    from fl_dp.protocol.flower_compat import Receive, Scope, Send, WebApp

CLOSED_PATH = "/fl-dp/closed-to-others"
"""Path that only the guard answers, so a SuperLink without a guard does not."""

OPEN_TO_NODES = "--open-to-nodes"
"""Our own option: other users and machines reach the interface of SuperNodes."""

FOR_NODES = "/v1/fleet/"
"""Start of the paths of SuperNodes; Flower checks the key of each of them."""

FOLDER_VARIABLE = "FL_DP_TEMPORARY_FOLDER"
"""Environment variable with the folder to delete when the starting process is gone."""

RETURNED = "server-app-returned"
"""Empty file in that folder: the run's ServerApp has returned (`run_end.py`)."""

_NODES_HAVE_KEYS = "--enable-supernode-auth"
_CONNECTIONS = Path("/proc/net/tcp")
_STDIN = 0
_LISTENS = "0A"  # TCP_LISTEN
_PATIENCE = 2.0


def users_can_be_told_apart() -> bool:
    """Whether this system says whose socket a connection's other end is."""
    return _CONNECTIONS.exists()


class OwnUserOnly:
    """An ASGI app that passes only one user's requests on to another app."""

    def __init__(
        self, app: WebApp, *, user: int | None = None, open_to_all: Iterable[str] = ()
    ) -> None:
        """Stand in front of an app, which answers one user.

        `user` is that user's id. None: this process's user. On paths that start with one of
        `open_to_all` the app answers everybody.
        """
        self._app = app
        self._user = os.getuid() if user is None else user
        self._open_to_all = tuple(open_to_all)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: 403 to other users."""
        if scope["type"] == "lifespan" or (
            scope["type"] == "http" and scope["path"].startswith(self._open_to_all)
        ):
            await self._app(scope, receive, send)
        elif user_of(scope.get("client"), scope.get("server")) != self._user:
            await _answer(send, 403)
        elif scope["path"] == CLOSED_PATH:
            await _answer(send, 204)
        else:
            await self._app(scope, receive, send)


def user_of(client: tuple[str, int] | None, server: tuple[str, int] | None) -> int | None:
    """Id of the user whose socket `client` is; None if unknown.

    `client` is the other end, `server` this one: each an IPv4 address and a port.
    """
    if client is None or server is None:
        return None
    ends = [_table_entry(*client), _table_entry(*server)]
    for line in _CONNECTIONS.read_text().splitlines()[1:]:
        fields = line.split()
        # The kernel shows user 0, and no inode, for a socket that its process has closed.
        if fields[1:3] == ends and fields[9] != "0":
            return int(fields[7])
    return None


def listening_user(port: int, host: str = "127.0.0.1") -> int | None:
    """Id of the user who listens on a port of this machine.

    None if nobody listens; -1 if somebody does and the system does not say who.
    """
    if not users_can_be_told_apart():
        with socket.socket() as probe:
            probe.settimeout(_PATIENCE)
            return -1 if probe.connect_ex((host, port)) == 0 else None
    ends = {_table_entry(address, port) for address in (host, "0.0.0.0")}
    for line in _CONNECTIONS.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] in ends and fields[3] == _LISTENS:
            return int(fields[7])
    return None


def _table_entry(host: str, port: int) -> str | None:
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        return None
    return f"{int.from_bytes(address.packed, sys.byteorder):08X}:{port:04X}"


async def _answer(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Run `flower-superlink` with the command line's options, behind the guard.

    Raises:
        SystemExit: `--open-to-nodes` would admit nodes without keys, or everybody; or Flower no
            longer has such a command.
    """
    from fl_dp.protocol.flower_compat import superlink_behind
    from fl_dp.protocol.flower_versions import FlowerChanged

    guard = partial(OwnUserOnly, open_to_all=_open_to_all(sys.argv))
    try:
        # Without the guard, requests of all users are answered.
        can_guard = users_can_be_told_apart()
        flower_superlink = superlink_behind(guard if can_guard else None)
    except FlowerChanged as changed:
        raise SystemExit(f"error: {changed}") from None
    if stat.S_ISFIFO(os.fstat(_STDIN).st_mode):
        end_with(_STDIN, _take_down)
    flower_superlink()


def _open_to_all(words: list[str]) -> tuple[str, ...]:
    """Remove our option from the command line; return the paths that it opens.

    Raises:
        SystemExit: Flower would not check the nodes, or the guard could not check the rest.
    """
    if OPEN_TO_NODES not in words:
        return ()
    words.remove(OPEN_TO_NODES)
    if _NODES_HAVE_KEYS not in words:
        raise SystemExit(
            f"error: {OPEN_TO_NODES} without {_NODES_HAVE_KEYS} lets everybody in as a node: "
            f"add {_NODES_HAVE_KEYS} and TLS"
        )
    if not users_can_be_told_apart():
        raise SystemExit(
            f"error: {OPEN_TO_NODES} needs a system that says who connects to a port, as Linux "
            "does; on another one keep the port from everybody but the nodes by a proxy that "
            f"passes on {FOR_NODES} alone"
        )
    return (FOR_NODES,)


def _take_down() -> None:
    """Kill all processes, which would go on training and spending; delete the run's folder."""
    kill_all(descendants(os.getpid()))
    if folder := os.environ.get(FOLDER_VARIABLE):
        delete_in_use(folder)


if __name__ == "__main__":
    main()
