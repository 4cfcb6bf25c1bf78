"""The message that a gate works on, on disk, so that it is answered after a crash of the gate."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import NamedTuple

from fl_dp.files import written_whole

from .flower_wire import (
    ObjectTree,
    Parts,
    contents_by_id,
    in_protobuf,
    message_in,
    shell_of,
)
from .frames import FrameKind, read_frame, written

logger = logging.getLogger("flwr.fl_dp.client")

_TIMES = struct.Struct(">dd")


class KeptMessage(NamedTuple):
    """A message that was not answered before the gate ended.

    Attributes:
        parts: As it came.
        came: When it came, in seconds since 1970.
        due: When its answer is due, in the same.
    """

    parts: Parts
    came: float
    due: float


class Keeper:
    """One file for one message."""

    def __init__(self, file: Path) -> None:
        """Keep it in a file, in an existing folder."""
        self._file = file

    def put(self, message: KeptMessage) -> None:
        """Write a message; it is on disk when this returns.

        Raises:
            OSError: It can't be written.
        """
        parts, times = message.parts, _TIMES.pack(message.came, message.due)
        shell = in_protobuf(parts.shell).SerializeToString()
        pieces = [times, shell, parts.tree.SerializeToString(), *parts.contents.values()]
        with written_whole(self._file) as temporary, temporary.open("wb") as stream:
            stream.writelines(written(FrameKind.DOCUMENT, 0, pieces))

    def get(self) -> KeptMessage | None:
        """The message; None: there is none that can be read."""
        try:
            with self._file.open("rb") as stream:
                size = self._file.stat().st_size
                frame = read_frame(stream.read, most_bytes=size, most_pieces=size)
            times, shell, tree, *contents = frame.pieces
            parts = Parts(
                shell_of(message_in(shell)), ObjectTree.FromString(tree), contents_by_id(contents)
            )
            return KeptMessage(parts, *_TIMES.unpack(times))
        except FileNotFoundError:
            return None
        except Exception:  # whatever another program has left there
            logger.exception("%s is no message, and is removed", self._file)
            self.remove()
            return None

    def remove(self) -> None:
        """Remove the message, which was answered."""
        self._file.unlink(missing_ok=True)
