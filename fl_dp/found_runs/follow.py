"""Rounds that have come since somebody looked last: what follows a run that is going on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .rounds import METRICS, Round, rounds_of
from .untrusted import opened

_MOST_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Mark:
    """Place in a file up to which it was read.

    Attributes:
        file: The inode; a resumed run writes a new file. Negative before anything was read.
        offset: Bytes of complete lines that were read.
    """

    file: int = -1
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Followed:
    """Rounds since a mark.

    Attributes:
        rounds: What came, in order.
        mark: From where to follow next.
        anew: Whether these are from the file's start, so that what was shown before is replaced.
    """

    rounds: tuple[Round, ...]
    mark: Mark
    anew: bool


def follow(root: Path, name: str, mark: Mark) -> Followed:
    """Return the rounds since a mark, at most 1 MiB of them; the next call goes on.

    Nothing to read costs one `stat`.

    Args:
        root: The folder that somebody named.
        name: Of the run's folder below it.
        mark: What the last call returned; `Mark()` at first.

    Raises:
        Unreadable: As `opened`.
        OSError: As `opened`, except where there are no metrics yet, which are no rounds.
    """
    try:
        with opened(root, f"{name}/{METRICS}") as stream:
            status = os.fstat(stream.fileno())
            anew = status.st_ino != mark.file or status.st_size < mark.offset
            start = 0 if anew else mark.offset
            text = b""
            if status.st_size > start:
                stream.seek(start)
                text = stream.read(_MOST_AT_ONCE)
    except FileNotFoundError:
        return Followed(rounds=(), mark=Mark(), anew=mark != Mark())
    end = text.rfind(b"\n") + 1
    if not end and len(text) == _MOST_AT_ONCE:
        end = len(text)  # no line of ours is that long: what follows its end may be one
    place = Mark(file=status.st_ino, offset=start + end)
    return Followed(rounds=rounds_of(text[:end]).rounds, mark=place, anew=anew)
