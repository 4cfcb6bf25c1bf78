"""Processes that a run starts: find them all, and end them with their starter."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_PATIENCE = 10.0  # seconds
_THREADS_FIELD = 17  # of /proc/PID/stat, counted from the one after the name in brackets


def descendants(pid: int) -> list[int]:
    """Ids of all processes that a process started, directly or indirectly."""
    children: dict[int, list[int]] = {}
    for child, parent in _living():
        children.setdefault(parent, []).append(child)
    pids = list(children.get(pid, ()))
    for descendant in pids:  # grows during the loop
        pids.extend(children.get(descendant, ()))
    return pids


def kill_all(pids: list[int]) -> None:
    """Kill processes, except those gone or of another user, and wait until they hold no lock."""
    killed = set()
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    until = time.monotonic() + _PATIENCE
    while killed & {pid for pid, _ in _living()} and time.monotonic() < until:
        time.sleep(0.01)


def stop_with_descendants(process: subprocess.Popen[bytes]) -> None:
    """End a session's leader and all that it started, in any session.

    A Flower run has processes in sessions of their own, which would go on training.
    """
    started = descendants(process.pid)
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
            process.wait(timeout=_PATIENCE)
        except (ProcessLookupError, PermissionError):
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
    kill_all(started)


def delete_in_use(folder: str) -> None:
    """Delete a folder in which other threads of this process, which ends next, may still write."""
    until = time.monotonic() + _PATIENCE
    while os.path.lexists(folder) and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)


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


def _living() -> Iterator[tuple[int, int]]:
    """Each process and its parent, without those that have ended and hold nothing (zombies)."""
    processes = Path("/proc")
    if not (processes / "self" / "stat").exists():
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, text=True, check=False
        )
        for line in listed.stdout.splitlines():
            child, parent, state = line.split()
            if state[0] != "Z":
                yield int(child), int(parent)
        return
    for folder in processes.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                # The name in brackets may hold anything, also brackets.
                rest = (folder / "stat").read_text(errors="replace").rpartition(")")[2]
                fields = rest.split()
                state, parent, threads = fields[0], fields[1], fields[_THREADS_FIELD]
                # A killed process counts as a zombie while its other threads still hold files.
                if state != "Z" or int(threads) > 1:
                    yield int(folder.name), int(parent)
