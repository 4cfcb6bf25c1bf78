"""The `ServerApp` of an audited training: the main job with canaries, and its observer.

`WatchedLoop` records what an adversary sees; it trains and charges as `PrivateLoop` does.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_dp.accounting import CyclicSampling, OwnRatesSampling
from fl_dp.app.compose import compose_settings
from fl_dp.app.server import output_dir, train
from fl_dp.app.workload import initial_arrays_of
from fl_dp.lab.audit.canaries import Canaries
from fl_dp.lab.audit.correlated_run import PublicTurns
from fl_dp.lab.audit.whole_run import ObservedRound
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
from .observed_run import ObservedRun, write_observed_run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as `fl_dp.server_app` does, and write what the auditor saw."""
    settings = compose_settings(shlex.split(str(context.run_config["hydra-overrides"])))
    run = CanaryRun.of(context.run_config)
    strategies: list[WatchedFedAvg] = []

    def watched(*args: Any, **options: Any) -> DPFedAvg:
        strategies.append(WatchedFedAvg(*args, run=run, **options))
        return strategies[-1]

    result = train(grid, settings, run_id=str(context.run_id), make_strategy=watched)
    first = initial_arrays_of(settings)
    layout = VectorLayout.of(first)
    folder = output_dir(settings) / (settings.run_name or f"flwr-{context.run_id}")
    moved = layout.flatten(result.arrays) - layout.flatten(first)
    write_observed_run(folder / CANARIES_FILE, observed_run(strategies[-1].loop, moved))


def observed_run(loop: WatchedLoop, moved: NDArray[np.float64]) -> ObservedRun:
    """A run's observations, with its model's change, flat."""
    law = loop.plan.sampling
    return ObservedRun(
        rounds=loop.observed,
        moved=moved,
        indices=loop.indices,
        turns=loop.public_turns(),
        coefficients=loop.plan.coefficients or (COEFFICIENT_ONE,),
        drawn=np.array(loop.asked, dtype=np.bool_),
        cohorts=np.array(loop.cohorts, dtype=np.int64),
        budget_groups=loop.groups() if isinstance(law, OwnRatesSampling) else None,
    )


class WatchedLoop(PrivateLoop):
    """The rounds, and an adversary that sees each release and knows what all others sent.

    Attributes:
        observed: What the adversary saw in each round.
        indices: Each round's index in the ledger.
        asked: Which canaries took part in each round, for the auditor.
        cohorts: Number of drawn units of each round.
    """

    canary_run: CanaryRun

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of `PrivateLoop`."""
        super().__init__(*args, **options)
        self.observed: list[ObservedRound] = []
        self.indices: list[int] = []
        self.asked: list[NDArray[np.bool_]] = []
        self.cohorts: list[int] = []
        self._first_of: dict[int, int] = {}  # by node
        self._watched: WatchedMode

    def make_mode(self, *args: Any) -> Mode:
        """`PrivateLoop`'s mode, watched.

        Raises:
            ValueError: If the server does not add the noise.
        """
        mode = super().make_mode(*args)
        if not isinstance(mode, CentralMode):
            raise ValueError("canary clients are for the server's noise: write privacy=central")
        canaries = self.canary_run.canaries(mode.layout.size)
        self._watched = WatchedMode(mode, canaries, self._first_of)
        return self._watched

    def _settle(self, released: Released) -> None:
        super()._settle(released)
        self.observed.append(self._watched.observation(released, self.plan.denominator))
        self.indices.append(self._reservation.index or 0)
        self.asked.append(self._watched.asked)
        self.cohorts.append(self._watched.drawn)

    def public_turns(self) -> PublicTurns | None:
        """Return what is public of who took part; None with secret coins alone."""
        sampling = self.plan.sampling
        if sampling.visible:
            return PublicTurns(asked=np.stack(self.asked))
        if not isinstance(sampling, CyclicSampling):
            return None
        # A canary that was never drawn shows noise alone, in any turn: without one, the others
        # would seem to be drawn more often.
        groups = self.groups()
        unknown = np.flatnonzero(groups < 0)
        groups[unknown] = unknown % sampling.num_groups
        return PublicTurns(groups=groups, num_groups=sampling.num_groups)

    def groups(self) -> NDArray[np.int64]:
        """Each canary's public group, -1 where unknown."""
        # A node that was never drawn has not reported its canaries: they have no group.
        groups = np.full(self.canary_run.count, -1, dtype=np.int64)
        for node, first in self._first_of.items():
            for number in range(self.plan.hosting.distinct_units):
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
    """A watched round: every call goes on to `inner`.

    Attributes:
        asked: Which canaries were asked and answered, shape `(count,)`.
        drawn: Number of drawn units.
    """

    def __init__(self, inner: CentralMode, canaries: Canaries, first_of: dict[int, int]) -> None:
        """Watch a round; `first_of` receives the first canary of each node that hosts some."""
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
        """Add one reply; remember its sum if no canary sent it. See `Mode.fold`."""
        sums = self.inner.sums.updates
        before = sums.total.copy()
        observations = self.inner.fold(content, units, server_round=server_round)
        records = content.metric_records.values()
        marks = [record[CANARY_METRIC] for record in records if CANARY_METRIC in record]
        if not marks:
            self._others += sums.total - before  # `total` adds pending updates when it is read
            return observations
        for unit in units:
            first = self._first_of[unit.node] = int(str(marks[0])) - 1
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

    def observation(self, released: Released, denominator: float) -> ObservedRound:
        """Return what the release showed along each direction."""
        updates = self.inner.sums.bundle.updates
        noisy = released.mean * denominator - self._others * updates.grid
        return ObservedRound(
            along=self.canaries.along(noisy) / updates.clipping_norm,
            noise_multiplier=updates.noise_multiplier,
        )
