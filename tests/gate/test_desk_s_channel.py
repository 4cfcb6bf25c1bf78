"""Gate and desk over a real Unix socket: plain bytes, bounded, and nobody waits for the desk."""

from __future__ import annotations

import io
import queue
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from gated_site import NODE, RUN, Server, adding
from owned_clock import OwnedClock
from waiting import until

from fl_dp import clock
from fl_dp.gate import gate_site as site_module
from fl_dp.gate.flower_wire import ObjectTree, contents_by_id, inflated, parts_of
from fl_dp.gate.frames import Frame, FrameError, FrameKind, read_frame, written
from fl_dp.gate.gate_site import SiteAtSocket, exactly
from fl_dp.gate.link import Link, NodeKey, RunOfServer
from fl_dp.protocol.flower_compat import be_in_a_run, give_id


def as_bytes(kind: int, number: int, *pieces: bytes) -> bytes:
    head = struct.pack(">BQI", kind, number, len(pieces))
    return head + b"".join(struct.pack(">Q", len(piece)) + piece for piece in pieces)


def read_from(content: bytes, *, most_bytes: int = 100, most_pieces: int = 3) -> Frame:
    stream = io.BytesIO(content)

    def take(size: int) -> bytes:
        taken = stream.read(size)
        if len(taken) < size:
            raise EOFError
        return taken

    return read_frame(take, most_bytes=most_bytes, most_pieces=most_pieces)


def test_a_frame_is_its_head_and_pieces_after_their_lengths() -> None:
    frame = Frame(FrameKind.REPLY, 7, [b"", b"tree", b"\x00" * 9])
    content = b"".join(written(*frame))
    assert content == as_bytes(6, 7, *frame.pieces)
    assert read_from(content) == frame


@pytest.mark.parametrize(
    "content",
    [
        as_bytes(0, 7),
        as_bytes(99, 7),
        as_bytes(6, 7, *[b""] * 4),
        as_bytes(6, 7, b"x" * 101),
        as_bytes(6, 7, b"x" * 50, b"x" * 51),
        struct.pack(">BQI", 6, 7, 1) + struct.pack(">Q", 1 << 60),
    ],
)
def test_a_frame_beyond_its_bounds_is_refused_before_it_is_read(content: bytes) -> None:
    with pytest.raises(FrameError):
        read_from(content)


class PlayedDesk:
    """The other end of a gate's socket."""

    def __init__(self, file: Path) -> None:
        self.channel = socket.socket(socket.AF_UNIX)
        self.channel.connect(str(file))

    def next(self) -> Frame:
        return read_frame(
            lambda size: exactly(self.channel, size), most_bytes=1 << 24, most_pieces=1_000
        )

    def say(self, kind: FrameKind, number: int, pieces: list[bytes]) -> None:
        self.channel.sendall(b"".join(written(kind, number, pieces)))


class Asked:
    """A message that a gate hands to its site in a thread of its own."""

    def __init__(self, here: SiteAtSocket, *, once: bool = False) -> None:
        be_in_a_run(RUN)
        arrays = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
        content = RecordDict({"arrays": arrays})
        self.message = Message(content, dst_node_id=NODE, message_type="train")
        give_id(self.message, "asked")
        self._ended: queue.Queue[Any] = queue.Queue()

        def ask() -> None:
            try:
                here.offer(self.message, content, once=once)
                ended: Any = here.reply(clock.now() + 60.0)
            except Exception as error:
                ended = error
            self._ended.put(ended)

        threading.Thread(target=ask, daemon=True).start()

    def end(self) -> Any:
        return self._ended.get(timeout=60)


def message_offered(frame: Frame) -> Message:
    _, tree, *contents = frame.pieces
    root = ObjectTree.FromString(tree)
    message = inflated(root, contents_by_id(contents))
    give_id(message, root.object_id)
    return message


def reply_to(frame: Frame) -> list[bytes]:
    [reply] = adding(1.0)(message_offered(frame))
    assert isinstance(reply, Message)
    parts = parts_of(reply)
    return [parts.tree.SerializeToString(), *parts.contents.values()]


@pytest.fixture
def abandoned() -> list[str]:
    """Return a word for each SuperNode that the gate has ended."""
    return []


@pytest.fixture
def here(tmp_path: Path, abandoned: list[str]) -> SiteAtSocket:
    return SiteAtSocket(tmp_path / "gate.sock", NODE, lambda: abandoned.append("ended"))


@pytest.fixture
def desk(here: SiteAtSocket, tmp_path: Path) -> PlayedDesk:
    made = PlayedDesk(tmp_path / "gate.sock")
    assert made.next() == Frame(FrameKind.NODE, NODE, [])
    return made


def test_a_message_goes_out_and_the_reply_comes_back(here: SiteAtSocket, desk: PlayedDesk) -> None:
    asked = Asked(here)
    offer = desk.next()
    assert offer.kind is FrameKind.OFFER
    desk.say(FrameKind.REPLY, offer.number, reply_to(offer))
    reply = asked.end()
    assert reply.content["arrays"]["w"].numpy().tolist() == [1.0] * 3
    assert desk.next() == Frame(FrameKind.OVER, offer.number, [])


