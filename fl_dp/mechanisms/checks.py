"""Checks that mechanisms, and what is built on them, make of their settings."""

from __future__ import annotations

import math

from fl_dp.option_errors import OptionError

_SMALLEST = 1e-250  # below it float64 can't scale a vector down to a bound without losing digits


def require_positive(**settings: float) -> None:
    """Refuse settings that are not positive and finite.

    Raises:
        OptionError: If one is not, or is too close to zero for float64; the message has its name.
    """
    for name, value in settings.items():
        if not (math.isfinite(value) and value > 0):
            raise OptionError(f"{{{name}}} must be positive and finite, got {value}")
        if value < _SMALLEST:
            raise OptionError(f"{{{name}}} must be at least {_SMALLEST}, got {value}")


def require_count(**settings: int) -> None:
    """Refuse settings that are not integers from 1 on.

    Raises:
        OptionError: If one is not; the message has its name.
    """
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{{{name}}} must be an integer of at least 1, got {value}")


def require_rate(**settings: float) -> None:
    """Refuse settings that are not in (0, 1], where 1 means everybody.

    Raises:
        OptionError: If one is not; the message has its name.
    """
    for name, value in settings.items():
        if not 0.0 < value <= 1.0:
            raise OptionError(f"{{{name}}} must lie in (0, 1], got {value}")


def require_probability(**settings: float) -> None:
    """Refuse settings that are not in (0, 1), both ends excluded, such as a delta.

    Raises:
        OptionError: If one is not; the message has its name.
    """
    for name, value in settings.items():
        if not 0.0 < value < 1.0:
            raise OptionError(f"{{{name}}} must lie in (0, 1), got {value}")
