"""Waiting for other processes, as long as they take."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(happened: Callable[[], object]) -> None:
    """Wait until something has happened; else pytest's own time limit ends the wait."""
    while not happened():
        time.sleep(0.05)
