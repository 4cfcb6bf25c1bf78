"""Fields of settings: what trackers may be told, and what may be tuned, stands at the field."""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any

_TOLD, _TUNABLE = "told", "tunable"

ALL_TOLD = {_TOLD: True}
"""Metadata of a group of which trackers may be told every value: a class of the library's own."""


def told(default: Any, *, tunable: bool = False) -> Any:
    """Return a field whose value trackers may be told; a plain field is told to nobody.

    Never secrets, folders and addresses, what an owner of data says of it (its columns, classes and
    means), or what concerns this machine alone.

    Args:
        default: Value of the field.
        tunable: Whether a candidate of a choice may change it: a trial sees it, and no charge
            depends on it.
    """
    return field(default=default, metadata={_TOLD: True, _TUNABLE: tunable})


def is_told(each: Field[Any]) -> bool:
    """Return whether trackers may be told the value of a field."""
    return bool(each.metadata.get(_TOLD))


def is_tunable(each: Field[Any]) -> bool:
    """Return whether a candidate of a choice may change a field."""
    return bool(each.metadata.get(_TUNABLE))
