"""Flower's SuperLink for one user of this machine: what others send over loopback is refused.

    python -m fl_dp.local.superlink --insecure --simulation --host 127.0.0.1 --port 40123 ...

A SuperLink without accounts runs whatever app reaches its port, as the user who started it, and any
user of a machine reaches loopback. Linux tells whose socket the other end of a connection is, so
every request is answered by that: Flower's own processes need no password, and no secret lies
anywhere.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, TypeAlias

CLOSED_PATH = "/fl-dp/closed-to-others"
"""Answered by the guard itself, and so by no SuperLink without one."""

_CONNECTIONS = Path("/proc/net/tcp")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def users_can_be_told_apart() -> bool:
    """Whether this system says whose socket the other end of a connection is."""
    return _CONNECTIONS.exists()


class OwnUserOnly:
    """An ASGI app that passes on to another what this process's own user sends."""

    def __init__(self, app: App) -> None:
        """Stand in front of `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: 403 to other users."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif user_of(scope.get("client"), scope.get("server")) != os.getuid():
            await _answer(send, 403)
        elif scope["path"] == CLOSED_PATH:
            await _answer(send, 204)
        else:
            await self._app(scope, receive, send)


def user_of(client: tuple[str, int] | None, server: tuple[str, int] | None) -> int | None:
    """Return the id of the user whose socket `client` is; None if it can't be told.

    Args:
        client: Address and port of the other end, IPv4.
        server: Address and port of this end.
    """
    if client is None or server is None:
        return None
    ends = [_in_the_table(*client), _in_the_table(*server)]
    for line in _CONNECTIONS.read_text().splitlines()[1:]:
        fields = line.split()
        # The kernel says user 0 for a socket that its process has closed, which has no inode.
        if fields[1:3] == ends and fields[9] != "0":
            return int(fields[7])
    return None


def _in_the_table(host: str, port: int) -> str | None:
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        return None
    return f"{int.from_bytes(address.packed, sys.byteorder):08X}:{port:04X}"


async def _answer(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Run `flower-superlink` with the command line's options, behind the guard."""
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    if users_can_be_told_apart():
        run = uvicorn.run

        def run_guarded(app: App, **options: Any) -> None:
            # A header must not say who the other end is.
            run(OwnUserOnly(app), **options | {"proxy_headers": False})

        uvicorn.run = run_guarded  # type: ignore[assignment]  # Flower has no hook for it
    flower_superlink()


if __name__ == "__main__":
    main()
