"""Fields of a plan that somebody wrote without knowing its kind, as settings are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fl_dp.option_errors import IncompatibleOptions

from .plan import Plan


def plan_of(kind: type[Plan], given: Mapping[str, Any]) -> Plan:
    """Return a plan of a kind, where what was given means something for that kind.

    Args:
        kind: Of the plan.
        given: Fields by name, without those that were left out.

    Raises:
        TypeError: If a field is of the wrong type, or missing.
        ValueError: If a kind has no such field, or a value is out of range.
    """
    known = {field.name for field in fields(kind)}
    for name in given:
        if name not in known:
            raise IncompatibleOptions(
                f"{name} means nothing where noise is added {kind.place} ({kind.kind} plans): "
                "leave it out"
            )
    return kind(**given)
