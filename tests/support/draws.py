"""A draw to test selections alone: nobody is asked and nothing is charged."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord

from fl_dp.mechanisms import SecureRandom
from fl_dp.strategies import Draw, Unit


def a_draw(num_units: int, **changes: Any) -> Draw:
    """A draw from units on nodes 0, 1, ...; any field can be changed."""
    fields: dict[str, Any] = dict(
        server_round=1,
        roster=[Unit(node) for node in range(num_units)],
        num_units=num_units,
        rng=SecureRandom(),
        model=ArrayRecord({"w": Array(np.zeros(2))}),
        config=ConfigRecord(),
        ledger=None,
        ask=lambda messages: iter(()),
    )
    return Draw(**(fields | changes))
