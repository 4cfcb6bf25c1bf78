"""Times that trackers are told: of whole runs, and no finer than a minute.

How long a round took can tell who took part in it: a slow client, or one that was not reached.
"""

from __future__ import annotations

_MINUTE = 60.0


def whole_minute(seconds: float) -> float:
    """Return the start of the minute that a time lies in, in seconds."""
    return seconds - seconds % _MINUTE
