"""Guarantee that a statement's JSON holds, whoever wrote the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_dp.guarantee import Guarantee

from .sentences import UNITS

_UNIT_NAMES = {sentence: name for name, sentence in UNITS.items()}


def stated_guarantee(statement: Mapping[str, Any]) -> Guarantee:
    """Return the guarantee of a statement; what is missing or no such value is None."""
    bounds, so_far = statement.get("epsilon"), statement.get("epsilon_so_far")
    budget, quoted = statement.get("budget"), str(statement.get("quoted"))
    spent = [bound for bound in _items(so_far).values() if isinstance(bound, int | float)]
    guarantee = Guarantee.read(
        {
            "epsilon": _items(bounds).get(quoted),
            "spent": min(spent, default=None),
            "budget": _items(budget).get("epsilon"),
            "delta": statement.get("delta"),
            "unit": _UNIT_NAMES.get(str(statement.get("unit"))),
            "neighbours": statement.get("neighboring_relation"),
            "against": statement.get("against"),
            "insecure": statement.get("insecure"),
        }
    )
    assert guarantee is not None  # it is an object
    return guarantee


def _items(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
