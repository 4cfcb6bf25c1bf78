"""The mode of a kind of plan: made of the plan and a charged round, and nothing else.

Before the first round it says what nodes need for it, and what their owners may refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fl_dp.ledger import Reservation
from fl_dp.mechanisms import NoiseStream, SecureRandom, WhiteStream
from fl_dp.plan import Plan
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.protocol.introduction import Ability
from fl_dp.updates import VectorLayout

from ..secure import SecureSums
from ..unit_roster import Unit
from .base import Mode

_Plan = TypeVar("_Plan", bound=Plan)


@dataclass(frozen=True, kw_only=True)
class ChargedRound:
    """A round whose charge is on disk, before anybody is asked.

    Attributes:
        reservation: The round's charge in the ledger.
        layout: Layout of the model that is sent.
        origin: That model, flattened, float64, shape `(layout.size,)`.
        instruction: What every client is asked, in any mode.
        clipping_norms: Those of this round.
        stream: Source of the noise on the sum of updates, where the server adds it.
        rng: Draws that noise while replies are awaited; None: at the release.
        untried: Whether the nodes' app could not be rehearsed: this round tests it, its count has
            less noise, and its updates more.
        group_of: Returns a unit's group, where there are groups.
        sums: The training's secure sums, where nodes share the noise.
    """

    reservation: Reservation
    layout: VectorLayout
    origin: NDArray[np.float64]
    instruction: RoundInstruction
    clipping_norms: tuple[float, ...]
    stream: NoiseStream = field(default_factory=WhiteStream)
    rng: SecureRandom | None = None
    untried: bool = False
    group_of: Callable[[Unit], int | None] = lambda unit: None
    sums: SecureSums | None = None

    @property
    def noise_multiplier(self) -> float:
        """The charged noise multiplier, on disk; the plan's may differ."""
        multiplier = self.reservation.noise_multiplier
        assert multiplier is not None  # every round has one
        return multiplier

    @property
    def index(self) -> int:
        """The round's number in the ledger and in its noise stream."""
        index = self.reservation.index
        assert index is not None  # every round has one
        return index


class PlannedMode(Mode, Generic[_Plan]):
    """A round of a plan."""

    def __init__(self, plan: _Plan, charged: ChargedRound) -> None:
        """Prepare a round; a mode adds its own needs to `instruction`."""
        super().__init__(charged.layout, charged.instruction)
        self._plan = plan
        self._charged = charged

    @classmethod
    def needs(cls, plan: _Plan) -> set[Ability]:
        """Abilities that every client's app needs."""
        hosting = plan.hosting
        if hosting.of_records:
            return {Ability.PERSONS if plan.unit == "person" else Ability.RECORDS}
        needs: set[Ability] = set()
        if hosting.max_units > 1:
            needs.add(Ability.UNITS)
        if hosting.sums_at_nodes:
            needs.add(Ability.SUMS)
        return needs

    @classmethod
    def rehearsal_instruction(cls, plan: _Plan, asked: RoundInstruction) -> RoundInstruction | None:
        """The instruction that owners may refuse at the rehearsal, if any.

        `asked` is what the strategy asks of every client in any mode.
        """
        return None
