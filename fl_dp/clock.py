"""The clock by which rounds, secret coins and workers keep their deadlines.

Whatever gives up after a time reads it here and waits here. A test puts a clock of its own in place
of these functions, so that no outcome depends on how busy the machine is.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection, wait


def now() -> float:
    """Return seconds that only grow, from an arbitrary start."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    """Wait; not at all for a negative number."""
    time.sleep(max(0.0, seconds))


def readable(source: Connection | int, seconds: float | None) -> bool:
    """Wait until something can be read, or its other end is closed; False after the time.

    Args:
        source: A connection or a file descriptor.
        seconds: None: without limit.
    """
    return bool(wait([source], None if seconds is None else max(0.0, seconds)))
