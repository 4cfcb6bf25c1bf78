"""`DPFedAvg` with somebody who watches every round: it trains, charges and releases as ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from fl_dp.audit.canaries import Canaries
from fl_dp.audit.whole_run import SeenRound
from fl_dp.mechanisms import SecureRandom
from fl_dp.strategies import (
    Ask,
    CentralMode,
    Cohort,
    DPFedAvg,
    Mode,
    Observation,
    Released,
    Unit,
)

from .canary_run import CANARY_METRIC, CanaryRun


class WatchedFedAvg(DPFedAvg):
    """The strategy, and an adversary that sees each release and knows what all others sent.

    Attributes:
        run: Which canaries there are.
        seen: What the adversary saw, a round each.
    """

    def __init__(self, *args: Any, run: CanaryRun, **options: Any) -> None:
        """Take the arguments of `DPFedAvg`, and the canaries."""
        super().__init__(*args, **options)
        self.run = run
        self.seen: list[SeenRound] = []
        self._watched: WatchedMode

    def make_mode(self, *given: Any) -> Mode:
        """Return the mode that `DPFedAvg` makes, watched.

        Raises:
            ValueError: If the server does not add the noise.
        """
        made = super().make_mode(*given)
        if not isinstance(made, CentralMode):
            raise ValueError("canary clients are for the server's noise: write privacy=central")
        self._watched = WatchedMode(made, self.run.canaries(made.layout.size))
        return self._watched

    def _settle(self, released: Released) -> None:
        super()._settle(released)
        self.seen.append(self._watched.saw(released, self.plan.denominator))


class WatchedMode(Mode):
    """A round that is watched: every call goes on to the round itself.

    Attributes:
        inner: The round.
        canaries: Those of the run.
    """

    def __init__(self, inner: CentralMode, canaries: Canaries) -> None:
        """Watch a round."""
        super().__init__(inner.layout, inner.instruction)
        self.inner = inner
        self.canaries = canaries
        self._others: NDArray[np.float64] = np.zeros(inner.layout.size)

    def open(self, cohort: Cohort, ask: Ask) -> None:
        """See `Mode.open`."""
        self.inner.open(cohort, ask)

    def content_for(self, node: int, content: RecordDict) -> RecordDict:
        """See `Mode.content_for`."""
        return self.inner.content_for(node, content)

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one reply, and remember what it added if no canary sent it. See `Mode.fold`."""
        total = self.inner.sums.updates.total
        before = total.copy()
        observations = self.inner.fold(content, units, server_round=server_round)
        if not any(CANARY_METRIC in record for record in content.metric_records.values()):
            self._others += total - before
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
