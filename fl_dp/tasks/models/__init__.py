"""Models that come with the app."""

from .build import build_model, distinct_state, get_arrays, set_arrays
from .low_rank import (
    LowRankLinear,
    add_low_rank,
    factor_of_round,
    rests_in_turn,
    train_factor,
)

__all__ = [
    "LowRankLinear",
    "add_low_rank",
    "build_model",
    "distinct_state",
    "factor_of_round",
    "get_arrays",
    "rests_in_turn",
    "set_arrays",
    "train_factor",
]
