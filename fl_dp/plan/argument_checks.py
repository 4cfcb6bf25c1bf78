"""Checks of keyword arguments that would otherwise fail far from where they were written.

>>> require_known(["samplig_rate"], ["rounds", "sampling_rate"], of="with_budget")
Traceback (most recent call last):
TypeError: with_budget has no argument 'samplig_rate': did you mean 'sampling_rate'? ...
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from typing import Any

_UNIONS = (types.UnionType, typing.Union)  # of `X | Y`, and of `Optional[X]`
_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "True or False",
    str: "a text",
    type(None): "None",
}


def keywords_of(kind: type) -> set[str]:
    """Return the names that a class's constructor takes, with those it passes on by `**`."""
    names: set[str] = set()
    for each in kind.__mro__:
        if "__init__" not in vars(each):
            continue
        _, *parameters = inspect.signature(vars(each)["__init__"]).parameters.values()
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names |= {each.name for each in parameters if each.kind in by_name}
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
            break
    return names


def require_known(given: Iterable[str], known: Iterable[str], *, of: str) -> None:
    """Refuse a name that is not known.

    Args:
        given: Names as written.
        known: All that are allowed.
        of: What takes them, for the error.

    Raises:
        TypeError: With the nearest right name, and all right names.
    """
    allowed = sorted(known)
    for name in given:
        if name not in allowed:
            near = get_close_matches(name, allowed, n=1, cutoff=0.6)
            guess = f"did you mean '{near[0]}'? It" if near else "it"
            raise TypeError(f"{of} has no argument '{name}': {guess} takes {', '.join(allowed)}")


def require_types(given: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Refuse a value of the wrong type.

    Args:
        given: Values by name.
        hints: Types by name, as `typing.get_type_hints` returns them; a name without one, or with
            a type that can't be checked at run time, passes.

    Raises:
        TypeError: With the name, the value, and what to write.
    """
    for name, value in given.items():
        if name in hints and not fits(value, hints[name]):
            raise TypeError(f"{name} must be {_words(hints[name])}, got {_shown(value)}")


def fits(value: Any, hint: Any) -> bool:
    """Tell whether a value is of a type, as far as that can be checked at run time."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        return any(fits(value, each) for each in parts)
    if origin is tuple and parts[-1] is Ellipsis:
        return isinstance(value, tuple) and all(fits(each, parts[0]) for each in value)
    if origin is tuple:
        whole = isinstance(value, tuple) and len(value) == len(parts)
        return whole and all(map(fits, value, parts))
    if origin is Callable:
        return callable(value)
    if hint in (int, float) and isinstance(value, bool):
        return False  # Python takes True for 1
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint) if isinstance(hint, type) and hint is not Any else True


def _words(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        return " or ".join(_words(each) for each in parts)
    if origin is tuple:
        return f"a tuple of {_words(parts[0])}"
    if origin is Callable:
        return "a function"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(f'{hint.__name__}.{each.name}' for each in hint)}"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _shown(value: Any) -> str:
    return f"{value!r} of type {type(value).__name__}"
