"""The closed list of what trackers get: no other name is ever sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fl_dp.tasks.public_scores import NUMBERS

from .tracker import Scalar

_OF_CLIENTS = "clients/"

ROUND = frozenset(
    {
        "test_loss",
        "test_accuracy",
        *(f"test_{name}" for name in NUMBERS),
        "epsilon",
        "expected_cohort",
        "bytes_down",
        "bytes_up",
        "next_clipping_norm",
        f"{_OF_CLIENTS}loss",
        f"{_OF_CLIENTS}accuracy",
    }
)
"""Values of a round: measured on public rows, released under its charge, or public before it."""

PROMISE = frozenset(
    f"promise/{name}"
    for name in (
        "epsilon",
        "delta",
        "unit",
        "neighboring_relation",
        "noise_multiplier",
        "clipping_norm",
        "expected_cohort",
        "insecure",
        "record_epsilon",
        "record_delta",
        "record_noise_multiplier",
        "guarantee",
        "record_guarantee",
    )
)
"""Privacy facts of a run that begins: its budget, and what its noise was planned for."""

FINAL = frozenset(
    f"final/{name}"
    for name in (
        "rounds",
        "epsilon",
        "delta",
        "record_epsilon",
        "record_delta",
        "guarantee",
        "record_guarantee",
    )
)
"""Privacy facts of a run that has ended, as its statement quotes them."""


def round_values(
    line: Mapping[str, Any], client_metrics: Iterable[str] = ()
) -> tuple[int, dict[str, float]]:
    """A round's number, and its values that trackers get.

    Args:
        line: A line of `metrics.jsonl`, or like one: values by name, clients' metrics in `clients`.
        client_metrics: Clients' metrics that the plan releases, besides loss and accuracy.

    Raises:
        ValueError: The line has no round.
    """
    server_round = line.get("round")
    if not isinstance(server_round, int) or isinstance(server_round, bool):
        raise ValueError(f"a round must be a whole number, got {server_round!r}")
    clients = line.get("clients")
    flat = {str(name): value for name, value in line.items() if name != "clients"}
    if isinstance(clients, Mapping):
        flat |= {f"{_OF_CLIENTS}{name}": value for name, value in clients.items()}
    allowed = ROUND | {f"{_OF_CLIENTS}{name}" for name in client_metrics}
    return server_round, {
        name: float(value)
        for name, value in flat.items()
        if name in allowed and _is_finite_number(value)
    }


def only(allowed: frozenset[str], facts: Mapping[str, Any]) -> dict[str, Scalar]:
    """Facts with allowed names, whose values are text, booleans or finite numbers."""
    return {
        name: value
        for name, value in facts.items()
        if name in allowed and (isinstance(value, str | bool) or _is_finite_number(value))
    }


def _is_finite_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < 2.0**1000
        and math.isfinite(value)
    )
