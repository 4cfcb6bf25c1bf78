"""Arguments of public classes and functions: each is checked by its type, before anything else.

Equivalent values are converted: a NumPy number or a tensor without dimensions to that number, a
list or an array of one dimension to a tuple, `"zero-out"` to its `NeighboringRelation`.

    >>> require_known(["samplig_rate"], ["rounds", "sampling_rate"], of="with_budget")
    Traceback (most recent call last):
    ArgumentError: with_budget has no argument 'samplig_rate': did you mean 'sampling_rate'? ...
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from functools import cache, wraps
from typing import Any, ParamSpec, Self, TypeVar

from fl_dp.option_errors import ArgumentError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_UNIONS = (types.UnionType, typing.Union)  # of `X | Y`, and of `Optional[X]`
_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "True or False",
    str: "a text",
    type(None): "None",
}


class Arguments:
    """A frozen dataclass that refuses unknown names and values of a wrong type.

    A subclass's own `__post_init__` calls this one first.
    """

    def __new__(cls, *positional: object, **named: object) -> Self:
        """Refuse a name that the class does not have.

        Raises:
            ArgumentError: With the nearest right name.
        """
        kind: type = cls
        require_known(named, keywords_of(kind), of=kind.__name__)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Convert each field by its type.

        Raises:
            ArgumentError: A value has the wrong type.
        """
        read_fields(self)


def read_fields(instance: object, *, but: Collection[str] = ()) -> None:
    """Convert a frozen dataclass's fields in its `__post_init__`, except `but`, checked elsewhere.

    Raises:
        ArgumentError: A value has the wrong type.
    """
    fields = {name: value for name, value in vars(instance).items() if name not in but}
    kind: type = type(instance)
    for name, value in read_arguments(fields, hints_of(kind)).items():
        if value is not fields[name]:
            object.__setattr__(instance, name, value)


def read_arguments(arguments: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments converted by type; `hints` are as of `typing.get_type_hints`.

    A name without a type, or with one that can't be checked at run time, passes.

    Raises:
        ArgumentError: With the name, the value, and what to write.
    """
    read = dict(arguments)
    for name, value in arguments.items():
        hint = hints.get(name, Any)
        read[name] = _converted(value, hint)
        if not fits(read[name], hint):
            raise ArgumentError(f"{name} must be {_words(hint)}, got {_shown(value)}", option=name)
    return read


def with_read_arguments(
    *but: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Return a decorator that applies `read_arguments`; the function itself checks `but`."""

    def reading(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        names = tuple(inspect.signature(function).parameters)

        @wraps(function)
        def call(*positional: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
            hints = {name: hint for name, hint in hints_of(function).items() if name not in but}
            first = read_arguments(dict(zip(names, positional, strict=False)), hints)
            others = read_arguments(named, hints)
            return function(*first.values(), *positional[len(first) :], **others)  # type: ignore[arg-type]  # the same arguments, converted

        return call

    return reading


@cache
def hints_of(signed: Any) -> dict[str, Any]:
    """Types of a class's fields or a function's arguments, by name."""
    return typing.get_type_hints(signed)


@cache
def keywords_of(kind: type) -> frozenset[str]:
    """Names that a constructor takes, with those it passes on by `**`."""
    names: set[str] = set()
    for parent in kind.__mro__:
        if "__init__" not in vars(parent):
            continue
        _, *parameters = inspect.signature(vars(parent)["__init__"]).parameters.values()
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names |= {parameter.name for parameter in parameters if parameter.kind in by_name}
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return frozenset(names)


def require_known(names: Iterable[str], allowed: Iterable[str], *, of: str) -> None:
    """Refuse a name that is not allowed; `of` is the function or class, for the error.

    Raises:
        ArgumentError: With the nearest right name, and all right names.
    """
    choices = sorted(allowed)
    for name in names:
        if name not in choices:
            near = get_close_matches(name, choices, n=1, cutoff=0.6)
            guess = f"did you mean '{near[0]}'? It" if near else "it"
            raise ArgumentError(
                f"{of} has no argument '{name}': {guess} takes {', '.join(choices)}", option=name
            )


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as far as run time can tell."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        return any(fits(value, part) for part in parts)
    if origin is tuple and parts[-1] is Ellipsis:
        return isinstance(value, tuple) and all(fits(item, parts[0]) for item in value)
    if origin is tuple:
        whole = isinstance(value, tuple) and len(value) == len(parts)
        return whole and all(map(fits, value, parts))
    if origin is Callable:
        return callable(value)
    if hint in (int, float) and isinstance(value, bool):
        return False  # Python takes True for 1
    if hint is float:
        return isinstance(value, int | float)
    if not isinstance(hint, type) or hint is Any:
        return True
    return isinstance(value, hint)


def _converted(value: Any, hint: Any) -> Any:
    """A value converted to a type; unchanged where that can't be done."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        # All are converted first: a conversion that raises does so whatever fits.
        readings = [(_converted(value, part), part) for part in parts]
        for reading, part in readings:
            if fits(reading, part):
                return reading
        return value
    if origin is tuple and getattr(value, "ndim", None) == 1:
        value = value.tolist()
    if origin is tuple and isinstance(value, list | tuple):
        items = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        if len(items) == len(value):
            return tuple(map(_converted, value, items))
    if hint in (int, float, bool) and getattr(value, "shape", None) == ():
        return value.item()  # a scalar of NumPy, or a tensor without dimensions
    if isinstance(hint, type) and issubclass(hint, Enum) and isinstance(value, str):
        return next((member for member in hint if member.value == value), value)
    return value


def _words(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        return " or ".join(_words(part) for part in parts)
    if origin is tuple:
        return f"a tuple of {_words(parts[0])}"
    if origin is Callable:
        return "a function"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(repr(member.value) for member in hint)}"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _shown(value: Any) -> str:
    kind = type(value).__name__
    if hasattr(value, "shape"):
        return f"a {kind} of shape {tuple(value.shape)}"  # no data in an error
    return f"{' '.join(repr(value).split()):.80} of type {kind}"
