"""Processes that end with whoever started them, also where that one is killed (Linux alone)."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let the system kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Tied(subprocess.Popen[Any]):
    """A process that is killed when the thread that starts it ends."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Start it; the arguments are those of `subprocess.Popen`."""
        if sys.platform == "linux":
            options["preexec_fn"] = end_with_parent
        super().__init__(*args, **options)
