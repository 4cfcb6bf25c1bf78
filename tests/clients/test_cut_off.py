"""Work that is not done in time is left behind, with all that it does."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from flwr.app import ConfigRecord, Context, RecordDict

from fl_dp.clients.cut_off import done_within


def context() -> Context:
    return Context(1, 2, {"name": "x"}, RecordDict(), {}, 3)


def write(given: Context) -> str:
    given.state["left"] = ConfigRecord({"by": "work"})
    return str(given.series_id)


def test_work_in_time_is_returned_with_what_it_left_in_the_state() -> None:
    given = context()
    assert done_within(60.0, write, given) == "3"
    assert "left" in given.state


def test_work_that_is_left_behind_leaves_nothing_in_the_state() -> None:
    given, over, ended = context(), threading.Event(), threading.Event()

    def late(apart: Context) -> str:
        over.wait()
        try:
            return write(apart)
        finally:
            ended.set()

    with pytest.raises(TimeoutError, match="not done after"):
        done_within(0.01, late, given)
    over.set()
    assert ended.wait(60.0)
    assert "left" not in given.state


@pytest.mark.parametrize("failure", [ValueError, TimeoutError, SystemExit])
def test_a_failure_is_the_work_s_own(failure: type[BaseException]) -> None:
    def fails(_: Context) -> str:
        raise failure("its own")

    with pytest.raises(failure, match="its own"):
        done_within(60.0, fails, context())


def test_a_process_does_not_wait_for_what_it_left_behind() -> None:
    program = """
import time
from flwr.app import Context, RecordDict
from fl_dp.clients.cut_off import done_within
try:
    done_within(0.01, lambda _: time.sleep(3600), Context(1, 2, {}, RecordDict(), {}))
except TimeoutError:
    print("answered")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "answered\n")
