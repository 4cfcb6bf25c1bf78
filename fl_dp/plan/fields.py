"""Fields of a plan written without knowing its kind, as settings are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fl_dp.option_errors import IncompatibleOptions

from .plan_base import Plan


def plan_of(kind: type[Plan], values: Mapping[str, Any]) -> Plan:
    """Return a plan of a kind, if all values mean something for it.

    Raises:
        TypeError: A field is missing or of the wrong type.
        ValueError: The kind has no such field, or a value is out of range.
    """
    names = {field.name for field in fields(kind)}
    for name in values:
        if name not in names:
            raise IncompatibleOptions(
                f"{name} means nothing where noise is added {kind.noise_location} ({kind.kind} "
                "plans): leave it out",
                option=name,
            )
    return kind(**values)
