"""Noise at the clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from flwr.app import RecordDict

from fl_dp.accounting import OwnRatesSampling
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.grid_exponential import GridExponentialMechanism
from fl_dp.plan import LocalPlan
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction, applied_noise
from fl_dp.protocol.introduction import Ability
from fl_dp.protocol.message_keys import NOISED_KEY
from fl_dp.updates import Compression, RefusedUpdate
from fl_dp.updates.clipped_sum import PlainSum

from ..message_exchange import Ask
from ..selection import Observation
from ..unit_roster import Unit
from .base import Released
from .node_budget import budget_for_nodes
from .planned import ChargedRound, PlannedMode


class ClientNoiseMode(PlannedMode[LocalPlan]):
    """Sum of what clients clipped and noised themselves, over a public constant.

    If groups of clients have noise of their own, each message is weighted by the inverse of its
    noise's variance: groups are public, and so are these weights.

    Privacy: none of its own; each message is private before it arrives, even against the server.
    """

    def __init__(self, plan: LocalPlan, charged: ChargedRound) -> None:
        """Prepare a round; each group may have its own noise."""
        super().__init__(plan, charged)
        instruction = charged.instruction

        def of_group(group: int) -> RoundInstruction:
            noise = client_noise_of(
                plan, charged.noise_multiplier, instruction.encoding, group=group
            )
            return replace(instruction, client_noise=noise)

        law = plan.sampling
        self._groups = law.own_groups if isinstance(law, OwnRatesSampling) else ()
        self._instructions = [of_group(group) for group in range(len(self._groups) or 1)]
        self.instruction = self._instructions[0]
        # No grid: what arrives needs no exact sum.
        self._total = PlainSum(charged.layout, charged.origin)
        self._contributions = 0

    @classmethod
    def needs(cls, plan: LocalPlan) -> set[Ability]:
        """Also the ability to add noise. See `PlannedMode.needs`."""
        return super().needs(plan) | {Ability.NOISE}

    @classmethod
    def rehearsal_instruction(cls, plan: LocalPlan, asked: RoundInstruction) -> RoundInstruction:
        """Noise that clients are to add."""
        # The first group's noise, with the largest budget: no node knows its group yet.
        noise = client_noise_of(plan, plan.noise_multipliers[0], asked.encoding, group=0)
        if noise.epsilon is not None:
            noise = replace(noise, epsilon=plan.budget.epsilon)
        return RoundInstruction(server_round=1, client_noise=noise)

    def content_for(self, node: int, content: RecordDict) -> RecordDict:
        """One client's message, with its group's noise. See `Mode.content_for`."""
        return self.with_instruction(content, self._instructions[self._group(Unit(node))])

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one reply, if it says that it has this round's noise. See `Mode.fold`."""
        group = self._group(units[0])
        asked = applied_noise(self._instructions[group])
        if content.config_records.get(NOISED_KEY) != asked:
            raise RefusedUpdate(
                "it does not say that it has the noise of this round: a client app is "
                "numpy_client_app(...) or noised_client_app()"
            )
        update = self.update_in(content)
        weight = self._groups[group].weight if self._groups else 1.0
        norm = self._total.add(update, weight=weight)
        self._contributions += 0.0 < norm < math.inf
        return [Observation.of(units[0], server_round, norm, math.nan)]

    def _group(self, unit: Unit) -> int:
        if not self._groups:
            return 0
        # A unit without a group is never asked; if it were, the first group has the most noise.
        return self._charged.group_of(unit) or 0

    def release(self, rng: SecureRandom, ask: Ask) -> Released:
        """Divide by the public constant."""
        return Released(
            mean=self._total.total / self._plan.denominator, contributions=self._contributions
        )


def client_noise_of(
    plan: LocalPlan, noise_multiplier: float, encoding: Compression, *, group: int
) -> NoiseInstruction:
    """The noise that clients add in a round, before they encode their updates.

    `group` is used only if groups have budgets of their own.
    """
    budget = budget_for_nodes(plan)
    if isinstance(plan.sampling, OwnRatesSampling):
        own = plan.sampling.own_groups[group]
        noise_multiplier /= own.scale
        if budget is not None:
            budget = replace(budget, epsilon=own.budget)
    epsilon = delta = None
    if budget is not None:
        epsilon, delta = budget.epsilon, budget.delta
    return NoiseInstruction(
        scheme=plan.scheme,
        noise_multiplier=noise_multiplier,
        clipping_norm=plan.clipping_norm,
        epsilon=epsilon,
        delta=delta,
        neighboring_relation=str(plan.neighboring_relation),
        levels=_levels(plan.scheme, noise_multiplier, plan.clipping_norm, encoding),
    )


def _levels(
    scheme: str, noise_multiplier: float, clipping_norm: float, encoding: Compression
) -> int | None:
    """Number of grid points, equal to the encoder's levels; None: the default."""
    if scheme != "exponential" or encoding.up != "quantize":
        return None
    levels = 1 << encoding.bits
    try:
        GridExponentialMechanism(
            noise_multiplier=noise_multiplier, clipping_norm=clipping_norm, levels=levels
        )
    except ValueError:  # too few or too many points for this noise: the default has to do
        return None
    return levels
