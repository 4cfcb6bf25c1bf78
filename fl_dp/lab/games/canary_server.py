"""The `ServerApp` of an audited training: the main job with canaries, and who watches it.

`WatchedLoop` is `PrivateLoop` that records what an adversary sees of each round; it trains and
charges the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_dp.app.compose import compose_settings
from fl_dp.app.server import output_dir, train
from fl_dp.app.workload import initial_arrays_of
from fl_dp.lab.audit.canaries import Canaries
from fl_dp.lab.audit.correlated_run import WhoseTurn
from fl_dp.lab.audit.whole_run import SeenRound
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE
from fl_dp.strategies import (
    Ask,
    CentralMode,
    Cohort,
    DPFedAvg,
    Mode,
    Observation,
    PrivateLoop,
    Released,
    Unit,
)
from fl_dp.updates import VectorLayout

from .canary_run import CANARIES_FILE, CANARY_METRIC, CanaryRun
from .seen_run import SeenRun, write_seen

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
    write_seen(folder / CANARIES_FILE, seen_by(made[-1].loop, moved))


def seen_by(loop: WatchedLoop, moved: NDArray[np.float64]) -> SeenRun:
    """Return what was seen of a run, and the change of its model."""
    return SeenRun(
        rounds=loop.seen,
        moved=moved,
        indices=loop.indices,
        turn=loop.whose_turn(),
        coefficients=loop.plan.coefficients or (COEFFICIENT_ONE,),
        drawn=np.array(loop.asked, dtype=np.bool_),
        cohorts=np.array(loop.cohorts, dtype=np.int64),
        own=loop.groups() if loop.plan.sampling.own_groups else None,
    )


class WatchedLoop(PrivateLoop):
    """The rounds, and an adversary that sees each release and knows what all others sent.

    Attributes:
        canary_run: Which canaries there are.
        seen: What the adversary saw, a round each.
        indices: Of these rounds, as the ledger counts them.
        asked: Which canaries took part in each of them, as the auditor counts them.
        cohorts: How many units were drawn for each of them.
    """

    canary_run: CanaryRun

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of `PrivateLoop`."""
        super().__init__(*args, **options)
        self.seen: list[SeenRound] = []
        self.indices: list[int] = []
        self.asked: list[NDArray[np.bool_]] = []
        self.cohorts: list[int] = []
        self._first_of: dict[int, int] = {}  # by node
        self._watched: WatchedMode

    def make_mode(self, *given: Any) -> Mode:
        """Return the mode that `PrivateLoop` makes, watched.

        Raises:
            ValueError: If the server does not add the noise.
        """
        made = super().make_mode(*given)
        if not isinstance(made, CentralMode):
            raise ValueError("canary clients are for the server's noise: write privacy=central")
        self._watched = WatchedMode(
            made, self.canary_run.canaries(made.layout.size), self._first_of
        )
        return self._watched

    def _settle(self, released: Released) -> None:
        super()._settle(released)
        self.seen.append(self._watched.saw(released, self.plan.denominator))
        self.indices.append(self._reservation.index or 0)
        self.asked.append(self._watched.asked)
        self.cohorts.append(self._watched.drawn)

    def whose_turn(self) -> WhoseTurn | None:
        """Return the public knowledge of who took part; None with secret coins alone."""
        sampling = self.plan.sampling
        if sampling.visible:
            return WhoseTurn(asked=np.stack(self.asked))
        if not sampling.takes_turns:
            return None
        # Who was never drawn shows noise alone in any turn: in none it would make others' more.
        groups = self.groups()
        unknown = np.flatnonzero(groups < 0)
        groups[unknown] = unknown % sampling.num_groups
        return WhoseTurn(groups=groups, num_groups=sampling.num_groups)

    def groups(self) -> NDArray[np.int64]:
        """Return the public group of each canary, -1 where it is not known."""
        # A node that was never drawn is not known as a canaries' one: no group.
        groups = np.full(self.canary_run.count, -1, dtype=np.int64)
        for node, first in self._first_of.items():
            for number in range(self.plan.hosting.told_apart):
                group = self._participations.group_of(Unit(node, number))
                if group is not None and first + number < self.canary_run.count:
                    groups[first + number] = group
        return groups


class WatchedFedAvg(DPFedAvg):
    """The strategy of a watched run."""

    loop_class = WatchedLoop
    loop: WatchedLoop

    def __init__(self, *args: Any, run: CanaryRun, **options: Any) -> None:
        """Take the arguments of `DPFedAvg`, and the canaries."""
        super().__init__(*args, **options)
        self.loop.canary_run = run


class WatchedMode(Mode):
    """A round that is watched: every call goes on to the round itself.

    Attributes:
        inner: The round.
        canaries: Those of the run.
        asked: Those that were asked, shape `(count,)`, as far as they answered.
        drawn: How many units were drawn.
    """

    def __init__(self, inner: CentralMode, canaries: Canaries, first_of: dict[int, int]) -> None:
        """Watch a round, and note the number of the first canary of each node that hosts some."""
        super().__init__(inner.layout, inner.instruction)
        self.inner = inner
        self.canaries = canaries
        self.asked = np.zeros(canaries.count, dtype=np.bool_)
        self.drawn = 0
        self._first_of = first_of
        self._others: NDArray[np.float64] = np.zeros(inner.layout.size)

    def open(self, cohort: Cohort, ask: Ask) -> None:
        """See `Mode.open`."""
        self.drawn = sum(len(units) for units in cohort.values())
        self.inner.open(cohort, ask)

    def content_for(self, node: int, content: RecordDict) -> RecordDict:
        """See `Mode.content_for`."""
        return self.inner.content_for(node, content)

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one reply, and remember what it added if no canary sent it. See `Mode.fold`."""
        sums = self.inner.sums.updates
        before = sums.total.copy()
        observations = self.inner.fold(content, units, server_round=server_round)
        told = [r[CANARY_METRIC] for r in content.metric_records.values() if CANARY_METRIC in r]
        if not told:
            self._others += sums.total - before  # read again: an update is added when it is read
            return observations
        for unit in units:
            first = self._first_of[unit.node] = int(str(told[0])) - 1
            if first + unit.number < self.canaries.count:
                self.asked[first + unit.number] = True
        return observations

    def release(self, rng: SecureRandom, ask: Ask) -> Released:
        """See `Mode.release`."""
        return self.inner.release(rng, ask)

    @property
    def reads_models(self) -> bool:
        """See `Mode.reads_models`."""
        return self.inner.reads_models

    def reply_bytes(self, model: Any) -> int:
        """See `Mode.reply_bytes`."""
        return self.inner.reply_bytes(model)

    def saw(self, released: Released, denominator: float) -> SeenRound:
        """Return what the release told of each direction."""
        updates = self.inner.sums.bundle.updates
        noisy = released.mean * denominator - self._others * updates.grid
        return SeenRound(
            along=self.canaries.along(noisy) / updates.clipping_norm,
            noise_multiplier=updates.noise_multiplier,
        )
