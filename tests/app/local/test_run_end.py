"""A run on Flower's engine ends when its ServerApp has returned, whatever Flower still does."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp

from fl_dp.app.local import launch
from fl_dp.app.local.flower_runs import RunStatus
from fl_dp.app.local.launch import LocalSuperLink
from fl_dp.app.local.run_end import announced
from fl_dp.app.local.superlink import FOLDER_VARIABLE, RETURNED
from fl_dp.app.settings import Settings

CONTEXT = Context(1, 0, {}, RecordDict(), {})
GRID: Any = None  # no node is asked


def served_by(app: ServerApp, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    announced(app)(GRID, CONTEXT)


def test_a_server_app_that_returns_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = ServerApp()
    seen = []

    @app.main()
    def main(grid: Any, context: Context) -> None:
        seen.append((grid, context, (tmp_path / RETURNED).exists()))

    served_by(app, tmp_path, monkeypatch)
    assert seen == [(GRID, CONTEXT, False)]
    assert (tmp_path / RETURNED).exists()


def test_a_server_app_that_fails_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Context) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        served_by(app, tmp_path, monkeypatch)
    assert not (tmp_path / RETURNED).exists()


def engine_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *scripts: str) -> LocalSuperLink:
    """An engine whose runs are these scripts instead of Flower's commands."""
    link = LocalSuperLink()
    link._app, link._environment = tmp_path / "fl-dp-run", {}
    monkeypatch.setattr(link, "wait", lambda: None)
    waiting = iter(scripts)
    popen = subprocess.Popen

    def started(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return popen([sys.executable, "-c", next(waiting), str(tmp_path)], **options)

    monkeypatch.setattr(subprocess, "Popen", started)
    return link


RETURNS = f"""
import pathlib, sys
print("Successfully started run 17", flush=True)
(pathlib.Path(sys.argv[1]) / "{RETURNED}").touch()
"""
STAYS = RETURNS + "sys.stdin.close(); import signal; signal.pause()"
ENDS_LATER = (
    RETURNS
    + """
import time
time.sleep(0.5)
(pathlib.Path(sys.argv[1]) / "gone").touch()
"""
)
FAILS = "print('Successfully started run 17')"


@pytest.mark.timeout(120)
def test_a_run_ends_with_its_server_app_and_flower_s_command_with_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = engine_of(monkeypatch, tmp_path, STAYS)
    assert link.run(Settings(), [], lambda: None).succeeded
    command = link._command
    assert command is not None
    assert command.poll() is None  # Flower is still at work
    monkeypatch.setattr(launch, "stop_with_descendants", lambda process: None)
    link._process = command
    monkeypatch.setattr(link, "_folder", mock.Mock(), raising=False)
    link._stop()
    assert command.poll() is not None


@pytest.mark.timeout(120)
def test_the_next_run_waits_for_flower_s_end_of_the_one_before_and_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = engine_of(monkeypatch, tmp_path, ENDS_LATER, FAILS)
    failed = RunStatus(status="finished:failed", details="")
    monkeypatch.setattr(link, "_status", lambda run: failed)
    assert link.run(Settings(), [], lambda: None).succeeded
    assert link.run(Settings(), [], lambda: None) == failed  # not the first one's end
    assert (tmp_path / "gone").exists()


@pytest.mark.timeout(120)
def test_what_its_starter_raises_ends_flower_s_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    link = engine_of(monkeypatch, tmp_path, "import signal; signal.pause()")
    with pytest.raises(KeyboardInterrupt):
        link.run(Settings(), [], stop)
    assert link._command is not None
    assert link._command.wait() == -signal.SIGTERM


def test_ray_starts_no_workers_that_flower_can_t_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments: list[dict[str, str]] = []

    def not_started(*_: Any, env: dict[str, str], **__: Any) -> None:
        environments.append(env)
        raise ProcessLookupError("stop")

    monkeypatch.setattr(subprocess, "Popen", not_started)
    with pytest.raises(ProcessLookupError), LocalSuperLink():
        pass
    assert environments[0]["RAY_prestart_worker_first_driver"] == "0"
