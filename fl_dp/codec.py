"""The one form of a value in JSON: an object of the fields of its dataclass.

    >>> encode(CyclicSampling(groups=4, inside=PoissonSampling(sampling_rate=0.5)))
    {'kind': 'cyclic', 'groups': 4, 'inside': {'kind': 'poisson', 'sampling_rate': 0.5}}

An object names its `kind` if its class has one; an enum is its value, a tuple a list. Reading goes
by the types of the fields, so that a stranger's document makes nothing else, and each class checks
itself. What is signed has a form of its own, letter by letter (`fl_dp/secagg/texts.py`).
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, TypeVar, get_args, get_origin

from fl_dp.documents import document, parsed_object

_T = TypeVar("_T")
_UNIONS = (types.UnionType, typing.Union)  # of `X | Y`, and of `Optional[X]`
_LEAVES = {
    str: ("a text", (str,)),
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
}


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form that a type has instead, which is `Annotated` with it.

    Attributes:
        write: From the value to plain JSON values.
        read: Back; it raises what `decode` does, or what `document` makes of an error.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def encode(value: Any) -> Any:
    """Return a value as plain JSON values."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: encode(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [encode(each) for each in value]
    form: type = type(value)
    if not is_dataclass(value):
        return value
    tag = getattr(form, "kind", None)
    written: dict[str, Any] = {} if tag is None else {"kind": tag}
    for name, hint in _hints(form).items():
        write = get_args(hint)[1].write if get_origin(hint) is Annotated else encode
        written[name] = write(getattr(value, name))
    return written


def encode_text(value: object) -> str:
    """Return a value as JSON text."""
    return json.dumps(encode(value))


def decode(kind: Any, written: object, what: str = "") -> Any:
    """Return the value that `encode` wrote.

    Args:
        kind: Its type: a class, or a union of classes that have a `kind` each.
        written: Plain JSON values, of anybody.
        what: It should be, for the error; by default the name of the class in words.

    Raises:
        ValueError: If it is none. The text names fields and no value; the class's own may.
    """
    what = what or _words(kind)
    with document(what):
        return _read(kind, written, what)


def decode_text(kind: type[_T], text: str) -> _T:
    """Return the value that `encode_text` wrote; see `decode`."""
    value: _T = decode(kind, parsed_object(text, _words(kind)))
    return value


def _words(kind: type) -> str:
    return re.sub(r"\B(?=[A-Z])", " ", kind.__name__).lower()


@lru_cache(maxsize=256)
def _hints(kind: type) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields by their names."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name] for each in fields(kind)}


@lru_cache(maxsize=256)
def _required(kind: type) -> frozenset[str]:
    """Return the names of a dataclass's fields without a default."""
    return frozenset(
        each.name
        for each in fields(kind)
        if each.default is MISSING and each.default_factory is MISSING
    )


def _read(hint: Any, written: Any, what: str) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return parts[1].read(written)
    if origin is tuple:
        _require(isinstance(written, list), written, what, "a list")
        return tuple(_read(parts[0], each, f"{what}[{at}]") for at, each in enumerate(written))
    if origin is Mapping:
        _require(isinstance(written, dict), written, what, "an object")
        return {name: _read(parts[1], each, f"{what}.{name:.40}") for name, each in written.items()}
    if origin in _UNIONS:
        return _read_one_of(parts, written, what)
    if is_dataclass(hint):
        return _read_object([hint], written, what)
    if issubclass(hint, Enum):
        values = [each.value for each in hint]
        _require(written in values, written, what, " or ".join(values))
        return hint(written)
    return _read_leaf([hint], written, what)


def _read_one_of(choices: Sequence[Any], written: Any, what: str) -> Any:
    if written is None and types.NoneType in choices:
        return None
    some = [each for each in choices if each is not types.NoneType]
    if all(map(is_dataclass, some)):
        return _read_object(some, written, what)
    if len(some) == 1:
        return _read(some[0], written, what)
    return _read_leaf(some, written, what)


def _read_leaf(choices: Sequence[type], written: Any, what: str) -> Any:
    fits = any(type(written) in _LEAVES[each][1] for each in choices)
    _require(fits, written, what, " or ".join(_LEAVES[each][0] for each in choices))
    return written


def _read_object(choices: Sequence[Any], written: Any, what: str) -> Any:
    _require(isinstance(written, dict), written, what, "an object")
    given = dict(written)
    kinds = {each.kind: each for each in choices if hasattr(each, "kind")}
    choice = known_kind(kinds, given.pop("kind", None), of=what) if kinds else choices[0]
    hints = _hints(choice)
    if unknown := given.keys() - hints.keys():
        raise ValueError(f"{what} has no {min(unknown):.40}: it has {', '.join(hints)}")
    if missing := _required(choice) - given.keys():
        raise ValueError(f"{what} needs {', '.join(sorted(missing))}")
    return choice(
        **{name: _read(hints[name], each, f"{what}.{name}") for name, each in given.items()}
    )


def known_kind(kinds: Mapping[str, _T], kind: object, *, of: str) -> _T:
    """Return what a kind stands for.

    Args:
        kinds: Everything that this version knows, by its name.
        kind: As written down, by anybody.
        of: Names the family for the error, for instance `noise`.

    Raises:
        ValueError: If the kind is unknown: what it is written for can't be read by this version.
    """
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(
            f"{of} of kind {kind!r:.60} is unknown to this version, which knows {', '.join(kinds)}"
        )
    return kinds[kind]


def _require(fits: bool, written: object, what: str, words: str) -> None:
    if not fits:
        raise ValueError(f"{what} must be {words}, got {type(written).__name__}")
