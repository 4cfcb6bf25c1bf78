"""Every key of the settings: default, allowed values, help.

Keys are read from the dataclasses of `fl_dp.app.settings` and their docstrings. So `fl-dp config`,
the errors and docs/configuration.md can't disagree with the checks.

    >>> all_keys()["privacy.epsilon"].default
    8.0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_type_hints

from .schema import groups
from .settings import CHOICES, OPTIONS, CurveSettings, Settings
from .settings.checks import is_tracked, is_tunable
from .settings.docstring_sentences import sentences_of
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
"""Keys that are never shown: whoever knows the seed of the noise can subtract it."""

FOLDERS = frozenset(
    {
        "output_dir",
        "run_name",
        "resume",
        "task.data_dir",
        "features.file",
        "features.folder",
        "features.statistics",
        "model.initial",
        "dp_sgd.ledger_dir",
        "privacy.witness_dir",
        "privacy.account",
        "privacy.secure_sum.roster",
        "selection.owners",
        "tracking.uri",
    }
)
"""Keys that name files or folders of the operator; only the operator is to read them."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """One setting.

    Attributes:
        name: Its name with its group, for example `privacy.epsilon`.
        default: Its value in `conf/config.yaml` without overrides.
        kind: Its values' type, for example `a whole number`.
        nullable: Whether it may be null.
        choices: Its values; empty if more than a few.
        help: Sentence of the settings' docstring; empty where Python runs without docstrings.
        tracked: Whether trackers may get its value.
        tunable: Whether a choice's candidate may change it.
        options: Options of its group that have it, if each has keys of its own.
        other_defaults: Defaults of the options without `default`.
    """

    name: str
    default: Any
    kind: str
    nullable: bool
    choices: tuple[str, ...]
    help: str
    tracked: bool
    tunable: bool
    options: tuple[str, ...] = ()
    other_defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The part before the first dot; empty for the run's own keys."""
        return self.name.partition(".")[0] if "." in self.name else ""

    @property
    def allowed(self) -> str:
        """Allowed values, in words."""
        kind = self.kind
        if self.choices:
            kind = f"one of {', '.join(self.choices)}"
        return f"{kind}, or null" if self.nullable else kind

    @property
    def default_text(self) -> str:
        """The default in YAML."""
        return in_yaml(self.default)

    @property
    def of_options(self) -> str:
        """Choices under which the key exists, in words; empty if it always does."""
        if not self.options or len(self.options) == len(OPTIONS[self.group]):
            return ""
        return f"{self.group}={either(self.options)}"


@cache
def all_keys() -> dict[str, Key]:
    """Every key by its name, the run's own first."""
    keys = {key.name: key for key in _keys("", Settings())}
    tracked_groups = {setting.name for setting in fields(Settings) if is_tracked(setting)}
    for group in groups():
        if group not in OPTIONS:
            settings = getattr(Settings(), group)
            for key in _keys(group, settings, all_tracked=group in tracked_groups):
                keys[key.name] = key
            continue
        for option, defaults in OPTIONS[group].items():
            for key in _keys(group, defaults):
                keys[key.name] = _with_option(keys.get(key.name, key), key, option)
    return keys


def _keys(group: str, settings: Any, *, all_tracked: bool = False) -> Iterator[Key]:
    """Yield a group's keys, with those of inner groups."""
    helps, types = sentences_of(type(settings)), get_type_hints(type(settings))
    for setting in fields(settings):
        name, kind, default = setting.name, types[setting.name], getattr(settings, setting.name)
        if group and is_dataclass(kind):
            yield from _keys(f"{group}.{name}", default)
        elif not is_dataclass(kind) and not (group in OPTIONS and name == chosen_by(group)):
            types_but_none = [part for part in get_args(kind) if part is not type(None)]
            nullable = type(None) in get_args(kind)
            if nullable:
                kind = types_but_none[0]
            key = f"{group}.{name}" if group else name
            yield Key(
                name=key,
                default=default,
                kind=_KINDS[kind],
                nullable=nullable,
                choices=CHOICES.get(key, setting.metadata.get("choices", ())),
                help=setting.metadata.get("help", helps.get(name, "")),
                tracked=all_tracked or is_tracked(setting),
                tunable=is_tunable(setting),
            )


def _with_option(first: Key, key: Key, option: str) -> Key:
    """The key with one more option of its group."""
    other = {} if key.default == first.default else {option: key.default}
    return replace(
        first,
        options=(*first.options, option),
        other_defaults={**first.other_defaults, **other},
    )


def nearest_keys(name: str) -> list[str]:
    """Keys, or the group, that `name` may stand for, likeliest first."""
    keys = all_keys()
    name = name.replace("/", ".")
    if name in keys:
        return [name]
    group, _, last = name.rpartition(".")
    if group in groups() and last in groups():
        return [last]
    siblings = list(keys)
    if group:
        siblings = [key for key in keys if key.startswith(f"{group}.")]
    last_parts = {key: key.rpartition(".")[2] for key in siblings or keys}
    if not group:
        last_parts |= {name: name for name in groups()}
    misspelt = get_close_matches(name, keys, 1, 0.88)
    same = [key for key in keys if key.rpartition(".")[2] == last]
    near = get_close_matches(last, last_parts.values(), 1, 0.7)
    longer = [key for key, part in last_parts.items() if last and last in part.split("_")]
    return misspelt or same or [key for key, part in last_parts.items() if part in near] or longer


def either(names: Sequence[str]) -> str:
    """`a, b or c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} or {names[-1]}"


def in_yaml(value: Any) -> str:
    """A value in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
