"""Sums whose parts nobody sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, Error, MessageType, RecordDict
from numpy.typing import NDArray

from fl_dp.mechanisms import SecureRandom
from fl_dp.plan import SharedNoisePlan
from fl_dp.protocol.failures import kind_in
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.secagg import SecureSumFailed
from fl_dp.secagg.masks import packed_bytes

from ..message_exchange import Ask
from ..secure import OneSum, Summed
from ..selection import Observation
from ..unit_roster import Unit
from .base import Cohort, Released, RoundFailed, coin_rate
from .node_budget import price_of_a_sum
from .planned import ChargedRound, PlannedMode
from .scalars import released_by

_UNKNOWN_KEYS = "Refused directory"  # of a node whose store of keys is gone, among others
_LATE = "Refused late"


class SecureSumMode(PlannedMode[SharedNoisePlan]):
    """Each node masks its message, with a share of the noise in it; a committee opens the sum.

    Privacy: the sum is as private as one Gaussian of the round's noise multiplier, for one unit,
    against the server and the plan's colluding nodes, who see nothing else that depends on data.
    """

    def __init__(self, plan: SharedNoisePlan, charged: ChargedRound) -> None:
        """Prepare a round."""
        assert charged.sums is not None  # of this kind of plan
        super().__init__(plan, charged)
        noise = plan.noise
        self._shared = plan.shared_bundle(
            charged.noise_multiplier,
            size=charged.layout.size,
            clipping_norms=charged.clipping_norms,
        )
        rate = coin_rate(plan)
        # Equal for all nodes: a list of units would distinguish their messages.
        self.instruction = replace(
            charged.instruction,
            bundle=self._shared.bundle,
            max_units=plan.hosting.max_units,
            of_records=plan.hosting.of_records,
            sampling_rate=1.0 if rate is None else rate,
            secure_sum=price_of_a_sum(plan),
        )
        summed = Summed(
            purpose=MessageType.TRAIN,
            share=self._shared.share,
            bits=self._shared.bits,
            sampling_rate=rate,
            units_in_sum=noise.units_in_sum,
        )
        self._sums, self._asked = charged.sums, list[int]()
        self._least, self._colluding = noise.shares.least, noise.shares.colluding_members
        # The number is larger than that of any earlier sum of this training.
        self._sum = OneSum(self._sums, noise, summed, number=charged.reservation.sequence)

    @classmethod
    def rehearsal_instruction(
        cls, plan: SharedNoisePlan, asked: RoundInstruction
    ) -> RoundInstruction:
        """Content of sums and their price."""
        return RoundInstruction(
            server_round=1,
            of_records=plan.hosting.of_records,
            bundle=plan.bundle(plan.noise_multipliers[0]),
            secure_sum=price_of_a_sum(plan),
        )

    @property
    def reads_models(self) -> bool:
        """False: replies are masked."""
        return False

    def reply_bytes(self, model: ArrayRecord) -> int:
        """Bytes of a masked message, without its seeds' shares."""
        return packed_bytes(self._shared.bits, self._shared.share.size)

    def open(self, cohort: Cohort, ask: Ask) -> None:
        """Let all nodes know each other's keys. See `Mode.open`."""
        self._asked = list(cohort)
        try:
            self._sum.open(cohort, ask)
        except SecureSumFailed as failed:
            raise RoundFailed(str(failed)) from failed

    def content_for(self, node: int, content: RecordDict) -> RecordDict:
        """Bind all that clients are sent into the sum's terms."""
        return self._sum.content_for(self.with_instruction(content, self.instruction))

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one masked message, which reveals nothing of its units. See `Mode.fold`."""
        self._sum.fold(units[0].node, content)
        return []

    def failed(self, node: int, error: Error) -> None:
        """Re-admit a node that lost its keys, and exclude a late one."""
        kind = kind_in(error.reason)
        if kind == _UNKNOWN_KEYS:
            self._sums.let_back(node)
        elif kind == _LATE:
            self._sums.note_late(node)

    def release(self, rng: SecureRandom, ask: Ask) -> Released:
        """Let the committee open the sum, with the nodes' noise. See `Mode.release`."""
        try:
            updates, *scalars = self._sum.total(ask)
        except SecureSumFailed as failed:
            progress = self._sums.excludes_liars(self._asked, self._least)
            excused = self._colluding if progress else 0
            raise RoundFailed(str(failed), excused=excused) from failed
        mean: NDArray[np.float64] = updates / self._plan.denominator
        sums = [float(segment[0]) for segment in scalars]
        released = released_by(self._plan, self._shared.bundle, mean, sums)
        if self._shared.share.rotated:
            # The cut of a rotated sum moves the count by more than its noise: it proves nothing.
            return replace(released, contributions=None)
        return released
