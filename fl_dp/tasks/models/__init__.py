"""Models that come with the app."""

from .build import build_model
from .low_rank import (
    LowRankLinear,
    add_low_rank,
)

__all__ = [
    "LowRankLinear",
    "add_low_rank",
    "build_model",
]
