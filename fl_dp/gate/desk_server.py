"""The desk's process: it serves the site's SuperNode, and talks to its gate over a Unix socket."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import uvicorn

from fl_dp.protocol.flower_compat import Receive, Scope, Send, WebApp

from .desk import Desk, DeskAnswer
from .flower_wire import FLEET, MEDIA_TYPE
from .frames import FrameKind, read_frame, written
from .gate_site import exactly

_MOST_CONNECTIONS = 32
_LONG = 10.0  # seconds for which a call waits for a message
_LOOK = 0.05  # seconds between two looks at what has come
_MOST_OF_A_FRAME = 1 << 34  # bytes, from the gate, which is trusted
_MOST_PIECES = 1_100_000
_MOST_REPLIES = 2  # which wait for the gate to read them


class DeskApp:
    """The desk as an ASGI app, which bounds the size of each call before it is read."""

    def __init__(self, desk: Desk) -> None:
        """Serve a desk."""
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        if scope["type"] != "http":
            return
        path = str(scope["path"])
        if scope["method"] != "POST" or not path.startswith(FLEET):
            await _send(send, DeskAnswer(404))
            return
        body = bytearray()
        while True:
            event = await receive()
            body += event.get("body", b"")
            if len(body) > self._desk.longest_call:
                await _send(send, DeskAnswer(413))
                return
            if event["type"] == "http.disconnect" or not event.get("more_body"):
                break
        name = path.removeprefix(FLEET)
        if name == "pull-messages":
            await self._wait_for_news()
        await _send(send, self._desk.answer(name, bytes(body)))

    async def _wait_for_news(self) -> None:
        """Wait a while for a message: Flower's SuperNode asks every 3 s alone."""
        until = time.monotonic() + _LONG
        while not self._desk.has_news() and time.monotonic() < until:
            await asyncio.sleep(_LOOK)


async def _send(send: Send, answered: DeskAnswer) -> None:
    body, media_type = answered.body, MEDIA_TYPE
    if answered.status != 200:
        body, media_type = json.dumps({"detail": "refused"}).encode(), "application/json"
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": answered.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve_desk(gate: Path, listening: socket.socket, guard: Callable[[WebApp], WebApp]) -> None:
    """Serve until the gate is gone.

    Args:
        gate: The gate's Unix socket.
        listening: Where the SuperNode calls.
        guard: Stands before the desk, and tells who calls.

    Raises:
        OSError: The gate can't be reached.
    """
    replies: queue.Queue[tuple[int, list[bytes]]] = queue.Queue(maxsize=_MOST_REPLIES)

    def hand_on(number: int, pieces: list[bytes]) -> None:
        replies.put_nowait((number, pieces))  # a full queue refuses the call

    desk = Desk(hand_on)
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(str(gate))
    for work in (_take, _give):
        threading.Thread(target=work, args=(channel, desk, replies), daemon=True).start()
    config = uvicorn.Config(
        guard(DeskApp(desk)),
        limit_concurrency=_MOST_CONNECTIONS,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _take(channel: socket.socket, desk: Desk, replies: queue.Queue[Any]) -> NoReturn:
    try:
        while True:
            frame = read_frame(
                lambda size: exactly(channel, size),
                most_bytes=_MOST_OF_A_FRAME,
                most_pieces=_MOST_PIECES,
            )
            desk.take(frame)
    finally:
        os._exit(1)  # without a gate a desk is of no use: its supervisor starts another one


def _give(channel: socket.socket, desk: Desk, replies: queue.Queue[Any]) -> NoReturn:
    try:
        while True:
            number, pieces = replies.get()
            for part in written(FrameKind.REPLY, number, pieces):
                channel.sendall(part)
    finally:
        os._exit(1)
