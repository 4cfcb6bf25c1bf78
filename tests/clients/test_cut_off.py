"""A process of its own: one array comes back by its time, or nothing, whatever the work does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from owned_clock import OwnedClock

from fl_dp import clock
from fl_dp.clients.owner.cut_off import Apart
from fl_dp.clients.owner.deadline import _watched

LONG = 3600.0  # seconds


def holds_the_lock(clock: OwnedClock) -> Any:
    """Work for more than a lifetime, in one call that never gives the interpreter's lock away."""
    clock.say_that_it_hangs()
    return re.match("(a+)+$", "a" * 60 + "b")


def apart(work: Callable[[], Any], size: int = 3) -> Apart:
    return Apart(work, size, until=clock.now() + LONG)


def test_an_array_comes_back_and_nothing_else() -> None:
    left: list[int] = []

    def work() -> Any:
        left.append(1)
        return np.arange(3)

    done = apart(work).result()
    assert done is not None
    assert done.dtype.name == "float64"
    assert done.tolist() == [0.0, 1.0, 2.0]
    assert not left


def test_an_array_that_no_pipe_holds_at_once_comes_back_whole() -> None:
    done = apart(lambda: np.arange(10**6), size=10**6).result()
    assert done is not None
    assert np.array_equal(done, np.arange(10**6))


def test_what_holds_the_interpreter_s_lock_is_cut_off(clock: OwnedClock) -> None:
    """A thread would hold this one, too, and never come to an end."""
    assert apart(lambda: holds_the_lock(clock)).result() is None
    assert clock.now() == LONG


def test_what_is_ready_after_its_time_is_not_taken(clock: OwnedClock) -> None:
    """Else the time of one unit would decide about what is added of it."""
    with apart(lambda: np.arange(3)) as late:
        clock.sleep(LONG)
        assert late.result() is None


def test_what_comes_after_the_fork_stays_here() -> None:
    """Keys are read after it."""
    told = ["nothing"]
    with apart(lambda: [float(len(each)) for each in told], size=1) as waiting:
        told[0] = "a key"
        done = waiting.result()
    assert done is not None
    assert done.tolist() == [7.0]


def test_descendants_end_with_it(clock: OwnedClock) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    sleeps = [sys.executable, "-c", "import time; time.sleep(3600)"]

    def work() -> Any:
        with subprocess.Popen(sleeps, close_fds=False):
            clock.hang()

    late = apart(work)
    os.close(write)
    assert late.result() is None
    assert os.read(read, 1) == b""  # when the last of them is gone, and not before
    os.close(read)


@pytest.mark.parametrize(
    "fails",
    [
        lambda: np.zeros(4),
        lambda: np.full((), "text"),
        lambda: sys.exit("its own"),
        lambda: os._exit(0),
        lambda: 1 // 0,
    ],
)
def test_a_failure_gives_nothing(fails: Callable[[], Any]) -> None:
    assert apart(fails).result() is None


def test_no_way_to_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that have ended macOS says that they may not be ended; apps may ignore SIGCHLD."""
    kill = os.killpg

    def refused(group: int, number: int) -> None:
        kill(group, number)
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refused)
    usual = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        done = apart(lambda: np.arange(3)).result()
    finally:
        signal.signal(signal.SIGCHLD, usual)
    assert done is not None
    assert done.tolist() == [0.0, 1.0, 2.0]


def test_without_a_process_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be four files a unit, and then none is left."""

    def none_left() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", none_left)
    free = os.dup(0)
    os.close(free)
    with pytest.raises(BlockingIOError):
        apart(lambda: np.arange(3))
    lowest = os.dup(0)
    os.close(lowest)
    assert lowest == free


def test_work_that_nobody_asked_for_never_begins() -> None:
    read, write = os.pipe()
    with apart(lambda: os.write(write, b"1")):
        os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)


def test_a_process_without_a_parent_ends_itself() -> None:
    """Also while it holds the interpreter's lock: the node may end a message at any time."""
    program = """
import os, re, signal, sys
from fl_dp import clock
from fl_dp.clients.owner.cut_off import Apart
def work():
    print(0.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 3601.0, flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0.01)  # sooner than that, for the test's sake
    re.match("(a+)+$", "a" * 60 + "b")
apart = Apart(work, 1, until=clock.now() + 3600.0)
os.write(apart._gate, b"1")
os._exit(0)
"""
    # The pipe of its output closes when the last process that has it is gone.
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "True\n")


def test_torch_works_in_parallel_there_after_it_did_here() -> None:
    """OpenMP's threads are not forked, and the thread that had them would wait for ever."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        values = torch.ones(2000, 2000)
        here = float(values.exp().sum())
        there = apart(lambda: [float(values.exp().sum())], size=1).result()
    finally:
        torch.set_num_threads(before)
    assert there is not None
    assert there.tolist() == [here]


def test_processes_begin_within_processes_where_a_watchdog_runs() -> None:
    """A real node's deadline has one, whose thread is not forked: nothing may wait for it."""
    with _watched(LONG):
        within = apart(lambda: apart(lambda: [3.0], size=1).result(), size=1).result()
    assert within is not None
    assert within.tolist() == [3.0]
