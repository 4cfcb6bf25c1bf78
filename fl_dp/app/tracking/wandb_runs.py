"""Runs at Weights & Biases; offline unless a setting says otherwise.

wandb sync runs/NAME/wandb/offline-run-*
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .tracker import RunStart, Scalar, whole_minute

if TYPE_CHECKING:
    import wandb


class WandbTracker:
    """Writes one run of W&B.

    Offline, rounds are written when the run ends: W&B stores each row's time, and times of rounds
    can tell who took part. A resumed run is written whole.
    """

    def __init__(self, folder: Path, *, project: str, online: bool) -> None:
        """Set the destination; `project` is its name at W&B.

        In the run's `folder` W&B makes `wandb/`. With `online` each round is sent at once.
        """
        self._folder, self._project, self._online = folder, project, online
        self._run: wandb.Run | None = None
        self._rows: list[tuple[int, Mapping[str, float]]] = []
        self._began = 0.0

    def started(self, run: RunStart) -> None:
        """Begin the run; settings and promise are its config."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._began = whole_minute(time.time())
        self._run = wandb.init(
            project=self._project,
            name=run.name,
            group=run.group,
            notes=run.guarantee,
            id=run.identity,
            # Passed here, so that WANDB_MODE of the environment sends nothing.
            mode="online" if self._online else "offline",
            resume="allow" if self._online else None,
            dir=self._folder,
            config={**run.settings, **run.promise},
            reinit="create_new",
            settings=_lean(),
        )
        self._rows = [] if self._online else list(run.before)

    def released(self, server_round: int, values: Mapping[str, float]) -> None:
        """Send a round, or keep it until the end."""
        self._rows.append((server_round, values))
        if self._online:
            self._write()

    def ended(self, state: str, final: Mapping[str, Scalar]) -> None:
        """Write the remaining rounds, and what was spent."""
        self._write()
        run = self._started()
        run.summary.update({"state": state, **final})
        run.finish(exit_code=int(state == "failed"))

    def _write(self) -> None:
        for server_round, values in self._rows:
            # The time of the run's start: W&B would store when each row was written.
            self._started().log({**values, "_timestamp": self._began}, step=server_round)
        self._rows.clear()

    def _started(self) -> wandb.Run:
        if self._run is None:
            raise RuntimeError("the run was not started")
        return self._run


def _lean() -> wandb.Settings:
    """Settings with which W&B stores nothing of machine, user, code or output."""
    import wandb

    nobody = "-"
    return wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        save_code=False,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        host=nobody,
        username=nobody,
        email=nobody,
        program=nobody,
        program_relpath=nobody,
        program_abspath=nobody,
    )
