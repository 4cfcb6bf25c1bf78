"""The clock by which rounds, secret coins and workers keep their deadlines.

All code with a timeout reads and waits here. Tests substitute their own clock: no outcome then
depends on how busy the machine is.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection, wait


def now() -> float:
    """Seconds since an arbitrary start; never decreasing."""
    return time.monotonic()


def date() -> float:
    """Seconds since 1970, by this machine's calendar, as messages have them."""
    return time.time()


def sleep(seconds: float) -> None:
    """Wait; a negative number counts as 0."""
    time.sleep(max(0.0, seconds))


def readable(source: Connection | int, seconds: float | None) -> bool:
    """Wait until `source` can be read or its other end is closed; return False on timeout.

    `source` is a connection or a file descriptor. `seconds` None: no limit.
    """
    if seconds is not None:
        seconds = max(0.0, seconds)
    return bool(wait([source], seconds))
