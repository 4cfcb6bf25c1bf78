"""The one form of a value in JSON: an object of the fields of its dataclass.

    >>> encode(CyclicSampling(groups=4, inside=PoissonSampling(sampling_rate=0.5)))
    {'kind': 'cyclic', 'groups': 4, 'inside': {'kind': 'poisson', 'sampling_rate': 0.5}}

An object names its class's `kind`, if any; an enum is its value, a tuple a list. Field types
direct the reading: a stranger's document makes nothing else. Each class checks itself. Signed
texts have their own form, letter by letter (`fl_dp/secagg/texts.py`).
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
class JSONForm:
    """Another JSON form of a type, which is `Annotated` with it.

    Attributes:
        write: Maps the value to plain JSON values.
        read: Maps them back. It raises what `decode` does, or what `document` makes an error of.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def encode(value: Any) -> Any:
    """A value as plain JSON values."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
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
    """A value as JSON text."""
    return json.dumps(encode(value))


def decode(kind: Any, written: object, name: str = "") -> Any:
    """Read a value that `encode` wrote.

    Args:
        kind: A class, or a union of classes that each have a `kind`.
        written: Plain JSON values from anybody.
        name: The value's name in errors; by default the class's name in words.

    Raises:
        ValueError: `written` is no such value. The text names fields, no values; the class's own
            text may.
    """
    name = name or _words(kind)
    with document(name):
        return _read(kind, written, name)


def decode_text(kind: type[_T], text: str) -> _T:
    """Read a value that `encode_text` wrote; see `decode`."""
    value: _T = decode(kind, parsed_object(text, _words(kind)))
    return value


def _words(kind: type) -> str:
    return re.sub(r"\B(?=[A-Z])", " ", kind.__name__).lower()


@lru_cache(maxsize=256)
def _hints(kind: type) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


@lru_cache(maxsize=256)
def _required(kind: type) -> frozenset[str]:
    names = set()
    for field in fields(kind):
        if field.default is MISSING and field.default_factory is MISSING:
            names.add(field.name)
    return frozenset(names)


def _read(hint: Any, written: Any, name: str) -> Any:
    """Read a value; `name` is its path in errors, such as `plan.cohort[2]`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return parts[1].read(written)
    if origin is tuple:
        _require(isinstance(written, list), written, name, "a list")
        numbered = enumerate(written)
        return tuple(_read(parts[0], item, f"{name}[{index}]") for index, item in numbered)
    if origin is Mapping:
        _require(isinstance(written, dict), written, name, "an object")
        items = written.items()
        return {key: _read(parts[1], item, f"{name}.{key:.40}") for key, item in items}
    if origin in _UNIONS:
        return _read_one_of(parts, written, name)
    if is_dataclass(hint):
        return _read_object([hint], written, name)
    if issubclass(hint, Enum):
        values = [member.value for member in hint]
        _require(written in values, written, name, " or ".join(values))
        return hint(written)
    return _read_leaf([hint], written, name)


def _read_one_of(choices: Sequence[Any], written: Any, name: str) -> Any:
    if written is None and types.NoneType in choices:
        return None
    others = [choice for choice in choices if choice is not types.NoneType]
    if all(map(is_dataclass, others)):
        return _read_object(others, written, name)
    if len(others) == 1:
        return _read(others[0], written, name)
    return _read_leaf(others, written, name)


def _read_leaf(choices: Sequence[type], written: Any, name: str) -> Any:
    fits = any(type(written) in _LEAVES[choice][1] for choice in choices)
    _require(fits, written, name, " or ".join(_LEAVES[choice][0] for choice in choices))
    return written


def _read_object(choices: Sequence[Any], written: Any, name: str) -> Any:
    _require(isinstance(written, dict), written, name, "an object")
    entries = dict(written)
    kinds = {choice.kind: choice for choice in choices if hasattr(choice, "kind")}
    choice = choices[0]
    if kinds:
        choice = known_kind(kinds, entries.pop("kind", None), of=name)
    hints = _hints(choice)
    if unknown := entries.keys() - hints.keys():
        raise ValueError(f"{name} has no {min(unknown):.40}: it has {', '.join(hints)}")
    if missing := _required(choice) - entries.keys():
        raise ValueError(f"{name} needs {', '.join(sorted(missing))}")
    arguments = {}
    for field, item in entries.items():
        arguments[field] = _read(hints[field], item, f"{name}.{field}")
    return choice(**arguments)


def known_kind(kinds: Mapping[str, _T], kind: object, *, of: str) -> _T:
    """The entry of a kind that anybody wrote; `of` is its family in the error, e.g. `noise`.

    Raises:
        ValueError: The kind is unknown: this version can't read what it stands for.
    """
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(
            f"{of} of kind {kind!r:.60} is unknown to this version, which knows {', '.join(kinds)}"
        )
    return kinds[kind]


def _require(fits: bool, written: object, name: str, words: str) -> None:
    if not fits:
        raise ValueError(f"{name} must be {words}, got {type(written).__name__}")