def test_a_desk_that_comes_back_gets_all_it_needs_again(
    here: SiteAtSocket, desk: PlayedDesk, tmp_path: Path
) -> None:
    server = Server()
    link = Link(server.post, NodeKey())
    run: RunOfServer = link.run(RUN)
    here.keep(RUN, run)
    assert desk.next().kind is FrameKind.RUN
    asked = Asked(here)
    assert desk.next().kind is FrameKind.OFFER
    desk.channel.close()
    after = PlayedDesk(tmp_path / "gate.sock")
    kinds = [after.next() for _ in range(3)]
    assert [frame.kind for frame in kinds] == [FrameKind.NODE, FrameKind.RUN, FrameKind.OFFER]
    after.say(FrameKind.REPLY, kinds[2].number, reply_to(kinds[2]))
    assert asked.end().has_content()


def test_a_message_that_one_supernode_may_have_is_not_sent_to_a_second_desk(
    here: SiteAtSocket, desk: PlayedDesk, tmp_path: Path, owned: OwnedClock
) -> None:
    asked = Asked(here, once=True)
    assert desk.next().kind is FrameKind.OFFER_ONCE
    desk.channel.close()
    after = PlayedDesk(tmp_path / "gate.sock")
    assert after.next().kind is FrameKind.NODE
    owned.let_this_process_hang()
    assert isinstance(asked.end(), TimeoutError)
    assert after.next().kind is FrameKind.OVER


def test_a_message_that_came_before_any_desk_goes_to_the_first_one_alone(
    here: SiteAtSocket, tmp_path: Path
) -> None:
    asked = Asked(here, once=True)
    until(lambda: here._offer is not None)
    desks = [PlayedDesk(tmp_path / "gate.sock")]
    assert desks[0].next().kind is FrameKind.NODE
    offer = desks[0].next()
    assert offer.kind is FrameKind.OFFER_ONCE
    desks[0].channel.close()
    desks.append(PlayedDesk(tmp_path / "gate.sock"))
    assert desks[1].next().kind is FrameKind.NODE
    desks[1].say(FrameKind.REPLY, offer.number, reply_to(offer))
    assert asked.end().has_content()
    assert desks[1].next().kind is FrameKind.OVER


def test_a_reply_to_another_message_is_dropped(here: SiteAtSocket, desk: PlayedDesk) -> None:
    asked = Asked(here)
    offer = desk.next()
    desk.say(FrameKind.REPLY, offer.number + 1, [b"junk"])
    desk.say(FrameKind.REPLY, offer.number, reply_to(offer))
    assert asked.end().has_content()


@pytest.mark.parametrize("pieces", [[], [b"\xff"], [b"", b"more"], [b"x" * 5] * 3])
def test_a_reply_of_junk_is_none_at_all(
    here: SiteAtSocket, desk: PlayedDesk, pieces: list[bytes]
) -> None:
    asked = Asked(here)
    desk.say(FrameKind.REPLY, desk.next().number, pieces)
    assert isinstance(asked.end(), ValueError)


def test_a_late_reply_a_second_one_and_one_to_nothing_are_dropped(
    here: SiteAtSocket, desk: PlayedDesk, owned: OwnedClock, abandoned: list[str]
) -> None:
    desk.say(FrameKind.REPLY, 99, [b"junk"])
    asked = Asked(here)
    offer = desk.next()
    owned.let_this_process_hang()
    assert isinstance(asked.end(), TimeoutError)
    assert abandoned == ["ended"]
    assert desk.next().kind is FrameKind.OVER
    late = reply_to(offer)
    desk.say(FrameKind.REPLY, offer.number, late)
    asked = Asked(here)
    offer = desk.next()
    desk.say(FrameKind.REPLY, offer.number, reply_to(offer))
    desk.say(FrameKind.REPLY, offer.number, [b"junk"])
    assert asked.end().has_content()


@pytest.mark.parametrize(
    "content",
    [
        as_bytes(3, 1, b"x"),
        as_bytes(77, 1),
        as_bytes(6, 1, b"x" * (2 << 20)),
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_a_desk_that_sends_anything_else_is_cut_off_and_the_gate_goes_on(
    here: SiteAtSocket, desk: PlayedDesk, tmp_path: Path, content: bytes
) -> None:
    threading.Thread(target=send_what_fits, args=(desk.channel, content), daemon=True).start()
    with pytest.raises((EOFError, ConnectionError)):
        desk.next()
    assert PlayedDesk(tmp_path / "gate.sock").next().kind is FrameKind.NODE


def send_what_fits(channel: socket.socket, content: bytes) -> None:
    try:
        channel.sendall(content)
    except OSError:
        return


def test_a_desk_that_reads_nothing_holds_nobody_up(
    here: SiteAtSocket, desk: PlayedDesk, owned: OwnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_module, "_MOST_WAITING", 2)
    for _ in range(30):
        asked = Asked(here)
        owned.let_this_process_hang()
        assert isinstance(asked.end(), TimeoutError)


def test_a_reply_for_which_there_is_no_memory_is_cut_off_and_the_gate_goes_on(
    here: SiteAtSocket, desk: PlayedDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(*asked: Any) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(site_module, "exactly", without_memory)
        desk.say(FrameKind.REPLY, 1, [b"x"])
        with pytest.raises((EOFError, ConnectionError)):
            desk.next()
    assert PlayedDesk(tmp_path / "gate.sock").next().kind is FrameKind.NODE
