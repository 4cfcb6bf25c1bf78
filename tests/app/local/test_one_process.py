"""`simulation.engine=in_process`: a training in one process, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl_dp.app.compose import compose_settings
from fl_dp.app.local import one_process
from fl_dp.app.local.engines import engine
from fl_dp.app.local.launch import App
from fl_dp.app.local.one_process import OneProcess
from fl_dp.app.local.processes import descendants
from fl_dp.app.run_folder import RunFolder

SMALL = ("rounds=1", "task.num_clients=6", "simulation.engine=in_process")


def nothing() -> None:
    """Take note of nothing."""


@pytest.mark.timeout(300)
def test_nodes_train_charge_their_ledgers_and_the_run_is_complete(tmp_path: Path) -> None:
    # Each node charges for itself, and a training without Flower's engine passes for a simulation.
    overrides = [
        *SMALL,
        "privacy=local",
        "selection=public",
        "selection.participation_cap=1",
        f"output_dir={tmp_path}",
        "run_name=small",
    ]
    progress = []
    with engine("in_process") as started:
        status = started.run(compose_settings(overrides), overrides, lambda: progress.append(1))
    assert status.succeeded, status.details
    assert progress
    folder = RunFolder(tmp_path / "small")
    assert [line["round"] for line in folder.read_metrics()] == [0, 1]
    assert folder.read_statement()["rounds"] == 1
    asked = list(folder.node_ledgers.glob("node-*.db"))
    assert 1 <= len(asked) <= 6


def test_a_training_that_fails_says_why() -> None:
    broken = OneProcess(App(server="fl_dp.there_is_no_such_module"))
    status = broken.run(compose_settings(SMALL), SMALL, nothing)
    assert not status.succeeded
    assert "No module named 'fl_dp.there_is_no_such_module'" in status.details


def test_a_process_that_is_killed_is_a_failed_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_process, "__name__", "fl_dp.there_is_no_such_module")
    status = OneProcess().run(compose_settings(SMALL), SMALL, nothing)
    assert not status.succeeded
    assert "ended with status 1" in status.details


def test_stopping_a_training_leaves_no_process(tmp_path: Path) -> None:
    before = set(descendants(os.getpid()))  # of other tests
    seen: list[set[int]] = []

    def stop() -> None:
        seen.append(set(descendants(os.getpid())) - before)
        raise KeyboardInterrupt

    overrides = [*SMALL, f"output_dir={tmp_path}", "rounds=10000"]
    with pytest.raises(KeyboardInterrupt):
        OneProcess().run(compose_settings(overrides), overrides, stop)
    (started,) = seen
    assert started
    assert not started & set(descendants(os.getpid()))


def waiting_in(folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir()
    modules = ["fl_dp.app.local.one_process", "fl_dp.server_app", "fl_dp.app.task_client"]
    command = [sys.executable, "-m", *modules, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


@pytest.mark.timeout(120)
def test_a_process_that_waits_ends_when_whoever_started_it_is_gone(tmp_path: Path) -> None:
    process = waiting_in(tmp_path / "temporary")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    assert not (tmp_path / "temporary").exists()


def test_a_process_that_no_training_has_used_is_stopped() -> None:
    before = set(descendants(os.getpid()))
    with OneProcess():
        started = set(descendants(os.getpid())) - before
        assert started
    assert not started & set(descendants(os.getpid()))


@pytest.mark.timeout(120)
def test_a_training_ends_when_whoever_started_it_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    overrides = f"rounds=100000 task.num_clients=6 privacy.noise_multiplier=1 output_dir={tmp_path}"
    asked = {
        "nodes": 6,
        "threads": 1,
        "config": {"hydra-overrides": overrides},
    }
    process = waiting_in(folder)
    assert process.stdin is not None
    process.stdin.write(json.dumps(asked).encode() + b"\n")
    process.stdin.close()
    assert process.wait(timeout=60) == 1
    assert not folder.exists()  # nobody else is left to take it away


@pytest.mark.parametrize(("share", "hidden"), [(0.0, True), (0.25, False)])
def test_nodes_see_a_gpu_only_if_they_are_given_a_share(share: float, hidden: bool) -> None:
    assert (one_process._environment(share).get("CUDA_VISIBLE_DEVICES") == "") == hidden
