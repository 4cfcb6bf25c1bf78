"""Noise of what a round releases, from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def least_noise(statement: Mapping[str, Any]) -> float | None:
    """Return the noise multiplier of the rounds with the least noise; None without noise.

    Args:
        statement: From JSON.
    """
    of_rounds = statement.get("noise_multipliers")
    return min(of_rounds) if of_rounds else statement.get("noise_multiplier")


def noise_of_mean(
    statement: Mapping[str, Any], *, mode: str, scheme: str, cohort: float
) -> float | None:
    """Return the standard deviation of the noise on a coordinate of the mean update.

    Args:
        statement: From JSON.
        mode: `privacy.mode` of the run.
        scheme: `privacy.scheme` of the run.
        cohort: Expected clients of a round.

    Returns:
        That of the rounds with the least noise; None where it is not Gaussian or is added inside
        clients' training.
    """
    noise = least_noise(statement)
    if noise is None or "denominator" not in statement:
        return None  # of DP-SGD, or none
    on_sum = noise * float(statement["clipping_norm"])
    if mode == "local":
        if scheme != "gaussian":
            return None
        on_sum *= math.sqrt(cohort)  # each message brings its own
    return on_sum / float(statement["denominator"])
