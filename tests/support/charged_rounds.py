"""A charged round without a ledger, for tests of a single mode."""

from __future__ import annotations

import numpy as np
from fl_dp.strategies.modes import ChargedRound

from fl_dp.ledger import Reservation
from fl_dp.protocol.instruction import RoundInstruction
from fl_dp.updates import VectorLayout


def charged_round(layout: VectorLayout, *, noise_multiplier: float) -> ChargedRound:
    """The first round of a model of zeros, with a clipping norm of 1."""
    return ChargedRound(
        reservation=Reservation(
            sequence=1, what="round 1", noise_multiplier=noise_multiplier, index=0
        ),
        layout=layout,
        origin=np.zeros(layout.size),
        instruction=RoundInstruction(server_round=1),
        clipping_norms=(1.0,),
    )
