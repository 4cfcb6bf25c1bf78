"""An option or a key that a promise does not allow is refused, in one form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from fl_dp.option_errors import IncompatibleOptions

from .fitting import GROUPS, KEYS
from .option import Option
from .promises import PROMISES, PromiseOption


def require_fitting(privacy: PromiseOption, settings: Any) -> None:
    """Refuse an option or a key that a promise does not allow.

    Raises:
        IncompatibleOptions: If there is one; the text says what to write instead.
    """
    for group in GROUPS:
        chosen = str(getattr(settings, group))
        options = getattr(privacy.fitting, group)
        if chosen not in options:
            having = [
                other for other in PROMISES.values() if chosen in getattr(other.fitting, group)
            ]
            instead = f"write {group}={options[0]}{_or(options[1:])}"
            raise _error(privacy, group, chosen, having, instead)
    for key, part in KEYS.items():
        value = reduce(_value, key.split("."), settings)
        if value not in part.unused and key not in privacy.fitting.keys:
            having = [other for other in PROMISES.values() if key in other.fitting.keys]
            raise _error(privacy, key, value, having, "leave it out")


def _value(settings: Any, key: str) -> Any:
    """Return a value; None if the chosen option has no such key."""
    return settings.get(key) if isinstance(settings, Option) else getattr(settings, key)


def _error(
    privacy: PromiseOption,
    option: str,
    value: Any,
    having: Sequence[type[PromiseOption]],
    instead: str,
) -> IncompatibleOptions:
    """Return the error; it advises only promises that trust nobody more, and names others."""
    promised = [other for other in having if other.option != "none"]
    alike = [other.option for other in promised if _is_alike(other, privacy)]
    others = [other.option for other in promised]
    if alike:
        instead += f", or write {_privacy(alike)}"
    elif others:
        instead += f" (another promise has it: {_privacy(others)})"
    text = f"privacy={privacy} has no {option}={value}: {instead}"
    return IncompatibleOptions(text, option=option)


def _is_alike(other: type[PromiseOption], privacy: PromiseOption) -> bool:
    """Tell whether another promise trusts nobody more and protects the same unit."""
    if privacy.option == "none":
        return True
    of_default = type(privacy)  # whatever unit the settings chose
    return other.kind is not None and (other.noised_by, other.unit) == (
        of_default.noised_by,
        of_default.unit,
    )


def _privacy(modes: Sequence[str]) -> str:
    return f"privacy={modes[0]}{_or(modes[1:])}"


def _or(others: Sequence[str]) -> str:
    """Return the alternatives that follow a first one, as text."""
    if not others:
        return ""
    *most, last = others
    return "".join(f", {name}" for name in most) + f" or {last}"
