"""The table from each kind of plan to the way its rounds are made.

A way lasts for a training and makes a mode for each round. A new kind of plan needs a line of the
table, and a way unless an existing one fits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.ledger import Reservation
from fl_dp.mechanisms import NoiseStream, SecureRandom
from fl_dp.plan import (
    BufferedPlan,
    CentralPlan,
    CorrelatedPlan,
    DistributedPlan,
    DistributedRecordsPlan,
    GroupedPlan,
    LocalPlan,
    Plan,
    SharedNoisePlan,
)
from fl_dp.protocol.identity import Ability
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.secagg import Roster as SecureRoster
from fl_dp.secagg import SecureSumFailed
from fl_dp.updates import Compression, VectorLayout

from ..exchange import Ask
from ..roster import Unit, nodes_of
from ..secure import secure_sums_of
from .base import Mode, RoundFailed
from .buffered import BufferedMode
from .central import CentralMode
from .client_noise import ClientNoiseMode, client_noise_of
from .node_budget import price_of_a_sum
from .secure_sum import SecureSumMode


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A round that is charged, before anybody is asked; other fields as in `CentralMode`.

    Attributes:
        reservation: The round's charge, on disk in the ledger.
        group_of: Returns a unit's group, where there are groups.
    """

    reservation: Reservation
    layout: VectorLayout
    origin: NDArray[np.float64]
    instruction: RoundInstruction
    clipping_norms: tuple[float, ...]
    stream: NoiseStream
    rng: SecureRandom
    untried: bool
    group_of: Callable[[Unit], int | None]

    @property
    def multiplier(self) -> float:
        """The charged noise multiplier, on disk; the plan's may differ."""
        multiplier = self.reservation.noise_multiplier
        assert multiplier is not None  # every round has one
        return multiplier

    @property
    def index(self) -> int:
        """The round's number in its noise stream."""
        index = self.reservation.index
        assert index is not None  # every round has one
        return index


class Way(ABC):
    """How a kind of plan makes its rounds, from the first rehearsal to the last sum."""

    def __init__(self, plan: Plan, roster: SecureRoster | None) -> None:
        """Prepare a training.

        Raises:
            ValueError: As `secure_sums_of`.
        """
        self._hosting = plan.hosting
        self.sums = secure_sums_of(plan, roster)

    @abstractmethod
    def mode(self, opened: Opened) -> Mode:
        """The mode of a round."""

    def needs(self) -> set[Ability]:
        """Abilities that every client's app needs."""
        hosting = self._hosting
        if hosting.of_records:
            return {Ability.RECORDS}
        needs: set[Ability] = set()
        if hosting.units_per_node > 1:
            needs.add(Ability.UNITS)
        if hosting.sums_at_nodes:
            needs.add(Ability.SUMS)
        return needs

    def rehearsal_instruction(self, compression: Compression | None) -> RoundInstruction | None:
        """The instruction that owners may refuse at the rehearsal, if any."""
        return None

    def rehearse(self, nodes: Sequence[int], ask: Ask, *, timeout: float) -> None:
        """Prepare nodes that have introduced themselves; `timeout` is in seconds.

        Raises:
            SecureSumFailed: If they can't work together; nothing was charged.
        """
        return

    def eligible(self, roster: Sequence[Unit]) -> Sequence[Unit]:
        """The units that may take part in the next round.

        Raises:
            RoundFailed: If too few are left.
        """
        return roster

    def end(self, ask: Ask) -> None:
        """Let nodes forget the training, now over."""
        return


class ServerWay(Way):
    """The server adds noise to a cohort's sums."""

    mode_class: type[CentralMode] = CentralMode

    def __init__(self, plan: Plan, roster: SecureRoster | None) -> None:
        """Prepare a training. See `Way`."""
        super().__init__(plan, roster)
        self._plan = plan

    def mode(self, opened: Opened) -> CentralMode:
        """Sum of a cohort, or of a buffer."""
        return self.mode_class(
            self._plan,
            opened.multiplier,
            opened.layout,
            opened.origin,
            opened.instruction,
            clipping_norms=opened.clipping_norms,
            stream=opened.stream,
            index=opened.index,
            rng=opened.rng,
            untried=opened.untried,
        )


