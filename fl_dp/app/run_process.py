"""Process of a run: what a run writes down of its own, and whether it still is there.

A process's number is given anew, and means something on its own machine alone. So it goes with the
time at which the process began, and with what names the machine since it was started last.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROCESS = "process.json"
"""File in a run's folder that says which process trains it."""

_PROCESSES = Path("/proc")


def this_process() -> dict[str, Any] | None:
    """Return what names this process among all; None where the system does not tell (Linux does).

    Returns:
        Plain JSON values, for `is_there`.
    """
    pid = os.getpid()
    machine, began = _machine(), _began(pid)
    if machine is None or began is None:
        return None
    return {"machine": machine, "pid": pid, "began": began}


def is_there(said: Mapping[str, Any]) -> bool | None:
    """Tell whether a process is there; None if that can't be known here.

    Args:
        said: What `this_process` returned, or what anybody wrote instead.
    """
    pid = said.get("pid")
    if not isinstance(pid, int) or said.get("machine") != (_machine() or object()):
        return None
    began = _began(pid)
    return began is not None and began == said.get("began")


def _machine() -> str | None:
    """Return what names this machine since it was started, and the numbers' own space in it."""
    try:
        boot = (_PROCESSES / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {(_PROCESSES / 'self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return None


def _began(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None if it ended."""
    try:
        # The name in brackets may hold anything, also brackets.
        said = (_PROCESSES / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2]
        state, *rest = said.split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(rest[18])
