"""Two processes in one run's folder: one trains, and the other ends before anything is spent."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from command_line import call, changed, json_of, said_on_stderr, train_here, use
from flwr.app import Message
from ledger_files import start_python
from local_grid import LocalGrid, answer_with_app
from processes import Forked

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


def by_another_process(work: Callable[[], object]) -> Any:
    """Return what work comes to in a process of its own."""
    return json.loads(Forked(lambda: print(json.dumps(work()))).rest())


def commanded(folder: Path) -> tuple[int, str]:
    """Return the exit status of the command, and what it says."""
    result = call("run", f"resume={folder}")
    return result.exit_code, said_on_stderr(result)


def asked_of_train(folder: Path) -> str:
    with pytest.raises(HeldElsewhere) as refused:
        train(cast(Any, None), compose_settings([f"resume={folder}"]), run_id="2")
    return str(refused.value)


def test_of_two_in_one_folder_the_second_ends_before_anything_is_spent(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    settings = compose_settings([*SMALL, f"output_dir={tmp_path}", "run_name=run"])
    nodes = settings.simulation.num_nodes(settings.task.num_clients)
    answer = answer_with_app(client_app, nodes)
    seconds: list[Any] = []

    def while_others_come(message: Message, partition: int) -> Message | None:
        if message.metadata.message_type == "train" and not seconds:
            before = files_of(folder)
            seconds.append(by_another_process(lambda: commanded(folder.path)))
            seconds.append(by_another_process(lambda: asked_of_train(folder.path)))
            assert files_of(folder) == before
        return answer(message, partition)

    train(LocalGrid(while_others_come, nodes), settings, run_id="3")
    (status, by_command), by_train = seconds
    assert status == 2
    said = f"another process trains in {folder.path}: wait until it has ended, or stop it"
    assert said in by_command and said in by_train
    assert "Traceback" not in by_command
    with SpentLedger.read(folder.ledger) as ledger:
        assert ledger.rounds_spent == 3  # all that the plan pays for
    assert [line["round"] for line in folder.read_metrics()] == [0, 1, 2, 3]


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
    seconds: list[Any] = []

    def while_another_comes(overrides: Any, on_progress: Any) -> RunStatus:
        if not seconds:  # no training has begun, so that no folder of one is taken
            seconds.append(by_another_process(lambda: commanded(sweep)))
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
    [(status, said)] = seconds
    assert status == 2
    assert f"another process works off {sweep}" in said
