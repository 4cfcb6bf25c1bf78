"""Frames between a gate and its desk: a number, and pieces of plain bytes, each after its length.

    kind (1 byte), number (8), how many pieces (4), and for each piece its length (8) and its bytes

Nothing of a frame is unpickled, and no length decides how much is allocated beyond a bound.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

_HEAD, _LENGTH = struct.Struct(">BQI"), struct.Struct(">Q")


class FrameKind(IntEnum):
    """What a frame is for."""

    NODE = 1
    """To the desk: the node's id is the number."""
    RUN = 2
    """To the desk: the run of this id, as the server answered `get-run` and `get-fab`."""
    OFFER = 3
    """To the desk: a message for the app (shell, tree, objects), which it may get again."""
    OFFER_ONCE = 4
    """To the desk: the same, and one SuperNode alone gets it."""
    OVER = 5
    """To the desk: the message of this number is answered without the app."""
    REPLY = 6
    """To the gate: the app's reply to the message of this number (tree, objects)."""
    DOCUMENT = 7
    """On disk: a message with the time at which its answer is due."""


class Frame(NamedTuple):
    """One frame.

    Attributes:
        kind: What it is for.
        number: Of the node, the run or the offer.
        pieces: Bytes, in an order that the kind says.
    """

    kind: FrameKind
    number: int
    pieces: list[bytes]


class FrameError(ValueError):
    """What arrives is no frame, or larger than it may be."""


def written(kind: FrameKind, number: int, pieces: Iterable[bytes] = ()) -> Iterator[bytes]:
    """A frame's bytes, one part after another."""
    held = list(pieces)
    yield _HEAD.pack(kind, number, len(held))
    for piece in held:
        yield _LENGTH.pack(len(piece))
        yield piece


def read_frame(take: Callable[[int], bytes], *, most_bytes: int, most_pieces: int) -> Frame:
    """Read a frame.

    Args:
        take: Returns so many bytes, or fewer at their end.
        most_bytes: Bound on the pieces together.
        most_pieces: Bound on how many they are.

    Raises:
        FrameError: It is no frame, or beyond a bound.
        EOFError: It is cut off.
    """

    def whole(size: int) -> bytes:
        content = take(size)
        if len(content) < size:
            raise EOFError("it is cut off")
        return content

    kind, number, count = _HEAD.unpack(whole(_HEAD.size))
    if kind not in FrameKind.__members__.values() or count > most_pieces:
        raise FrameError(f"a frame of kind {kind} and {count:,} pieces")
    pieces, left = [], most_bytes
    for _ in range(count):
        (length,) = _LENGTH.unpack(whole(_LENGTH.size))
        left -= length
        if left < 0:
            raise FrameError(f"a frame of more than {most_bytes:,} bytes")
        pieces.append(whole(length))
    return Frame(FrameKind(kind), number, pieces)