class BufferedWay(ServerWay):
    """The server adds noise to the sum of the next answers."""

    mode_class = BufferedMode

    def mode(self, opened: Opened) -> CentralMode:
        """Sum of a buffer."""
        return super().mode(replace(opened, untried=False))  # a buffer does not wait for an app


class LocalWay(Way):
    """Each client adds noise to its own update."""

    def __init__(self, plan: LocalPlan, roster: SecureRoster | None) -> None:
        """Prepare a training. See `Way`."""
        super().__init__(plan, roster)
        self._plan = plan

    def mode(self, opened: Opened) -> Mode:
        """Sum of updates already private."""
        return ClientNoiseMode(
            self._plan,
            opened.multiplier,
            opened.layout,
            opened.origin,
            opened.instruction,
            group_of=opened.group_of,
        )

    def needs(self) -> set[Ability]:
        """Also the ability to add noise."""
        return super().needs() | {Ability.NOISE}

    def rehearsal_instruction(self, compression: Compression | None) -> RoundInstruction:
        """Noise that clients are to add."""
        plan = self._plan
        # The first group's noise, with the largest budget: no node knows its group yet.
        noise = client_noise_of(plan, plan.noise_multipliers[0], compression, group=0)
        if noise.epsilon is not None:
            noise = replace(noise, epsilon=plan.budget.epsilon)
        return RoundInstruction(server_round=1, client_noise=noise)


class SecureWay(Way):
    """Each node adds a share of the noise, and a committee opens the masked sum."""

    def __init__(self, plan: SharedNoisePlan, roster: SecureRoster | None) -> None:
        """Prepare a training. See `Way`."""
        super().__init__(plan, roster)
        assert self.sums is not None  # of this kind of plan
        self._plan, self._sums = plan, self.sums

    def mode(self, opened: Opened) -> Mode:
        """The masked sum."""
        return SecureSumMode(
            self._plan,
            opened.multiplier,
            opened.layout,
            opened.instruction,
            clipping_norms=opened.clipping_norms,
            sums=self._sums,
            reservation=opened.reservation,
        )

    def rehearsal_instruction(self, compression: Compression | None) -> RoundInstruction:
        """Content of sums and their price."""
        return RoundInstruction(
            server_round=1,
            of_records=self._plan.hosting.of_records,
            bundle=self._plan.bundle(self._plan.noise_multipliers[0]),
            secure_sum=price_of_a_sum(self._plan),
        )

    def rehearse(self, nodes: Sequence[int], ask: Ask, *, timeout: float) -> None:
        """Let nodes make their keys. See `Way.rehearse`."""
        shares = self._plan.noise.shares
        self._sums.set_up(nodes, ask, timeout=timeout)
        self._sums.require_enough(nodes, shares.least)
        self._sums.require_committee(shares)

    def eligible(self, roster: Sequence[Unit]) -> Sequence[Unit]:
        """All units but those of nodes that lied or were late. See `Way.eligible`."""
        nodes, least = nodes_of(roster), self._plan.noise.shares.least
        try:
            self._sums.require_left(nodes, least)
        except SecureSumFailed as failed:
            raise RoundFailed(str(failed)) from failed
        allowed = set(self._sums.allowed(nodes, least))
        return [unit for unit in roster if unit.node in allowed]

    def end(self, ask: Ask) -> None:
        """Let nodes forget their keys."""
        self._sums.forget(ask)


_WAYS: dict[type[Plan], Callable[[Any, SecureRoster | None], Way]] = {
    CentralPlan: ServerWay,
    CorrelatedPlan: ServerWay,
    GroupedPlan: ServerWay,
    BufferedPlan: BufferedWay,
    LocalPlan: LocalWay,
    DistributedPlan: SecureWay,
    DistributedRecordsPlan: SecureWay,
}


def way_of(plan: Plan, roster: SecureRoster | None) -> Way:
    """The way a plan's rounds are made.

    Raises:
        ValueError: As `secure_sums_of`.
    """
    return _WAYS[type(plan)](plan, roster)
