"""The checks that every mechanism makes of its settings."""

from __future__ import annotations

import math

_SMALLEST = 1e-250  # below it float64 can't scale a vector down to a bound without losing digits


def require_positive(**settings: float) -> None:
    """Refuse settings that are not positive and finite.

    Raises:
        ValueError: If one is not, or is too close to zero for float64; the message has its name.
    """
    for name, value in settings.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}")
        if value < _SMALLEST:
            raise ValueError(f"{name} must be at least {_SMALLEST}, got {value}")
