"""Guarantee that a statement's JSON holds, whoever wrote the file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fl_dp.accounting import NeighboringRelation
from fl_dp.guarantee import Against, Guarantee

from .sentences import UNITS

_UNIT_NAMES = {sentence: name for name, sentence in UNITS.items()}


def stated_guarantee(statement: Mapping[str, Any]) -> Guarantee:
    """Return the guarantee of a statement; what is missing or no such value is None."""
    quoted, so_far = statement.get("quoted"), _bounds(statement.get("epsilon_so_far"))
    budget, relation = statement.get("budget"), statement.get("neighboring_relation")
    against = statement.get("against")
    return Guarantee(
        epsilon=_bounds(statement.get("epsilon")).get(str(quoted)),
        spent=min(so_far.values(), default=None),
        budget=_number(budget.get("epsilon")) if isinstance(budget, Mapping) else None,
        delta=_number(statement.get("delta")),
        unit=_UNIT_NAMES.get(str(statement.get("unit"))),
        neighbours=relation if relation in list(NeighboringRelation) else None,
        against=Against(against) if against in list(Against) else None,
        insecure=statement.get("insecure") is True,
    )


def _bounds(bounds: object) -> dict[str, float]:
    if not isinstance(bounds, Mapping):
        return {}
    read = {str(name): _number(bound) for name, bound in bounds.items()}
    return {name: bound for name, bound in read.items() if bound is not None}


def _number(value: object) -> float | None:
    """A finite number of at least 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        finite = float(value)
    except OverflowError:
        return None
    return finite if math.isfinite(finite) and finite >= 0.0 else None
