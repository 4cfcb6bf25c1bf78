"""A clock that a test owns: it stands still until somebody waits, and then for exactly that long.

It takes the place of `fl_dp.clock`. Forked processes go on with a clock of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection, wait

import pytest

from fl_dp import clock

_MACHINE = {"now": clock.now, "sleep": clock.sleep, "readable": clock.readable}
_OF_NODES = 1.0  # seconds: slots and times of answers are longer
_LOOK = 0.01  # seconds of the machine between two looks at a process; nothing depends on them


def machine_clock(patch: pytest.MonkeyPatch) -> None:
    """Have the product read the machine's clock again."""
    for name, function in _MACHINE.items():
        patch.setattr(clock, name, function)


def answer_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let nodes of secure sums, played one by one in this process, answer when ready."""
    pause = clock.sleep

    def sleep(seconds: float) -> None:
        if seconds < _OF_NODES:  # the server's pauses go on, so that its time-outs end
            pause(seconds)

    patch.setattr(clock, "sleep", sleep)


class OwnedClock:
    """Stands for the module `fl_dp.clock`.

    Attributes:
        pauses: Seconds of each wait, in order.
    """

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._now = 0.0
        self._left_waiting = multiprocessing.RawValue("q", 0)  # process that waits in vain
        self._waits_in_vain = 0  # of threads of this process

    def put_in_place(self, patch: pytest.MonkeyPatch) -> None:
        """Have the product read this clock."""
        for name in _MACHINE:
            patch.setattr(clock, name, getattr(self, name))

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._now += max(0.0, seconds)

    def readable(self, source: Connection | int, seconds: float | None) -> bool:
        """Wait as long as the other end takes, or until it says that it hangs."""
        while not wait([source], _LOOK):
            if self._waits_in_vain:
                assert seconds is not None, "nobody may wait without limit for what hangs"
                self._waits_in_vain -= 1
                self.sleep(seconds)
                return False
            if self._left_waiting.value == os.getpid():
                assert seconds is not None, "nobody may wait without limit for what hangs"
                self._left_waiting.value = 0
                self.sleep(seconds)
                return False
        return True

    def let_this_process_hang(self, times: int = 1) -> None:
        """Let so many waits for a thread of this process time out."""
        self._waits_in_vain = times

    def hang(self) -> None:
        """Never come back, in a process that another one waits for."""
        self.say_that_it_hangs()
        time.sleep(3600)

    def say_that_it_hangs(self) -> None:
        """Let the wait of the process that waits for this one time out."""
        self._left_waiting.value = os.getppid()
