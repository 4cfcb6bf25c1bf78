"""Noise at the clients: each message is private before it leaves its node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.grid_exponential import GridExponentialMechanism
from fl_dp.plan import PrivacyPlan
from fl_dp.plan.noise import ClientNoise
from fl_dp.protocol.instruction import NoiseInstruction, RoundInstruction
from fl_dp.updates import Compression, VectorLayout
from fl_dp.updates.clipped_sum import PlainSum
from fl_dp.updates.compression import update_in

from ..exchange import Ask
from ..roster import Unit
from ..selection import Observation
from .base import Mode, Released, observed
from .node_budget import budget_for_nodes


class ClientNoiseMode(Mode):
    """The sum of what clients have clipped and noised themselves, over a public constant.

    Privacy: none of its own; each message is private before it gets here, even against the server.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        noise_multiplier: float,
        layout: VectorLayout,
        origin: NDArray[np.float64],
        instruction: RoundInstruction,
    ) -> None:
        """Prepare a round.

        Args:
            plan: The training's.
            noise_multiplier: What the round is charged as.
            layout: Of the model that is sent.
            origin: That model, flattened.
            instruction: What every client is asked; it encodes its update once the noise is in it.
        """
        noise = client_noise_of(plan, noise_multiplier, instruction.compression)
        super().__init__(layout, replace(instruction, client_noise=noise))
        self._denominator = plan.denominator
        self._total = PlainSum(layout, origin)  # no grid: what arrives needs no exact sum
        self._contributions = 0

    def fold(
        self, content: RecordDict, units: Sequence[Unit], *, server_round: int
    ) -> list[Observation]:
        """Add one reply. See `Mode.fold`."""
        norm = self._total.add(update_in(content, self.instruction.compression, self.layout.size))
        self._contributions += 0.0 < norm < math.inf
        return [observed(units[0], server_round, norm, math.nan)]

    def release(self, rng: SecureRandom, ask: Ask) -> Released:
        """Divide. See `Mode.release`."""
        return Released(
            mean=self._total.total / self._denominator, contributions=self._contributions
        )


def client_noise_of(
    plan: PrivacyPlan, noise_multiplier: float, compression: Compression | None
) -> NoiseInstruction:
    """Return the noise that clients have to add in a round of that noise multiplier."""
    assert isinstance(plan.noise, ClientNoise)  # no other noise is told to clients
    budget = budget_for_nodes(plan)
    return NoiseInstruction(
        scheme=plan.noise.scheme,
        noise_multiplier=noise_multiplier,
        clipping_norm=plan.clipping_norm,
        epsilon=None if budget is None else budget.epsilon,
        delta=None if budget is None else budget.delta,
        neighboring_relation=str(plan.neighboring_relation),
        levels=_levels(plan.noise.scheme, noise_multiplier, plan.clipping_norm, compression),
    )


def _levels(
    scheme: str, noise_multiplier: float, clipping_norm: float, compression: Compression | None
) -> int | None:
    """Return the number of grid points, equal to the encoder's levels; None: the default."""
    if scheme != "exponential" or compression is None or compression.up != "quantize":
        return None
    levels = 1 << compression.bits
    try:
        GridExponentialMechanism(
            noise_multiplier=noise_multiplier, clipping_norm=clipping_norm, levels=levels
        )
    except ValueError:  # too few or too many points for this noise: the default has to do
        return None
    return levels
