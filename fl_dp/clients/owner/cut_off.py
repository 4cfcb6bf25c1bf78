"""A process of its own for the app's code: it ends at a fixed time, and delays no other answer.

A thread would not do: it can't be ended, and code that holds the interpreter's lock delays every
answer of its process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from fl_dp import clock

logger = logging.getLogger("flwr.fl_dp.client")

_GRACE = 1.0  # seconds after which a process without a parent ends itself
_PART = 1 << 20  # bytes


class Apart:
    """Work in its own process, forked now; it begins when its result is asked for.

    It has this process's state at the fork. One array comes back, and no other change.
    """

    def __init__(self, work: Callable[[], NDArray[np.float64]], size: int, *, until: float) -> None:
        """Fork.

        Args:
            work: Returns float64 of shape `(size,)`; its errors are logged.
            size: The result's size.
            until: Time by `clock.now` at which it ends.

        Raises:
            OSError: The system has no process left.
        """
        self._size, self._until, self._ended = size, until, False
        gate, self._gate = os.pipe()
        self._results, results = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # unflushed text would be written twice
        with warnings.catch_warnings():
            # It warns of other threads; the child takes no lock that they may hold (decision 161).
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self._process = os.fork()
            except OSError:
                for descriptor in (gate, self._gate, self._results, results):
                    os.close(descriptor)
                raise
        if not self._process:
            os.close(self._gate)
            os.close(self._results)
            _live(work, size, gate=gate, results=results, until=until)
        with suppress(OSError):  # one of the two is first
            os.setpgid(self._process, self._process)
        os.close(gate)
        os.close(results)

    def result(self) -> NDArray[np.float64] | None:
        """Start the work, wait for it and end it; None if it failed, or its time is over."""
        try:
            return self._received()
        finally:
            self.end()

    def end(self) -> None:
        """End the process and its children, done or not; a second call does nothing.

        Children that began their own session survive.
        """
        if self._ended:
            return
        self._ended = True
        os.close(self._gate)
        os.close(self._results)
        with suppress(ProcessLookupError, PermissionError):  # macOS denies it for ended processes
            os.killpg(self._process, signal.SIGKILL)
        with suppress(ChildProcessError):  # an app may ignore SIGCHLD
            os.waitpid(self._process, 0)

    def __enter__(self) -> Self:
        """Return it, to be ended with the block."""
        return self

    def __exit__(self, *failure: object) -> None:
        """End it."""
        self.end()

    def _received(self) -> NDArray[np.float64] | None:
        received, wanted = bytearray(), 8 * self._size
        with suppress(BrokenPipeError):
            os.write(self._gate, b"1")
        while len(received) < wanted:
            remaining = self._until - clock.now()
            if remaining <= 0.0 or not clock.readable(self._results, remaining):
                return None
            part = os.read(self._results, min(_PART, wanted - len(received)))
            if not part:
                return None
            received += part
        return np.frombuffer(received, np.float64)


def _live(
    work: Callable[[], NDArray[np.float64]], size: int, *, gate: int, results: int, until: float
) -> NoReturn:
    """Run in the child: wait for the gate to open, work, send, end."""

    def send() -> None:
        try:
            values = np.ascontiguousarray(work(), dtype=np.float64)
            if values.shape != (size,):
                raise ValueError(f"the work gave shape {values.shape} in place of ({size},)")
            unsent = memoryview(values.tobytes())
            while unsent:
                unsent = unsent[os.write(results, unsent) :]
        except BaseException:  # an exit, too
            logger.exception("work in a process of its own failed")

    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            # Flower's handler would report the end of its own process.
            signal.signal(number, signal.SIG_DFL)
        # A timer of the system, as the parent may be gone and the work hold the interpreter's lock.
        signal.setitimer(signal.ITIMER_REAL, max(0.0, until - clock.now()) + _GRACE)
        if os.read(gate, 1):
            # OpenMP's pool of the thread that forked has no threads here, and would wait for them.
            worker = Thread(target=send)
            worker.start()
            worker.join()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
    finally:
        os._exit(0)
