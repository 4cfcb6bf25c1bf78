"""Every key of the settings: its default, what it may be, and its help.

All of it is read from the dataclasses of `fl_dp.app.settings` and their docstrings, so that `fl-dp
config`, the errors and docs/configuration.md can't disagree with what is checked.

    >>> all_keys()["privacy.epsilon"].default
    8.0
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from itertools import takewhile
from typing import Any, get_args, get_type_hints

from .schema import groups
from .settings import CHOICES, OPTIONS, CurveSettings, Settings
from .settings.checks import is_told, is_tunable
from .settings.options import chosen_by

_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    int | str: "a whole number or auto",
    list[str]: "a list of names",
    list[int]: "a list of whole numbers",
    list[float]: "a list of numbers",
    dict[str, CurveSettings]: "curves by name",
}

SECRET = frozenset({"privacy.insecure_seed"})
"""Keys that are never shown: who knows the seed of the noise can subtract it."""

FOLDERS = frozenset(
    {
        "output_dir",
        "run_name",
        "resume",
        "task.data_dir",
        "features.file",
        "features.statistics",
        "model.initial",
        "dp_sgd.ledger_dir",
        "privacy.witness_dir",
        "privacy.secure_sum.roster",
        "selection.owners",
        "tracking.uri",
    }
)
"""Keys that name places of the operator's; only the operator is to read them."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """One setting.

    Attributes:
        name: With its group, for example `privacy.epsilon`.
        default: Its value in `conf/config.yaml` without overrides.
        kind: What a value is, for example `a whole number`.
        nullable: Whether it may be null.
        choices: The values it takes; empty if there are more than a few.
        help: The sentence of the settings' docstring; empty where Python runs without docstrings.
        told: Whether trackers may be told its value.
        tunable: Whether a candidate of a choice may change it.
        options: Options of its group that have it, if each has keys of its own.
        other_defaults: Defaults of the options that do not have `default`.
    """

    name: str
    default: Any
    kind: str
    nullable: bool
    choices: tuple[str, ...]
    help: str
    told: bool
    tunable: bool
    options: tuple[str, ...] = ()
    other_defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The name before the first dot; empty for the run's own keys."""
        return self.name.partition(".")[0] if "." in self.name else ""

    @property
    def allowed(self) -> str:
        """Values that may be written, in words."""
        kind = f"one of {', '.join(self.choices)}" if self.choices else self.kind
        return f"{kind}, or null" if self.nullable else kind

    @property
    def default_text(self) -> str:
        """The default as it is written in YAML."""
        return in_yaml(self.default)

    @property
    def of_options(self) -> str:
        """The choices under which the key is there, in words; empty if it always is."""
        if not self.options or len(self.options) == len(OPTIONS[self.group]):
            return ""
        return f"{self.group}={either(self.options)}"


@cache
def all_keys() -> dict[str, Key]:
    """Return every key by its name, the run's own first."""
    found = {key.name: key for key in _keys("", Settings())}
    told = {each.name for each in fields(Settings) if is_told(each)}
    for group, settings in groups().items():
        if group not in OPTIONS:
            of_group = _keys(group, settings(), all_told=group in told)
            found |= {key.name: key for key in of_group}
            continue
        for option, defaults in OPTIONS[group].items():
            for key in _keys(group, defaults):
                found[key.name] = _also(found.get(key.name, key), key, option)
    return found


def _keys(group: str, settings: Any, *, all_told: bool = False) -> Iterator[Key]:
    """Yield the keys of a group, with those of a group inside it."""
    helps, types = _attributes(type(settings)), get_type_hints(type(settings))
    for each in fields(settings):
        name, kind, default = each.name, types[each.name], getattr(settings, each.name)
        if group and is_dataclass(kind):
            yield from _keys(f"{group}.{name}", default)
        elif not is_dataclass(kind) and not (group in OPTIONS and name == chosen_by(group)):
            inner = [part for part in get_args(kind) if part is not type(None)]
            nullable = type(None) in get_args(kind)
            key = f"{group}.{name}" if group else name
            yield Key(
                name=key,
                default=default,
                kind=_KINDS[inner[0] if nullable else kind],
                nullable=nullable,
                choices=CHOICES.get(key, each.metadata.get("choices", ())),
                help=helps.get(name, ""),
                told=all_told or is_told(each),
                tunable=is_tunable(each),
            )


def _also(first: Key, key: Key, option: str) -> Key:
    """Return a key that another option of its group has, too."""
    other = {} if key.default == first.default else {option: key.default}
    return replace(
        first,
        options=(*first.options, option),
        other_defaults={**first.other_defaults, **other},
    )


def nearest_keys(name: str) -> list[str]:
    """Return the keys, or the group, that `name` may stand for, the likeliest first."""
    keys = all_keys()
    name = name.replace("/", ".")
    if name in keys:
        return [name]
    group, _, last = name.rpartition(".")
    if group in groups() and last in groups():
        return [last]
    inside = [key for key in keys if key.startswith(f"{group}.")] if group else list(keys)
    by_last = {key: key.rpartition(".")[2] for key in inside or keys}
    if not group:
        by_last |= {known: known for known in groups()}
    misspelt = get_close_matches(name, keys, 1, 0.88)
    same = [key for key in keys if key.rpartition(".")[2] == last]
    near = get_close_matches(last, by_last.values(), 1, 0.7)
    longer = [key for key, of_key in by_last.items() if last and last in of_key.split("_")]
    return misspelt or same or [key for key, of_key in by_last.items() if of_key in near] or longer


def either(names: Sequence[str]) -> str:
    """Return `a, b or c`."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def in_yaml(value: Any) -> str:
    """Return a value as it is written in YAML."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _attributes(settings: type) -> dict[str, str]:
    """Return the sentences under `Attributes:` in the docstrings of a class and of its bases."""
    found: dict[str, str] = {}
    for each in reversed(settings.__mro__):
        if is_dataclass(each):
            found |= _own_attributes(each)
    return found


def _own_attributes(settings: type) -> dict[str, str]:
    _, _, listed = (inspect.cleandoc(settings.__doc__ or "")).partition("Attributes:\n")
    found: dict[str, str] = {}
    for line in takewhile(lambda line: line.startswith("    "), listed.splitlines()):
        entry = re.match(r" {4}(\w+): (.*)", line)
        if entry is not None:
            name = entry[1]
            found[name] = entry[2]
        elif found:
            found[name] += f" {line.strip()}"
    return found
