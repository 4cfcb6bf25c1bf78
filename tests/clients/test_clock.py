"""The clock of deadlines: the machine's own, and no other way to read or wait for it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from owned_clock import machine_clock

from fl_dp import clock

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_clock(monkeypatch)


def test_it_goes_on_by_what_is_slept() -> None:
    began = clock.now()
    clock.sleep(-1.0)
    clock.sleep(0.01)
    assert clock.now() - began >= 0.01


def test_what_can_be_read_is_told_and_so_is_an_end() -> None:
    read, write = os.pipe()
    assert not clock.readable(read, 0.0)
    assert not clock.readable(read, -1.0)
    os.write(write, b"1")
    assert clock.readable(read, None)
    os.read(read, 1)
    os.close(write)
    assert clock.readable(read, None)
    os.close(read)


def test_clients_and_strategies_have_no_other_clock_for_deadlines() -> None:
    """What a test's clock does not move would race the machine."""
    allowed = {
        # Durations for a log, and dates.
        "strategies/round_loop.py",
        "fl_dp/clients/owner/round_interval.py",  # takes its clocks as an argument
    }
    for folder in ("fl_dp/clients", "strategies"):
        for file in (ROOT / folder).rglob("*.py"):
            name = file.relative_to(ROOT).as_posix()
            read = re.findall(r"\btime\.(?:monotonic|time|sleep|perf_counter)\b", file.read_text())
            assert not read or name in allowed, (name, read)
