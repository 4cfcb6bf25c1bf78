"""Lines of the operator's log that have come since somebody looked last."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .follow import ReadPosition, lines_since
from .untrusted import shown

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
        root: The folder that somebody named.
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
