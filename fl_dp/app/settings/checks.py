"""Fields and checks that several settings share; an error names key, value and what to write.

Whether trackers get a value, and whether tuning may change it, is marked at the field.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import Field, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fl_dp.option_errors import OptionError

from .choices import CHOICES

_TRACKED, _TUNABLE = "tracked", "tunable"

ALL_TRACKED = {_TRACKED: True}
"""Metadata of a group, a class of the library, of which trackers get every value."""


def tracked(default: Any, *, tunable: bool = False) -> Any:
    """Return a field whose value trackers get; they do not get plain fields.

    Never tracked: secrets, folders, addresses, what an owner says of the data (columns, classes,
    means), and what concerns this machine alone.

    Args:
        default: Value of the field.
        tunable: Whether a candidate of a choice may change it: a trial sees it, and no charge
            depends on it.
    """
    return field(default=default, metadata={_TRACKED: True, _TUNABLE: tunable})


def is_tracked(setting: Field[Any]) -> bool:
    """Return whether trackers get the value of a field."""
    return bool(setting.metadata.get(_TRACKED))


def is_tunable(setting: Field[Any]) -> bool:
    """Return whether a candidate of a choice may change a field."""
    return bool(setting.metadata.get(_TUNABLE))


def positive(key: str, value: float | None) -> None:
    """Check that a number is null, or positive and finite."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise OptionError(f"{key} must be positive and finite, got {value}", option=key)


def at_least(key: str, value: int | None, least: int) -> None:
    """Check that a whole number is null or not too small."""
    if value is not None and value < least:
        raise OptionError(f"{key} must be at least {least}, got {value}", option=key)


def fraction(key: str, value: float | None, meaning: str) -> None:
    """Check that a number is null or lies in (0, 1]; `meaning` explains it in the error."""
    if value is not None and not 0.0 < value <= 1.0:
        raise OptionError(f"{key} must lie in (0, 1], got {value}: {meaning}", option=key)


def between_0_and_1(key: str, value: float | None) -> None:
    """Check that a number is null or lies in (0, 1)."""
    if value is not None and not 0.0 < value < 1.0:
        raise OptionError(f"{key} must lie in (0, 1), got {value}", option=key)


def absolute(key: str, path: str | None) -> None:
    """Check that a path is null or absolute: apps do not run where commands are typed."""
    if path is not None and not Path(path).is_absolute():
        raise OptionError(
            f"{key} must be absolute, got '{path}': write the whole path, as in "
            f"{key}=/srv/{Path(path).name}",
            option=key,
        )


def account_name(key: str, name: str | None) -> None:
    """Check that an account is null, a plain name, a whole path or a database URL."""
    if name is None or "://" in name or Path(name).is_absolute():
        return
    if not name.isprintable() or Path(name).name != name:
        raise OptionError(
            f"{key} must be a plain name, a whole path or a database URL, got '{name}'", option=key
        )


def epsilon_and_delta(key: str, values: list[float] | None) -> None:
    """Check that a list is null or holds an epsilon and a delta."""
    if values is None:
        return
    if len(values) != 2 or not (0.0 < values[0] < math.inf and 0.0 < values[1] < 1.0):
        raise OptionError(
            f"{key} must be an epsilon and a delta, like [8, 1e-5], got {values}", option=key
        )


def rises(values: Sequence[float]) -> bool:
    """Tell whether values are two finite numbers, the lower first."""
    return len(values) == 2 and all(map(math.isfinite, values)) and values[0] < values[1]


def ordered_pair(key: str, values: list[float] | None) -> None:
    """Check that a list is null or two finite numbers, the lower first."""
    if values is not None and not rises(values):
        raise OptionError(
            f"{key} must be two numbers, the lower first, like [0, 5], got {values}", option=key
        )


def distinct(key: str, values: list[str] | None, *, least: int) -> None:
    """Check that a list is null or holds `least` names or more, no two alike."""
    if values is not None and (len(values) < least or len(set(values)) < len(values)):
        raise OptionError(
            f"{key} must be at least {least} different names, got {values}", option=key
        )


def choices(group: str, settings: object) -> None:
    """Check that each key of a group with a fixed set of names is null or has one of them."""
    for key, allowed in CHOICES.items():
        key_group, _, name = key.rpartition(".")
        if key_group == group and hasattr(settings, name):
            one_of(key, getattr(settings, name), allowed)


def one_of(key: str, value: str | None, allowed: Sequence[str]) -> None:
    """Check that a name is null or one of a few."""
    if value is not None and value not in allowed:
        nearest = "".join(f": did you mean {n}?" for n in get_close_matches(value, allowed, 1))
        raise OptionError(
            f"{key} must be one of {', '.join(allowed)}, got '{value}'{nearest}", option=key
        )


Positive = Annotated[float, positive]
"""A number that is positive and finite."""
Natural = Annotated[int, partial(at_least, least=0)]
"""A whole number from 0 on."""
Count = Annotated[int, partial(at_least, least=1)]
"""A whole number from 1 on."""
Several = Annotated[int, partial(at_least, least=2)]
"""A whole number from 2 on."""
AbsolutePath = Annotated[str, absolute]
"""A path that starts at the root."""
