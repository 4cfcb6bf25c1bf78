"""Processes that end with whoever started them, also where that one is killed (Linux alone).

Where memory is short, the system kills them before it kills their starter.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_FIRST = "1000"  # of those that the system kills for memory


def _tie() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError):  # a sandbox may not show it
        Path("/proc/self/oom_score_adj").write_text(_FIRST)


class Tied(subprocess.Popen[Any]):
    """A process that is killed when the thread that starts it ends."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Start it; the arguments are those of `subprocess.Popen`."""
        if sys.platform == "linux":
            options["preexec_fn"] = _tie
        super().__init__(*args, **options)
