"""Rounds, and lines of the log, that have come since the last look at a run that is going on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .rounds import METRICS, Round, rounds_of
from .untrusted import opened, shown

_MOST_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class ReadPosition:
    """Place in a file up to which it was read.

    Attributes:
        file: The inode; a resumed run writes a new file. Negative before anything was read.
        offset: Bytes of complete lines that were read.
    """

    file: int = -1
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Appended:
    """Complete lines since a mark.

    Attributes:
        text: The lines.
        start: The first byte that was read.
        mark: From where to follow next.
        anew: Whether this does not follow what was shown before.
    """

    text: bytes
    start: int
    mark: ReadPosition
    anew: bool


def lines_since(
    root: Path, path: str, mark: ReadPosition, *, most: int, only_the_last: bool = False
) -> Appended:
    """Return complete lines of a file since a mark, at most `most` bytes of them.

    Args:
        root: The folder that the user named.
        path: Of the file below it.
        mark: What the last call returned; `ReadPosition()` at first.
        most: Bytes to read.
        only_the_last: Pass over what came before the last `most` bytes, instead of going on with
            it at the next call.

    Raises:
        Unreadable: As `opened`.
        OSError: As `opened`, except where there is no file, which has no lines.
    """
    try:
        with opened(root, path) as stream:
            status = os.fstat(stream.fileno())
            behind = status.st_size - mark.offset
            too_far = only_the_last and behind > most
            anew = status.st_ino != mark.file or behind < 0 or too_far
            start = mark.offset
            if anew:
                start = max(status.st_size - most, 0) if only_the_last else 0
            text = b""
            if status.st_size > start:
                stream.seek(start)
                text = stream.read(most)
    except FileNotFoundError:
        return Appended(text=b"", start=0, mark=ReadPosition(), anew=mark != ReadPosition())
    # A line without its end is half written, unless it has no end within all that is read.
    end = text.rfind(b"\n") + 1 or (len(text) if len(text) == most else 0)
    place = ReadPosition(file=status.st_ino, offset=start + end)
    return Appended(text=text[:end], start=start, mark=place, anew=anew)


@dataclass(frozen=True, kw_only=True)
class Followed:
    """Rounds since a mark.

    Attributes:
        rounds: What came, in order.
        mark: From where to follow next.
        anew: Whether these are from the file's start, so that what was shown before is replaced.
    """

    rounds: tuple[Round, ...]
    mark: ReadPosition
    anew: bool


def follow(root: Path, name: str, mark: ReadPosition) -> Followed:
    """Return the rounds since a mark, at most 1 MiB of them; the next call goes on.

    Nothing to read costs one `stat`.

    Args:
        root: The folder that the user named.
        name: Of the run's folder below it.
        mark: What the last call returned; `ReadPosition()` at first.

    Raises:
        Unreadable: As `opened`.
        OSError: As `opened`, except where there are no metrics yet, which are no rounds.
    """
    came = lines_since(root, f"{name}/{METRICS}", mark, most=_MOST_AT_ONCE)
    return Followed(rounds=rounds_of(came.text).rounds, mark=came.mark, anew=came.anew)


_LOG = "run.log"
_MOST = 1 << 14
MOST_LINES = 60


@dataclass(frozen=True, kw_only=True)
class FollowedLog:
    """Lines since a mark.

    Attributes:
        lines: What came, each on one line, the last 60 of them.
        mark: From where to follow next.
        anew: Whether what was shown before is replaced: another file, or too much came at once.
    """

    lines: tuple[str, ...]
    mark: ReadPosition
    anew: bool


def follow_log(root: Path, name: str, mark: ReadPosition) -> FollowedLog:
    """Return the log's lines since a mark, of at most 16 KiB at the end of the file.

    Args:
        root: The folder that the user named.
        name: Of the run's folder below it.
        mark: What the last call returned; `ReadPosition()` at first.

    Raises:
        Unreadable: As `opened`.
        OSError: As `opened`, except where there is no log.
    """
    came = lines_since(root, f"{name}/{_LOG}", mark, most=_MOST, only_the_last=True)
    lines = came.text.decode(errors="replace").splitlines()
    if came.anew and came.start and len(lines) > 1:
        lines = lines[1:]  # its beginning was not read
    return FollowedLog(
        lines=tuple(shown(line.expandtabs()) for line in lines[-MOST_LINES:]),
        mark=came.mark,
        anew=came.anew,
    )
