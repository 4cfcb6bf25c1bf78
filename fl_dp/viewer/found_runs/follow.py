"""New rounds and new log lines since the last look at a run that goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .rounds import METRICS, Round, rounds_of
from .untrusted import opened, shown

_MOST_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class ReadPosition:
    """How far a file was read.

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
        start: Offset of the first byte that was read.
        mark: Position for the next call.
        replaces: Whether they replace what was shown before.
    """

    text: bytes
    start: int
    mark: ReadPosition
    replaces: bool


def lines_since(
    root: Path, path: str, mark: ReadPosition, *, most: int, last_only: bool = False
) -> Appended:
    """Complete lines of a file since a mark, at most `most` bytes.

    `root` is the folder that the user named, `path` the file below it. `mark` is the last call's;
    `ReadPosition()` at first. `last_only` skips all but the last `most` bytes; else the next call
    goes on.

    Raises:
        Unreadable: As `opened`.
        OSError: As `opened`; but a missing file has no lines.
    """
    try:
        with opened(root, path) as stream:
            status = os.fstat(stream.fileno())
            behind = status.st_size - mark.offset
            too_far = last_only and behind > most
            replaces = status.st_ino != mark.file or behind < 0 or too_far
            start = mark.offset
            if replaces:
                start = max(status.st_size - most, 0) if last_only else 0
            text = b""
            if status.st_size > start:
                stream.seek(start)
                text = stream.read(most)
    except FileNotFoundError:
        return Appended(text=b"", start=0, mark=ReadPosition(), replaces=mark != ReadPosition())
    end = text.rfind(b"\n") + 1
    # A line without its end is half written, unless it has no end within all that is read.
    if end == 0 and len(text) == most:
        end = most
    next_mark = ReadPosition(file=status.st_ino, offset=start + end)
    return Appended(text=text[:end], start=start, mark=next_mark, replaces=replaces)


@dataclass(frozen=True, kw_only=True)
class Followed:
    """Rounds since a mark; other fields as in `Appended`."""

    rounds: tuple[Round, ...]
    mark: ReadPosition
    replaces: bool


def follow(root: Path, name: str, mark: ReadPosition) -> Followed:
    """A run's rounds since a mark, at most 1 MiB of them; the next call goes on.

    Nothing to read costs one `stat`. The mark and errors are those of `lines_since`.
    """
    new = lines_since(root, f"{name}/{METRICS}", mark, most=_MOST_AT_ONCE)
    return Followed(rounds=rounds_of(new.text).rounds, mark=new.mark, replaces=new.replaces)


_LOG = "run.log"
_MOST = 1 << 14
MOST_LINES = 60


@dataclass(frozen=True, kw_only=True)
class FollowedLog:
    """The last 60 lines since a mark; other fields as in `Appended`."""

    lines: tuple[str, ...]
    mark: ReadPosition
    replaces: bool


def follow_log(root: Path, name: str, mark: ReadPosition) -> FollowedLog:
    """The log's lines since a mark, of at most 16 KiB at the end of the file.

    The mark and errors are those of `lines_since`.
    """
    new = lines_since(root, f"{name}/{_LOG}", mark, most=_MOST, last_only=True)
    lines = new.text.decode(errors="replace").splitlines()
    if new.replaces and new.start and len(lines) > 1:
        lines = lines[1:]  # its beginning was not read
    return FollowedLog(
        lines=tuple(shown(line.expandtabs()) for line in lines[-MOST_LINES:]),
        mark=new.mark,
        replaces=new.replaces,
    )
