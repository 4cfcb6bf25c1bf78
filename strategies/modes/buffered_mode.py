"""FedBuff sum: stale updates, each clipped, weighted down by staleness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from fl_dp.plan import Plan
from fl_dp.protocol.message_keys import UTILITY_METRIC

from ..selection import Observation
from ..unit_roster import Unit
from .base import numbers_of, single_number
from .central_mode import CentralMode
from .planned import ChargedRound


class BufferedMode(CentralMode):
    """The server's sum of a buffer: each update is relative to the model its unit was sent.

    Privacy: as `CentralMode`. Norms, noise and denominator are those of the release that an update
    enters, whatever model it was made from.
    """

    def __init__(self, plan: Plan, charged: ChargedRound) -> None:
        """Prepare a release. It tries no app: a buffer does not wait for one."""
        super().__init__(plan, replace(charged, untried=False))

    def fold_answer(
        self,
        content: RecordDict,
        unit: Unit,
        *,
        origin: NDArray[np.float64],
        weight: float,
        server_round: int,
    ) -> list[Observation]:
        """Clip one answer and add it, times a public weight in [0, 1].

        `origin` is the model that the unit was sent, flattened, shape `(layout.size,)`.

        Raises:
            RefusedUpdate: If it is no update of this model; then nothing was added.
        """
        measured = numbers_of(content)
        sent = self.update_in(content)
        if not isinstance(sent, np.ndarray):
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite adds nothing
                sent = self.layout.flatten(sent) - origin
        reports = {name: single_number(measured, name) for name in measured}
        norm = self.sums.add(sent, reports, weight=weight)
        return [Observation.of(unit, server_round, norm, single_number(measured, UTILITY_METRIC))]
