"""The site's SuperNode as its gate sees it: through a desk, another process, at a Unix socket.

The desk and all behind it are untrusted. Nothing here waits for them longer than a given time, and
what they send is bounded before it is read. A desk that comes back gets all it needs again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn, Protocol

from flwr.app import Message, RecordDict

from fl_dp import clock

from .flower_wire import (
    NO_MESSAGE,
    Bounds,
    ObjectTree,
    Parts,
    bounds_of_reply,
    contents_by_id,
    handed_to_app,
    ids_in,
    in_protobuf,
    inflated,
)
from .frames import Frame, FrameError, FrameKind, read_frame, written
from .link import RunOfServer

logger = logging.getLogger("flwr.fl_dp.client")

LATE = "the app gave no answer in its time"
"""Log text for an app for which the gate has answered."""

_MOST_WAITING = 16  # frames for a desk that does not read


class Site(Protocol):
    """What a gate needs of its site."""

    def keep(self, run_id: int, run: RunOfServer) -> None:
        """Let the SuperNode have a run and its bundle."""

    def offer(self, asked: Message, content: RecordDict, *, once: bool) -> None:
        """Hand a message to the app with another content; the one before has been ended.

        `once`: no second SuperNode gets it, and none of the server's texts does. A training of the
        one app that the owner names would train twice.
        """

    @property
    def has_reply(self) -> bool:
        """Whether the app has replied."""

    def reply(self, until: float) -> Message:
        """End the offer with the app's reply, for which it waits until a time of `fl_dp.clock`.

        Raises:
            TimeoutError: There is none in time.
            ValueError: It can't be read.
        """


class Offer:
    """A message that the app may have, and the bounds of its reply.

    Attributes:
        kind: Of its frame: whether one SuperNode alone gets it.
        parts: As the SuperNode gets it.
        bounds: Bounds of the reply.
        may_go_out: Whether the next desk may get it.
    """

    def __init__(self, asked: Message, content: RecordDict, *, once: bool) -> None:
        """Offer a message with another content; see `Site.offer`."""
        self.kind = FrameKind.OFFER_ONCE if once else FrameKind.OFFER
        self.may_go_out = True
        self.parts: Parts = handed_to_app(asked, content, bare=once)
        self.bounds = bounds_of_reply(self.parts.tree.object_id, self.parts.contents)

    def pieces(self) -> list[bytes]:
        """A frame's pieces for the desk."""
        shell = in_protobuf(self.parts.shell).SerializeToString()
        return [shell, self.parts.tree.SerializeToString(), *self.parts.contents.values()]

    def reply(self, pieces: list[bytes]) -> Message:
        """The app's reply.

        Raises:
            ValueError: It can't be read.
        """
        try:
            tree = ObjectTree.FromString(pieces[0])
            ids_in(tree, self.bounds.objects)
            return inflated(tree, contents_by_id(pieces[1:]), self.bounds.size)
        except Exception as error:  # hostile bytes may make Flower raise anything
            raise ValueError(f"the app's reply can't be read: {error!r:.200}") from error


