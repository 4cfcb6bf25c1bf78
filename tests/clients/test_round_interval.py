"""Least time between rounds: by a clock that nobody sets while the machine runs."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from fl_dp.clients.owner.round_interval import Moment, RoundInterval

START = Moment(wall=1_000_000.0, since_boot=50.0, boot="first")


class Clocks:
    def __init__(self) -> None:
        self.moment = START

    def __call__(self) -> Moment:
        return self.moment

    def at(self, **clocks: float | str) -> None:
        self.moment = replace(START, **clocks)  # type: ignore[arg-type]  # its fields


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def interval(tmp_path: Path, clocks: Clocks) -> RoundInterval:
    fresh = RoundInterval(tmp_path / "ledger.db.rounds", now=clocks)
    assert fresh.wait_left("train ward", 900.0) == 0.0
    return fresh


@pytest.mark.parametrize(
    ("later", "left"),
    [
        ({"since_boot": 50.0}, 900.0),
        ({"since_boot": 450.0}, 500.0),
        ({"since_boot": 950.0}, 0.0),
        ({"since_boot": 450.0, "wall": 9e9}, 500.0),  # set forward
        ({"since_boot": 950.0, "wall": 1.0}, 0.0),  # set back
        ({"boot": "second", "since_boot": 3.0, "wall": 1_000_100.0}, 800.0),
        ({"boot": "second", "since_boot": 3.0, "wall": 1_000_900.0}, 0.0),
    ],
)
def test_the_time_since_the_last_round_decides(
    interval: RoundInterval, clocks: Clocks, later: dict[str, float], left: float
) -> None:
    clocks.at(**later)
    assert interval.wait_left("train ward", 900.0) == pytest.approx(left)


def test_what_was_refused_does_not_move_the_last_round(
    interval: RoundInterval, clocks: Clocks
) -> None:
    for since in (100.0, 500.0, 949.0):
        clocks.at(since_boot=since)
        assert interval.wait_left("train ward", 900.0) > 0.0
    clocks.at(since_boot=950.0)
    assert interval.wait_left("train ward", 900.0) == 0.0
    assert interval.wait_left("train ward", 900.0) == 900.0


def test_a_wall_clock_that_went_back_at_a_new_start_locks_nobody_out(
    interval: RoundInterval, clocks: Clocks
) -> None:
    clocks.at(boot="second", since_boot=3.0, wall=5.0)
    assert interval.wait_left("train ward", 900.0) == 900.0
    clocks.at(boot="second", since_boot=903.0, wall=905.0)
    assert interval.wait_left("train ward", 900.0) == 0.0


def test_a_system_that_names_no_start_has_its_wall_clock(tmp_path: Path, clocks: Clocks) -> None:
    clocks.at(boot="")
    fresh = RoundInterval(tmp_path / "rounds", now=clocks)
    assert fresh.wait_left("train ward", 900.0) == 0.0
    clocks.at(boot="", wall=1_000_899.0, since_boot=9_999.0)
    assert fresh.wait_left("train ward", 900.0) == pytest.approx(1.0)


def test_each_kind_and_each_name_of_data_has_its_own_time(interval: RoundInterval) -> None:
    assert interval.wait_left("evaluate ward", 900.0) == 0.0
    assert interval.wait_left("train other", 900.0) == 0.0
    assert interval.wait_left("train ward", 900.0) == 900.0


def test_the_file_is_its_owner_s_and_must_be_readable(tmp_path: Path, clocks: Clocks) -> None:
    file = tmp_path / "rounds"
    RoundInterval(file, now=clocks).wait_left("train ward", 900.0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_bytes(b"no database at all, but long enough to be one" * 30)
    with pytest.raises(OSError, match="nothing is answered without it"):
        RoundInterval(file, now=clocks).wait_left("train ward", 900.0)
