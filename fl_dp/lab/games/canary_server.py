"""The `ServerApp` of an audited training: the main job, with canaries, and watched."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_dp.app.compose import compose_settings
from fl_dp.app.server import output_dir, train
from fl_dp.app.workload import initial_arrays_of
from fl_dp.files import written_whole
from fl_dp.lab.audit.correlated_run import WhoseTurn, seen_with_memory
from fl_dp.lab.audit.whole_run import SeenRound
from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE
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
    moved = layout.flatten(result.arrays) - layout.flatten(first)
    write_seen(folder / CANARIES_FILE, seen_by(made[-1], moved))


@dataclass(frozen=True, kw_only=True, eq=False)
class SeenRun:
    """Everything that a run's releases told.

    Attributes:
        rounds: Every release.
        moved: How far the model moved over all of them, flat.
        indices: Of the rounds.
        turn: What everybody knows of who took part; None: secret coins are all there is.
        coefficients: Of the noise, in units of 2^-12; one where it is independent.
        drawn: Which canaries took part, shape `(rounds, count)`: the auditor's, no adversary's.
        cohorts: How many units were drawn in each round, in the same way.
    """

    rounds: list[SeenRound]
    moved: NDArray[np.float64]
    indices: list[int]
    turn: WhoseTurn | None
    coefficients: tuple[int, ...]
    drawn: NDArray[np.bool_]
    cohorts: NDArray[np.int64]

    def looks(self) -> list[SeenRound]:
        """Return what the releases tell of participations, in the form that is judged.

        Raises:
            ValueError: If a round is missing in the middle.
        """
        if self.turn is None or not self.rounds:
            return self.rounds
        return seen_with_memory(
            self.rounds, self.indices, self.turn, coefficients=self.coefficients
        )


def seen_by(strategy: WatchedFedAvg, moved: NDArray[np.float64]) -> SeenRun:
    """Return what was seen of a strategy's run, which moved the model so far."""
    return SeenRun(
        rounds=strategy.seen,
        moved=moved,
        indices=strategy.indices,
        turn=strategy.whose_turn(),
        coefficients=strategy.plan.noise.coefficients or (COEFFICIENT_ONE,),
        drawn=np.array(strategy.asked, dtype=np.bool_),
        cohorts=np.array(strategy.cohorts, dtype=np.int64),
    )


def write_seen(path: Path, run: SeenRun) -> None:
    """Write what was seen of each round, and how far the model moved over all of them."""
    turn = run.turn
    known: dict[str, Any] = {}
    if turn is not None and turn.asked is not None:
        known = {"asked": turn.asked}
    elif turn is not None and turn.groups is not None:
        known = {"groups": turn.groups, "num_groups": np.array(turn.num_groups)}
    with written_whole(path) as unfinished, unfinished.open("wb") as stream:
        np.savez(
            stream,
            along=np.stack([each.along for each in run.rounds]) if run.rounds else np.empty((0, 0)),
            noise_multiplier=np.array([each.noise_multiplier for each in run.rounds]),
            moved=run.moved,
            indices=np.array(run.indices, dtype=np.int64),
            coefficients=np.array(run.coefficients, dtype=np.int64),
            drawn=run.drawn,
            cohorts=run.cohorts,
            **known,
        )


def read_seen(path: Path) -> SeenRun:
    """Read it back.

    Raises:
        OSError: If it can't be read.
    """
    with np.load(path, allow_pickle=False) as stored:
        multipliers = stored["noise_multiplier"].tolist()
        turn = None
        if "asked" in stored:
            turn = WhoseTurn(asked=stored["asked"])
        elif "groups" in stored:
            turn = WhoseTurn(groups=stored["groups"], num_groups=int(stored["num_groups"]))
        return SeenRun(
            rounds=[
                SeenRound(along=along, noise_multiplier=multiplier)
                for along, multiplier in zip(stored["along"], multipliers, strict=True)
            ],
            moved=stored["moved"],
            indices=stored["indices"].tolist(),
            turn=turn,
            coefficients=tuple(stored["coefficients"].tolist()),
            drawn=stored["drawn"],
            cohorts=stored["cohorts"],
        )
