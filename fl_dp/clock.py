"""The clock by which rounds, secret coins and workers keep their deadlines.

All code that gives up after a time reads and waits here. Tests replace these functions by a clock
of their own, so that no outcome depends on how busy the machine is.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection, wait


def now() -> float:
    """Return seconds since an arbitrary start; they never decrease."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    """Wait; not at all for a negative number."""
    time.sleep(max(0.0, seconds))


def readable(source: Connection | int, seconds: float | None) -> bool:
    """Wait until `source` can be read or its other end is closed; return False after the time.

    Args:
        source: A connection or a file descriptor.
        seconds: Time to wait. None: without limit.
    """
    if seconds is not None:
        seconds = max(0.0, seconds)
    return bool(wait([source], seconds))
