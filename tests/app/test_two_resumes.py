"""Two processes in one run's folder: one trains, and the other ends before anything is spent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import changed, json_of, train_here, use
from flwr.app import Message
from ledger_files import start_python
from local_grid import LocalGrid, answer_with_app

from fl_dp.app.compose import compose_settings
from fl_dp.app.local.flower_runs import RunStatus
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.task_client import app as client_app
from fl_dp.files import HeldElsewhere, held_alone
from fl_dp.ledger import SpentLedger

SMALL = [
    "task.num_clients=4",
    "selection.sampling_rate=1",  # so that each round asks somebody
    "rounds=3",
    "client.epochs=1",
    "report=none",
]
FL_DP = str(Path(sys.executable).parent / "fl-dp")
ASKED_OF_TRAIN = """
from fl_dp.app.compose import compose_settings
from fl_dp.app.server import train
train(None, compose_settings(["resume={folder}"]), run_id="2")
"""


def test_of_two_in_one_folder_the_second_ends_before_anything_is_spent(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    settings = compose_settings([*SMALL, f"output_dir={tmp_path}", "run_name=run"])
    nodes = settings.simulation.num_nodes(settings.task.num_clients)
    answer = answer_with_app(client_app, nodes)
    seconds: list[subprocess.CompletedProcess[str]] = []

    def while_others_come(message: Message, partition: int) -> Message | None:
        if message.metadata.message_type == "train" and not seconds:
            before = files_of(folder)
            seconds.append(run([FL_DP, "run", f"resume={folder.path}"]))
            seconds.append(run([sys.executable, "-c", ASKED_OF_TRAIN.format(folder=folder.path)]))
            assert files_of(folder) == before
        return answer(message, partition)

    train(LocalGrid(while_others_come, nodes), settings, run_id="3")
    by_command, by_train = seconds
    assert by_command.returncode == 2, by_command.stdout
    said = " ".join(by_command.stderr.split())
    assert f"another process trains in {folder.path}: wait until it has ended, or stop it" in said
    assert "Traceback" not in said
    assert "HeldElsewhere" in by_train.stderr
    with SpentLedger.read(folder.ledger) as ledger:
        assert ledger.rounds_spent == 3  # all that the plan pays for
    assert [line["round"] for line in folder.read_metrics()] == [0, 1, 2, 3]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def files_of(folder: RunFolder) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.path.iterdir() if each.is_file()}


def test_the_lock_of_a_process_that_is_killed_is_gone(tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"
    child = start_python(
        f"""
        import os, time
        from pathlib import Path
        from fl_dp.files import held_alone
        with held_alone(Path({str(lock)!r}), "works"):
            if os.fork() == 0:
                print(os.getpid(), flush=True)  # by the child, so that its locks are gone by then
            time.sleep(600)
        """
    )
    assert child.stdout is not None
    forked = int(child.stdout.readline())
    with pytest.raises(HeldElsewhere, match="another process works"), held_alone(lock, "works"):
        pass
    child.kill()
    child.wait()
    try:  # also while a process lives that it had forked off
        with held_alone(lock, "works"):
            pass
    finally:
        os.kill(forked, signal.SIGKILL)


def test_a_sweep_is_worked_off_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = tmp_path / "sweep"
    seconds: list[subprocess.CompletedProcess[str]] = []

    def while_another_comes(overrides: Any, on_progress: Any) -> RunStatus:
        if not seconds:  # no training has begun, so that no folder of one is taken
            seconds.append(run([FL_DP, "run", f"resume={sweep}"]))
            assert not list(sweep.glob("run-*"))
        return train_here(overrides, on_progress)

    use(monkeypatch, while_another_comes)
    printed = json_of(
        "run",
        "--json",
        "-m",
        *changed(SMALL, "rounds=1"),
        "seed=0,1",
        "sweep.side_by_side=1",
        f"output_dir={tmp_path}",
        "run_name=sweep",
    )
    assert [each["rounds"] for each in printed["runs"]] == [1, 1]
    [second] = seconds
    assert second.returncode == 2, second.stdout
    assert f"another process works off {sweep}" in " ".join(second.stderr.split())