class SiteAtSocket:
    """A site whose desk connects to a Unix socket of the gate's."""

    def __init__(self, file: Path, node_id: int, abandon: Callable[[], None]) -> None:
        """Listen. Who may open the socket's folder may answer for the site.

        `abandon` is called when an app was late, to end what holds it up.

        Raises:
            OSError: The socket can't be made.
        """
        self._abandon, self._lock = abandon, threading.Lock()
        self._runs: dict[int, list[bytes]] = {}
        self._node_id, self._number = node_id, 0
        self._offer: Offer | None = None
        self._most = NO_MESSAGE  # of all offers, as a reply may come late
        self._reply: list[bytes] | None = None
        self._arrived = -1  # readable once there is a reply
        self._signal: int | None = None
        self._out: queue.Queue[list[bytes] | None] | None = None
        file.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(file))
        file.chmod(0o660)
        self._server.listen(1)
        threading.Thread(target=self._serve, name="desk", daemon=True).start()

    def keep(self, run_id: int, run: RunOfServer) -> None:
        """As `Site.keep`."""
        with self._lock:
            self._runs[run_id] = [run.run.SerializeToString(), run.fab.SerializeToString()]
            self._send(FrameKind.RUN, run_id, self._runs[run_id])

    def offer(self, asked: Message, content: RecordDict, *, once: bool) -> None:
        """As `Site.offer`."""
        offer = Offer(asked, content, once=once)
        arrived, signal = os.pipe()
        with self._lock:
            self._number += 1
            self._offer, self._reply = offer, None
            self._arrived, self._signal = arrived, signal
            self._most = Bounds(*map(max, self._most, offer.bounds))
            self._send_offer(offer)

    @property
    def has_reply(self) -> bool:
        """As `Site.has_reply`."""
        with self._lock:
            return self._reply is not None

    def reply(self, until: float) -> Message:
        """As `Site.reply`."""
        offer = self._offer
        assert offer is not None  # one has been made
        try:
            in_time = clock.readable(self._arrived, until - clock.now())
        finally:
            with self._lock:
                reply, self._offer = self._reply, None
                self._end_wait()
                self._send(FrameKind.OVER, self._number)
            os.close(self._arrived)
        if not in_time or reply is None:
            self._abandon()
            raise TimeoutError(LATE)
        return offer.reply(reply)

    def _end_wait(self) -> None:
        if self._signal is not None:
            os.close(self._signal)  # the other end sees it
            self._signal = None

    def _send_offer(self, offer: Offer) -> None:
        self._send(offer.kind, self._number, offer.pieces())
        # At a gate's start its first message may come before its desk does.
        offer.may_go_out = offer.kind is FrameKind.OFFER or self._out is None

    def _send(self, kind: FrameKind, number: int, pieces: Iterable[bytes] = ()) -> None:
        """Have a frame written, if there is a desk; the caller holds the lock."""
        if self._out is None:
            return
        if self._out.qsize() >= _MOST_WAITING:
            logger.error("the desk reads nothing, and gets nothing more")
            self._out = None
            return
        self._out.put(list(written(kind, number, pieces)))

    def _serve(self) -> NoReturn:
        while True:
            connection, _ = self._server.accept()
            out: queue.Queue[list[bytes] | None] = queue.Queue()
            with self._lock:
                self._out = out
                self._send(FrameKind.NODE, self._node_id)
                for run_id, run in self._runs.items():
                    self._send(FrameKind.RUN, run_id, run)
                if self._offer is not None and self._offer.may_go_out:
                    self._send_offer(self._offer)
            threading.Thread(target=_write, args=(connection, out), daemon=True).start()
            try:
                while True:
                    self._take(self._read(connection))
            except (OSError, EOFError, FrameError, MemoryError) as error:
                logger.warning("the desk is gone: %s", error or "it has closed its socket")
            with self._lock:
                self._out = None
            out.put(None)
            connection.close()

    def _read(self, connection: socket.socket) -> Frame:
        with self._lock:
            most = self._most
        return read_frame(
            lambda size: exactly(connection, size),
            most_bytes=most.size,
            most_pieces=most.objects + 1,  # the tree
        )

    def _take(self, frame: Frame) -> None:
        with self._lock:
            if frame.kind is not FrameKind.REPLY:
                raise FrameError(f"the desk sends a frame of kind {frame.kind.name}")
            if self._offer is None or frame.number != self._number or self._reply is not None:
                return  # it comes too late
            self._reply = frame.pieces
            self._end_wait()


def _write(connection: socket.socket, out: queue.Queue[list[bytes] | None]) -> None:
    with contextlib.suppress(OSError):
        while (parts := out.get()) is not None:
            for part in parts:
                connection.sendall(part)


def exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes of a connection.

    Raises:
        EOFError: It ends before.
    """
    content = bytearray()
    while len(content) < size:
        piece = connection.recv(min(size - len(content), 1 << 20))
        if not piece:
            raise EOFError("it has closed its socket")
        content += piece
    return bytes(content)
