"""Every key of the settings: its default, what it may be, and its help.

All of it is read from the dataclasses of `fl_dp.app.settings` and their docstrings, so that `fl-dp
config`, the errors and docs/configuration.md can't disagree with what is checked.

    >>> all_keys()["privacy.epsilon"].default
    8.0
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from itertools import takewhile
from typing import Any, get_args, get_type_hints

from .schema import settings_class
from .settings import CHOICES, CurveSettings, Settings

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
        "dp_sgd.ledger_dir",
        "privacy.witness_dir",
        "secure_sum.roster",
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
    """

    name: str
    default: Any
    kind: str
    nullable: bool
    choices: tuple[str, ...]
    help: str

    @property
    def group(self) -> str:
        """The name before the dot; empty for the run's own keys."""
        return self.name.rpartition(".")[0]

    @property
    def allowed(self) -> str:
        """Values that may be written, in words."""
        kind = f"one of {', '.join(self.choices)}" if self.choices else self.kind
        return f"{kind}, or null" if self.nullable else kind

    @property
    def default_text(self) -> str:
        """The default as it is written in YAML."""
        if self.default is None:
            return "null"
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)


@cache
def all_keys() -> dict[str, Key]:
    """Return every key by its name, the run's own first."""
    found = {}
    for group, settings in [("", Settings), *groups().items()]:
        helps, types = _attributes(settings), get_type_hints(settings)
        for field in fields(settings):
            if is_dataclass(types[field.name]):
                continue
            name = f"{group}.{field.name}" if group else field.name
            inner = [part for part in get_args(types[field.name]) if part is not type(None)]
            nullable = type(None) in get_args(types[field.name])
            found[name] = Key(
                name=name,
                default=_default(field),
                kind=_KINDS[inner[0] if nullable else types[field.name]],
                nullable=nullable,
                choices=CHOICES.get(name, field.metadata.get("choices", ())),
                help=helps.get(field.name, ""),
            )
    return found


@cache
def groups() -> dict[str, type]:
    """Return the class of each group's settings, by the group's name."""
    types = get_type_hints(settings_class())
    return {
        field.name: types[field.name]
        for field in fields(settings_class())
        if is_dataclass(types[field.name])
    }


def nearest_keys(name: str) -> list[str]:
    """Return the keys that somebody who wrote `name` may have meant, the likeliest first."""
    keys = all_keys()
    name = name.replace("/", ".")
    if name in keys:
        return [name]
    group, _, last = name.rpartition(".")
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


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def _attributes(settings: type) -> dict[str, str]:
    """Return the sentences under `Attributes:` in a class's docstring."""
    text = inspect.getdoc(settings) or ""
    _, _, listed = text.partition("Attributes:\n")
    found: dict[str, str] = {}
    for line in takewhile(lambda line: line.startswith("    "), listed.splitlines()):
        entry = re.match(r" {4}(\w+): (.*)", line)
        if entry is not None:
            name = entry[1]
            found[name] = entry[2]
        elif found:
            found[name] += f" {line.strip()}"
    return found
