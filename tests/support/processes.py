"""Processes that a test has started."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from owned_clock import machine_clock

_forking = threading.Lock()


class Forked:
    """Work in a process of its own, which has imported what this one has.

    Attributes:
        pid: Its number.
        stdin: A pipe to its standard input.
        stdout: A pipe from its standard output.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        """Start it; it ends with status 1 where the work raises."""
        with _forking:  # else another one would inherit our ends of the pipes
            theirs, to_it = os.pipe()
            from_it, ours = os.pipe()
            self.pid = os.fork()
            if not self.pid:
                _work_and_end(work, theirs, ours)
            os.close(theirs)
            os.close(ours)
        self.stdin = os.fdopen(to_it, "w")
        self.stdout = os.fdopen(from_it)

    def kill(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end, and return its status; less than 0 where a signal ended it."""
        self.stdin.close()
        self.stdout.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def rest(self) -> str:
        """Wait for its end, which has to be a good one, and return what it still printed."""
        printed = self.stdout.read()
        assert self.wait() == 0
        return printed


def _work_and_end(work: Callable[[], object], stdin: int, stdout: int) -> None:
    """Work in a fork, which must not come back into pytest."""
    code = 1
    try:
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        machine_clock(pytest.MonkeyPatch())
        work()
        sys.stdout.flush()
        code = 0
    finally:
        os._exit(code)


def alive(pid: int) -> bool:
    """Whether a process runs: it is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
