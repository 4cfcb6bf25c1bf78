"""The command line called in this process, with a stand-in for Flower."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from app_trainings import grid_of
from click.testing import Result
from typer.testing import CliRunner

from fl_dp.app.compose import compose_settings
from fl_dp.app.local.flower_runs import RunStatus
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.commands.app import app
from fl_dp.commands.extras import has_wing


def call(*arguments: str) -> Result:
    """Call the command line in this process."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def json_of(*arguments: str) -> Any:
    """The one JSON document that a successful call prints."""
    result = call(*arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def changed(base: Sequence[str], *overrides: str) -> list[str]:
    """A list of overrides with some replaced: a key may be written only once."""
    later = {text.partition("=")[0] for text in overrides}
    return [*(text for text in base if text.partition("=")[0] not in later), *overrides]


def said_on_stderr(result: Result) -> str:
    return " ".join(result.stderr.split())


ENGINES = ("fl_dp.app.local.launch.LocalSuperLink", "fl_dp.app.local.one_process.OneProcess")


class FakeSuperLink:
    """Stands for Flower; `how` says what becomes of a run."""

    def __init__(self, how: Callable[..., Any]) -> None:
        self.how = how
        self.given: list[tuple[Any, Any]] = []
        self.machines: list[Any] = []

    def __call__(self, *_: Any, machine: Any = None, **__: Any) -> FakeSuperLink:
        self.machines.append(machine)
        return self

    def __enter__(self) -> FakeSuperLink:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def run(self, settings: Any, overrides: Any, on_progress: Any) -> Any:
        self.given.append((settings, overrides))
        return self.how(overrides, on_progress)


def use(
    monkeypatch: pytest.MonkeyPatch, how: Callable[..., Any], *, draws: bool = False
) -> FakeSuperLink:
    """Put a stand-in for Flower in place, and draw no curves unless `draws`: they take longer."""
    if not draws and has_wing("viewer"):
        monkeypatch.setattr("fl_dp.commands.ended_runs.plot_curves", lambda *_: False)
    link = FakeSuperLink(how)
    for engine in ENGINES:
        monkeypatch.setattr(engine, link)
    return link


def train_here(overrides: Any, on_progress: Any) -> RunStatus:
    """Do in this process what the ServerApp does."""
    settings = compose_settings(overrides)
    resumed = None if settings.resume is None else RunFolder(Path(settings.resume))
    of_run = settings if resumed is None else resumed.read_settings()
    train(grid_of(of_run), settings, run_id="1")
    on_progress()
    return RunStatus(status="finished:completed", details="")
