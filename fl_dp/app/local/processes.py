"""Processes that a run starts: find them all, and end them with their starter."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Ids of all processes that a process started, directly or indirectly."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    pids = list(children.get(pid, ()))
    for descendant in pids:  # grows during the loop
        pids.extend(children.get(descendant, ()))
    return pids


def kill_all(pids: list[int]) -> None:
    """Kill processes, except those gone or of another user."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def stop_with_descendants(process: subprocess.Popen[bytes]) -> None:
    """End a session's leader and all that it started, in any session.

    A Flower run has processes in sessions of their own, which would go on training.
    """
    started = descendants(process.pid)
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
            process.wait(timeout=10.0)
        except (ProcessLookupError, PermissionError):
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
    kill_all(started)


def end_with(parent: int, last: Callable[[], None] = lambda: None) -> None:
    """End this process when its starter is gone: nobody would read its results.

    Args:
        parent: Descriptor of a pipe whose other end only the starter has, and never writes to.
        last: Called before the end.
    """

    def wait() -> None:
        # The bare descriptor: a buffer that a thread holds would prevent the process's own exit.
        while os.read(parent, 1):
            pass
        with suppress(Exception):
            last()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _parents() -> Iterator[tuple[int, int]]:
    processes = Path("/proc")
    if not (processes / "self" / "stat").exists():
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False
        )
        for line in listed.stdout.splitlines():
            child, parent = line.split()
            yield int(child), int(parent)
        return
    for folder in processes.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                # The name in brackets may hold anything, also brackets.
                rest = (folder / "stat").read_text(errors="replace").rpartition(")")[2]
                yield int(folder.name), int(rest.split()[1])
