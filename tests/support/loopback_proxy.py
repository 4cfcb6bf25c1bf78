"""A network between a node and its SuperLink that can be cut, slow or lossy."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from types import TracebackType
from typing import Self

_CHUNK = 16_384


class LoopbackProxy:
    """Passes connections on from its own port, for the time of the `with` block.

    Attributes:
        port: Where to connect.
        delay: Seconds that each chunk of 16 KiB takes, in both directions.
        loss: Chance that a connection breaks at a chunk.
        passed: Bytes that went through.
        broken: Connections that were broken or refused.
        calls: Start of each HTTP request, with the machine's time in seconds.
    """

    def __init__(self, target: int, *, delay: float = 0.0, loss: float = 0.0) -> None:
        """Pass on to a port of this machine."""
        self.delay, self.loss = delay, loss
        self.passed = self.broken = 0
        self.calls: list[tuple[float, bytes]] = []
        self._target = target
        self._cut = False
        self._coins = random.Random(0)
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        self._cut = True
        for connection in list(self._open):
            self._break(connection)

    def mend(self) -> None:
        """Let connections through again."""
        self._cut = False

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            if self._cut:
                self._break(near)
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=120)
            except OSError:
                self._break(near)
                continue
            far.settimeout(None)
            self._open |= {near, far}
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                if chunk.startswith(b"POST "):
                    self.calls.append((time.monotonic(), chunk))
                time.sleep(self.delay)
                if self._coins.random() < self.loss:
                    break
                sink.sendall(chunk)
                self.passed += len(chunk)
        for connection in (source, sink):
            self._break(connection)

    def _break(self, end: socket.socket) -> None:
        self._open.discard(end)
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
            self.broken += 1
        end.close()
