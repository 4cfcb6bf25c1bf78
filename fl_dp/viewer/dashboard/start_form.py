"""Form that starts a simulation: fields, help and checks come from the settings themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fl_dp.app.compose import ConfigError, compose_settings
from fl_dp.app.keys import FOLDERS, Key, all_keys
from fl_dp.app.option_keys import keys_of
from fl_dp.app.overrides import group_options, quoted
from fl_dp.app.settings import Settings
from fl_dp.app.settings.data import OWN_DATA_KEYS
from fl_dp.tasks.datasets import OWN_DATA

GROUPS = (
    "task",
    "privacy",
    "dp_sgd",
    "noise",
    "model",
    "features",
    "selection",
    "clipping",
    "schedule",
    "server_optimizer",
)
"""Groups of which the form offers each option."""

FIRST = (
    "rounds",
    "seed",
    "task.num_clients",
    "privacy.epsilon",
    "privacy.delta",
    "selection.sampling_rate",
    "clipping.norm",
    "client.learning_rate",
    "client.epochs",
)
"""Keys that are shown at once; the others are folded away by group."""

DATA = "task.data_dir"
"""Field that chooses among the folders of own data that the operator named."""

# A form chooses neither folders of this machine, noise that can be predicted, nor who else is told
# of the run; sweeps, attacks, choices among settings and statistics are other commands. Own data
# are offered where the operator named their folders.
_OF_OWN_DATA = frozenset(f"task.{key}" for key in OWN_DATA_KEYS)
_NOT_OFFERED = FOLDERS | {
    "privacy.insecure_seed",
    "task.name",
    "model.name",
    "model.initial_digest",
    "features.digest",
    "features.module",
}
_OF_OPERATOR = "checkpoint"  # features of a file and a module of the operator's
_GROUPS_NOT_OFFERED = ("sweep", "recovery", "statistic", "tune", "simulation", "tracking")

RUN_NAME = "run_name"
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NUMBER = re.compile(r"[+-]?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})([eE][+-]?\d{1,3})?|[+-]?inf")


class WrongField(Exception):
    """A value can't be used.

    Attributes:
        field: Key or group whose field it stands in; empty if no single field is to blame.
        text: Says what to write instead.
    """

    def __init__(self, *, field: str, text: str) -> None:
        """Say which field is wrong and why."""
        super().__init__(text)
        self.field, self.text = field, text


@dataclass(frozen=True, kw_only=True)
class Request:
    """Wanted simulation, checked.

    Attributes:
        overrides: As for the command line.
        run_name: Name of its folder; empty leaves it to us.
        settings: What the overrides come to.
    """

    overrides: tuple[str, ...]
    run_name: str
    settings: Settings

    @property
    def promises(self) -> bool:
        """Whether it is private at all."""
        return self.settings.protects_clients or self.settings.protects_records


@cache
def offered(*, own_data: bool = False) -> dict[str, Key]:
    """Return the keys that the form has a field for.

    Args:
        own_data: Whether there are own data, and so their settings.
    """
    return {
        name: key
        for name, key in all_keys().items()
        if name not in _NOT_OFFERED
        and (own_data or name not in _OF_OWN_DATA)
        and key.group not in _GROUPS_NOT_OFFERED
        and key.kind != "curves by name"
    }


@cache
def folded(*, own_data: bool = False) -> dict[str, tuple[Key, ...]]:
    """Return the keys that are folded away, by group."""
    found: dict[str, tuple[Key, ...]] = {}
    for name, key in offered(own_data=own_data).items():
        if name not in FIRST:
            found[key.group] = (*found.get(key.group, ()), key)
    return found


@cache
def options(*, own_data: bool = False) -> dict[str, tuple[str, ...]]:
    """Return what each group's field offers."""
    left_out = {_OF_OPERATOR, *(() if own_data else OWN_DATA)}
    return {
        group: tuple(name for name in group_options()[group] if name not in left_out)
        for group in GROUPS
    }


def read_form(form: Mapping[str, str], data: Mapping[str, Path] | None = None) -> Request:
    """Return what a filled form asks for; an empty field leaves its default.

    Args:
        form: Values by field: a group, a key, `run_name`, or `DATA`.
        data: Folders of own data by the names that the form may choose; None: there are none.

    Raises:
        WrongField: With the field that is wrong.
    """
    overrides = []
    data = data or {}
    known = options(own_data=bool(data))
    for group in GROUPS:
        option = form.get(group, "").strip()
        if option and option not in known[group]:
            raise WrongField(field=group, text=f"{group} is one of {', '.join(known[group])}")
        if option:
            overrides.append(f"{group}={option}")
    chosen = form.get(DATA, "").strip()
    if data and chosen:
        if chosen not in data:
            raise WrongField(field=DATA, text=f"{DATA} is one of {', '.join(sorted(data))}")
        overrides.append(f"{DATA}={quoted(str(data[chosen]))}")
    for name, key in offered(own_data=bool(data)).items():
        written = form.get(name, "").strip()
        if written:
            overrides.append(override_of(key, written))
    run_name = form.get(RUN_NAME, "").strip()
    if run_name and _RUN_NAME.fullmatch(run_name) is None:
        raise WrongField(
            field=RUN_NAME,
            text="run_name takes up to 64 letters, digits, dots, dashes and underscores",
        )
    try:
        settings = compose_settings(overrides)
    except ConfigError as error:
        place = field_of(keys_of(error), form, own_data=bool(data))
        raise WrongField(field=place, text=str(error)) from error
    return Request(overrides=tuple(overrides), run_name=run_name, settings=settings)


def field_of(keys: Sequence[str], form: Mapping[str, str], *, own_data: bool = False) -> str:
    """Return the field that an error is about: the first of its keys that was filled, or the first.

    Args:
        keys: Those that the error is about.
        form: Values by field.
        own_data: Whether there are own data, and so their settings.
    """
    fields = {*offered(own_data=own_data), *GROUPS, *([DATA] if own_data else [])}
    # `privacy.mode` may have been chosen in the field of its group.
    named = [*keys, *(key.partition(".")[0] for key in keys if "." in key)]
    known = [name for name in named if name in fields]
    filled = [name for name in known if form.get(name, "").strip()]
    return next(iter([*filled, *known]), "")


def override_of(key: Key, written: str) -> str:
    """Return an override that Hydra reads as this value and as nothing else.

    Raises:
        WrongField: If it is not a value of the key's kind.
    """
    if len(written) > 500 or not written.isprintable():
        raise WrongField(field=key.name, text=f"{key.name} must be {key.allowed}")
    if written == "null" and key.nullable:
        return f"{key.name}=null"
    if key.kind.startswith("a list"):
        items = [item.strip() for item in written.strip("[]").split(",")]
        return f"{key.name}=[{','.join(_value(key, item) for item in items if item)}]"
    return f"{key.name}={_value(key, written)}"


def _value(key: Key, written: str) -> str:
    if key.choices and written not in key.choices:
        raise WrongField(field=key.name, text=f"{key.name} must be {key.allowed}, got {written!r}")
    if key.kind == "true or false":
        if written in ("true", "false"):
            return written
    elif "number" in key.kind:
        if _NUMBER.fullmatch(written) or ("auto" in key.kind and written == "auto"):
            return written
    elif "${" not in written:  # Hydra would read an environment or a file through it
        return quoted(written)
    raise WrongField(field=key.name, text=f"{key.name} must be {key.allowed}, got {written!r}")
