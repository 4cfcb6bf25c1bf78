"""No noise, no clipping: for comparison, and for clients that protect records themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from fl_dp.mechanisms import SecureRandom
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.message_keys import UTILITY_METRIC
from fl_dp.updates import VectorLayout
from fl_dp.updates.clipped_sum import PlainSum

from ..message_exchange import Ask
from ..selection import Observation
from ..unit_roster import Unit
from .base import Mode, Released, numbers_of, single_number


class UnprotectedMode(Mode):
    """Flower's own mean, weighted by clients' reports. Nothing is private here."""

    def __init__(
        self,
        layout: VectorLayout,
        origin: NDArray[np.float64],
        instruction: RoundInstruction,
        *,
        weighted_by: str,
    ) -> None:
        """Prepare a round; metric `weighted_by` is a reply's weight, 1 if missing."""
        super().__init__(layout, instruction)
        self._total = PlainSum(layout, origin)
        self._weighted_by = weighted_by
        self._weight = 0.0
        self._contributions = 0

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one reply. See `Mode.fold`."""
        measured = numbers_of(content)
        weight = single_number(measured, self._weighted_by, missing=1.0)
        unit = self.update_in(content)
        norm = self._total.add(unit, weight=weight)
        if math.isfinite(norm):
            self._weight += weight
            self._contributions += norm * weight > 0.0
        return [
            Observation.of(units[0], server_round, norm, single_number(measured, UTILITY_METRIC))
        ]

    def release(self, rng: SecureRandom, ask: Ask) -> Released:
        """Divide by the weights; nothing moves if nobody replied."""
        return Released(
            mean=self._total.total / (self._weight or 1.0), contributions=self._contributions
        )
