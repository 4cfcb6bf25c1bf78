"""The `ServerApp` of an audited training: the main job, with canaries, and watched."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_dp.app.compose import compose_settings
from fl_dp.app.server import output_dir, train
from fl_dp.app.workload import initial_arrays_of
from fl_dp.audit.whole_run import SeenRound
from fl_dp.files import written_whole
from fl_dp.strategies import DPFedAvg
from fl_dp.updates import VectorLayout

from .canary_run import CANARIES_FILE, CanaryRun
from .watched import WatchedFedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as `fl_dp.server_app` does, and write what the canaries' auditor saw."""
    settings = compose_settings(shlex.split(str(context.run_config["hydra-overrides"])))
    run = CanaryRun.of(context.run_config)
    made: list[WatchedFedAvg] = []

    def watched(*args: Any, **options: Any) -> DPFedAvg:
        made.append(WatchedFedAvg(*args, run=run, **options))
        return made[-1]

    result = train(grid, settings, run_id=str(context.run_id), make_strategy=watched)
    first = initial_arrays_of(settings)
    layout = VectorLayout.of(first)
    folder = output_dir(settings) / (settings.run_name or f"flwr-{context.run_id}")
    write_seen(
        folder / CANARIES_FILE,
        made[-1].seen,
        moved=layout.flatten(result.arrays) - layout.flatten(first),
    )


def write_seen(path: Path, seen: list[SeenRound], *, moved: NDArray[np.float64]) -> None:
    """Write what was seen of each round, and how far the model moved over all of them."""
    with written_whole(path) as unfinished, unfinished.open("wb") as stream:
        np.savez(
            stream,
            along=np.stack([each.along for each in seen]) if seen else np.empty((0, 0)),
            noise_multiplier=np.array([each.noise_multiplier for each in seen]),
            moved=moved,
        )


def read_seen(path: Path) -> tuple[list[SeenRound], NDArray[np.float64]]:
    """Read it back.

    Raises:
        OSError: If it can't be read.
    """
    with np.load(path, allow_pickle=False) as stored:
        multipliers = stored["noise_multiplier"].tolist()
        rounds = [
            SeenRound(along=along, noise_multiplier=multiplier)
            for along, multiplier in zip(stored["along"], multipliers, strict=True)
        ]
        return rounds, stored["moved"]
