"""Trackers get values of a closed list, and nothing that they do reaches the run."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from fl_dp.app.tracking import RunStart, TrackedRun, round_values
from fl_dp.app.tracking.tracker import whole_minute

PRIVATE: dict[str, Any] = {
    "cohort": [3, 7, 12],
    "participants": 3,
    "update_norms": [0.1, 0.2],
    "node_names": ["ward-7"],
    "noise_seed": 5,
    "seconds": 1.25,
    "clients": {"loss": 0.5, "ward-7/loss": 0.1, "accuracy": 0.75, "noise": 3.0},
}


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.starts: list[RunStart] = []
        self.rounds: list[tuple[int, dict[str, float]]] = []
        self.ends: list[tuple[str, dict[str, Any]]] = []

    def started(self, run: RunStart) -> None:
        self.starts.append(run)

    def released(self, server_round: int, values: Mapping[str, float]) -> None:
        self.rounds.append((server_round, dict(values)))

    def ended(self, state: str, final: Mapping[str, Any]) -> None:
        self.ends.append((state, dict(final)))


class Failing(Recorder):
    """Raises at one of the calls, as anybody's code may."""

    def __init__(self, at: str, error: BaseException) -> None:
        super().__init__()
        self.at, self.error = at, error

    def started(self, run: RunStart) -> None:
        super().started(run)
        self._raise("started")

    def released(self, server_round: int, values: Mapping[str, float]) -> None:
        super().released(server_round, values)
        self._raise("released")

    def ended(self, state: str, final: Mapping[str, Any]) -> None:
        super().ended(state, final)
        self._raise("ended")

    def _raise(self, what: str) -> None:
        if what == self.at:
            raise self.error


# What they get.


def test_a_round_is_told_by_the_closed_list_alone() -> None:
    recorder = Recorder()
    with TrackedRun([recorder]) as tracked:
        tracked.start(RunStart(name="a", promise={"promise/epsilon": 2.0, "key": "secret"}))
        tracked.released({"round": 1, "test_loss": 0.5, "epsilon": 1.0, **PRIVATE})
        tracked.conclude({"final/epsilon": 1.5, "final/cohorts": [1, 2], "ward": "7"})
    told = {"test_loss": 0.5, "epsilon": 1.0, "clients/loss": 0.5, "clients/accuracy": 0.75}
    assert recorder.rounds == [(1, told)]
    assert recorder.starts[0].promise == {"promise/epsilon": 2.0}
    assert recorder.ends == [("finished", {"final/epsilon": 1.5})]


def test_rounds_of_before_are_told_by_the_same_list() -> None:
    recorder = Recorder()
    with TrackedRun([recorder]) as tracked:
        tracked.start(RunStart(name="a", before=((1, {"epsilon": 1.0, "participants": 3.0}),)))
    assert recorder.starts[0].before == ((1, {"epsilon": 1.0}),)
    assert recorder.starts[0].resumed


def test_names_that_a_plan_declares_are_on_the_list_and_no_others() -> None:
    line = {"round": 1, "clients": {"f1": 0.5, "ward": 7.0}}
    assert round_values(line, ["f1"]) == (1, {"clients/f1": 0.5})


@pytest.mark.parametrize("value", [math.nan, math.inf, True, "0.5", [0.5], 10**400])
def test_a_value_that_is_no_finite_number_is_left_out(value: object) -> None:
    assert round_values({"round": 1, "test_loss": value, "epsilon": 1.0}) == (1, {"epsilon": 1.0})


@pytest.mark.parametrize(
    ("planned", "released", "error", "state"),
    [
        (2, 2, None, "finished"),
        (2, 1, None, "stopped"),
        (2, 1, RuntimeError("a server of ours"), "failed"),
    ],
)
def test_the_end_is_told_with_its_state_and_never_with_a_reason(
    planned: int, released: int, error: Exception | None, state: str
) -> None:
    recorder = Recorder()
    try:
        with TrackedRun([recorder]) as tracked:
            tracked.start(RunStart(name="a", rounds=planned))
            for server_round in range(released + 1):
                tracked.released({"round": server_round})
            if error is not None:
                raise error
    except RuntimeError:
        pass
    assert recorder.ends == [(state, {})]


def test_a_run_that_never_started_is_told_to_nobody() -> None:
    recorder = Recorder()
    with pytest.raises(ValueError), TrackedRun([recorder]):
        raise ValueError("wrong settings")
    assert (recorder.starts, recorder.ends) == ([], [])


def test_times_of_a_run_are_no_finer_than_a_minute() -> None:
    assert [whole_minute(at) for at in (0.0, 59.9, 60.0, 125.0)] == [0.0, 0.0, 60.0, 120.0]


# What they can't do.


@pytest.mark.parametrize("at", ["started", "released", "ended"])
@pytest.mark.parametrize(
    "error", [OSError("no space left\nand more"), SystemExit(1), KeyboardInterrupt()]
)
def test_one_that_raises_anything_is_left_out_and_said_once(
    at: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    failing, recorder = Failing(at, error), Recorder()
    with caplog.at_level(logging.WARNING), TrackedRun([failing, recorder]) as tracked:
        tracked.start(RunStart(name="a", rounds=2))
        for server_round in (1, 2):
            tracked.released({"round": server_round, "epsilon": 1.0})
    assert [at for at, _ in recorder.rounds] == [1, 2]
    assert recorder.ends == [("finished", {})]
    assert len(failing.rounds) == {"started": 0, "released": 1, "ended": 2}[at]
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"Failing failed ({at}: {type(error).__name__}")
    assert "\n" not in said


def test_one_that_hangs_holds_up_neither_the_rounds_nor_for_long_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for_ever = threading.Event()

    class Hanging(Recorder):
        def started(self, run: RunStart) -> None:
            for_ever.wait()

    recorder = Recorder()
    with TrackedRun([Hanging(), recorder], patience=0.01) as tracked:
        tracked.start(RunStart(name="a"))
        for server_round in range(100):
            tracked.released({"round": server_round})
    for_ever.set()
    assert "Hanging is still writing, and is left behind" in caplog.text


def test_one_that_changes_what_it_is_told_changes_it_for_nobody_else() -> None:
    class Changing(Recorder):
        def released(self, server_round: int, values: Mapping[str, float]) -> None:
            assert isinstance(values, dict)
            values.clear()

    recorder, line = Recorder(), {"round": 1, "epsilon": 1.0}
    with TrackedRun([Changing(), recorder]) as tracked:
        tracked.start(RunStart(name="a"))
        tracked.released(line)
    assert recorder.rounds == [(1, {"epsilon": 1.0})]
    assert line == {"round": 1, "epsilon": 1.0}
