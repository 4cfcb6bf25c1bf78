"""Models that come with the app."""

from .build import build_model
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
    "factor_of_round",
    "rests_in_turn",
    "train_factor",
]
