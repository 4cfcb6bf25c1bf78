"""Runs that are found in a folder: state, numbers, and what is new since the last look."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from app_trainings import trained_run
from written_runs import write_rounds, write_run

from fl_dp.app.run_process import PROCESS, this_process
from fl_dp.viewer.found_runs import ReadPosition, RunsFolder, RunState, read_run

NOW = 2_000_000_000.0


def folder(root: Path) -> RunsFolder:
    return RunsFolder(root, clock=lambda: NOW)


@pytest.mark.parametrize(
    ("done", "stated", "age", "state"),
    [
        (4, True, 9e9, RunState.FINISHED),
        (2, True, 0.0, RunState.STOPPED),
        (2, False, 100.0, RunState.RUNNING),
        (4, False, 100.0, RunState.RUNNING),  # its statement is still to come
        (2, False, 700.0, RunState.SILENT),
    ],
)
def test_state_follows_from_what_is_there_and_how_old_it_is(
    tmp_path: Path, done: int, stated: bool, age: float, state: RunState
) -> None:
    write_run(tmp_path / "a", done=done, stated=stated, written=max(NOW - age, 1.0))
    assert folder(tmp_path).card("a").state == state


def test_a_run_that_was_killed_is_not_running_and_one_that_waits_is(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", done=2, stated=False)
    trains = "import sys; from pathlib import Path; from fl_dp.app.run_folder import RunFolder; "
    trains += f"RunFolder(Path({str(path)!r})).note_process(); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", trains], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert RunsFolder(tmp_path).card("a").state == RunState.RUNNING
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert RunsFolder(tmp_path).card("a").state == RunState.STOPPED
    assert RunsFolder(tmp_path).card("a").state == RunState.STOPPED
    assert stat.S_IMODE((path / PROCESS).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, RunState.RUNNING),
        ({"began": 1}, RunState.STOPPED),  # another process has got its number
        ({"machine": "elsewhere"}, RunState.RUNNING),
        ({"pid": -1}, RunState.STOPPED),
        ({"pid": 2**70}, RunState.RUNNING),
        ({"pid": "1"}, RunState.RUNNING),
        ({"pid": None, "machine": None}, RunState.RUNNING),
        ({"began": None, "pid": 2**40}, RunState.STOPPED),
    ],
)
def test_only_a_process_of_this_machine_tells_whether_a_run_goes_on(
    tmp_path: Path, changes: dict[str, Any], state: RunState
) -> None:
    path = write_run(tmp_path / "a", done=2, stated=False)
    said = this_process()
    assert said is not None
    (path / PROCESS).write_text(json.dumps(said | changes))
    assert RunsFolder(tmp_path).card("a").state == state


def test_a_resumed_run_is_running_although_it_has_a_statement_of_before(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", done=2, written=time.time() - 400.0)
    write_rounds(path, range(3, 4), rounds=4)
    card = RunsFolder(tmp_path).card("a")
    assert card.state == RunState.RUNNING
    assert card.promise is not None
    assert card.promise.epsilon is None
    # Of its last round, not the statement's.
    assert card.promise.spent == pytest.approx(8.0 * 0.75**0.5)
    assert card.promise.budget == 8.0
    assert card.terms == f"epsilon {card.promise.terms}"


def test_a_run_that_promises_nothing_has_no_epsilon(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", "privacy=none")
    (path / "privacy.json").write_text('{"quoted": "none", "epsilon": {}, "delta": 0, "rounds": 4}')
    card = folder(tmp_path).card("a")
    assert card.promise is not None
    assert not card.promise.promises
    assert card.terms == "no privacy"


def test_runs_of_a_sweep_say_so(tmp_path: Path) -> None:
    for index in range(2):
        write_run(tmp_path / "sweep" / f"run-{index}", f"seed={index}")
    cells = [{"name": "run-0", "variant": "rounds=4", "place": "inf"}]
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps({"cells": cells}))
    card = folder(tmp_path).card("sweep/run-0")
    assert (card.sweep, card.variant, card.place) == ("sweep", "rounds=4", "inf")
    assert folder(tmp_path).card("sweep/run-1").sweep is None
    names = {each.name for each in folder(tmp_path).listing().cards}
    assert names == {"sweep/run-0", "sweep/run-1"}


def test_what_changed_is_read_anew_and_the_rest_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, done=2, stated=False)
    runs = folder(tmp_path)
    runs.listing()
    opened: list[str] = []
    from fl_dp.viewer.found_runs import rounds, untrusted

    real = untrusted.opened

    def noted(root: Path, name: str) -> AbstractContextManager[BinaryIO]:
        opened.append(name)
        return real(root, name)

    monkeypatch.setattr(rounds, "opened", noted)
    write_rounds(tmp_path / "a", range(3, 4), rounds=4)
    after = {card.name: card.round for card in runs.listing().cards}
    assert after == {"a": 3, "b": 2}
    assert opened == ["a/metrics.jsonl"]


def test_a_run_is_followed_by_what_came_since(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", done=1, stated=False)
    runs = folder(tmp_path)
    first = runs.follow("a", ReadPosition())
    assert [each.round for each in first.rounds] == [0, 1]
    assert first.replaces
    write_rounds(path, range(2, 4), rounds=4)
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 4, "rou')  # still being written
    second = runs.follow("a", first.mark)
    assert [each.round for each in second.rounds] == [2, 3]
    assert not second.replaces
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write('nds": 4}\n')
    assert [each.round for each in runs.follow("a", second.mark).rounds] == [4]


def test_following_starts_anew_where_a_resumed_run_rewrote_its_metrics(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", done=3, stated=False)
    runs = folder(tmp_path)
    mark = runs.follow("a", ReadPosition()).mark
    text = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "new").write_text("".join(text[:2]) + text[0] * 9)
    (path / "new").replace(path / "metrics.jsonl")
    again = runs.follow("a", mark)
    assert again.replaces
    assert again.rounds


def test_a_round_that_was_written_again_counts_once(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=4)
    write_rounds(path, range(2, 5), rounds=4)
    assert [each.round for each in read_run(path).rounds] == [0, 1, 2, 3, 4]


def test_reading_needs_no_framework() -> None:
    heavy = ("torch", "ray", "flwr", "scipy", "numpy", "omegaconf", "sqlalchemy")
    found = f"print(set({heavy}) & set(sys.modules))"
    code = f"import sys, fl_dp.viewer.found_runs as f; f.RunsFolder; {found}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_what_is_shown_between_evaluations_is_the_last_one(tmp_path: Path) -> None:
    small = ("task.num_clients=20", "client.epochs=1", "rounds=5")
    done = trained_run(tmp_path, *small, "metrics.evaluate_every=3")
    lines = done.read_metrics()[:5]
    done.drop_metrics_after(4)
    found = read_run(done.path)
    assert (found.card.round, found.card.score.value) == (4, lines[3]["test_accuracy"])
    assert found.accuracy == lines[3]["test_accuracy"]
