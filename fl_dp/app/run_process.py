"""Process of a run: which it was, and whether it still exists.

Process ids are reused, and belong to one machine. So they are stored with the process's start time
and an id of the machine since its last start.
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
    """This process's identity in plain JSON values, for `is_running`.

    None where the system can't tell it (Linux can).
    """
    pid = os.getpid()
    machine, began = _machine(), _began(pid)
    if machine is None or began is None:
        return None
    return {"machine": machine, "pid": pid, "began": began}


def is_running(process: Mapping[str, Any]) -> bool | None:
    """Whether a process still runs; None if this machine can't know.

    Args:
        process: What `this_process` returned; other content counts as unknown.
    """
    pid = process.get("pid")
    if not isinstance(pid, int) or process.get("machine") != (_machine() or object()):
        return None
    began = _began(pid)
    return began is not None and began == process.get("began")


def _machine() -> str | None:
    """Id of this machine since its start, and of its namespace of process ids."""
    try:
        boot = (_PROCESSES / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {(_PROCESSES / 'self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return None


def _began(pid: int) -> int | None:
    """A process's start, in ticks since the machine's start; None if it ended."""
    try:
        # The name in brackets may hold anything, also brackets.
        stat = (_PROCESSES / str(pid) / "stat").read_text(errors="replace")
        state, *numbers = stat.rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(numbers[18])
