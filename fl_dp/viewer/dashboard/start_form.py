"""Forms that start something: fields, help and checks come from the settings.

Each kind of work has one: a training, an experiment of many trainings, an attack, a statistic, and
a training whose hyper-parameters are chosen first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fl_dp.app.compose import ConfigError, compose_settings, expand_sweep
from fl_dp.app.keys import FOLDERS, Key, all_keys, in_yaml
from fl_dp.app.overrides import check_option, group_options, quoted, wrong_value
from fl_dp.app.recipes import entries
from fl_dp.app.settings import OPTIONS, Settings
from fl_dp.app.settings.data import OWN_DATA_KEYS
from fl_dp.app.settings.options import option_name
from fl_dp.tasks.datasets import OWN_DATA

from .languages import languages

GROUPS = (
    "task",
    "privacy",
    "dp_sgd",
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
# of the run. Own data are offered where the operator named their folders.
_OF_OWN_DATA = frozenset(f"task.{key}" for key in OWN_DATA_KEYS)
_NOT_OFFERED = FOLDERS | {
    "privacy.insecure_seed",
    "task.name",
    "model.name",
    "model.initial_digest",
    "features.digest",
    "features.module",
    # Form fields write them: an experiment, and keys with several values.
    "recovery.attacks",
    "tune.candidates",
    "tune.chosen",
    # How many trainings a random stopping makes is a secret, which a page of its progress shows.
    "tune.mean_runs",
    "tune.shape",
}
_CHOICES = {"tune.by": ("vote", "public")}  # and so it is not offered here
_OF_OPERATOR = "checkpoint"  # features of a file and a module of the operator's
_OF_TRAINING = (
    *("", "task", "features", "model", "privacy", "dp_sgd", "clipping"),
    *("metrics", "selection", "schedule", "server_optimizer", "client", "compression"),
)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One form: the work it starts, and the settings it has fields for.

    Attributes:
        name: Name in addresses and in the keys of its words.
        groups: Groups of which it offers each option.
        keys: Groups whose keys it offers, and single keys.
        first: Keys shown at once; the others are folded away by group.
        marked: Key that marks its experiments in their files; empty: those without such a mark.
        command: Command after `fl-dp`.
    """

    name: str
    command: tuple[str, ...]
    groups: tuple[str, ...] = GROUPS
    keys: tuple[str, ...] = _OF_TRAINING
    first: tuple[str, ...] = FIRST
    marked: str | None = None

    @property
    def needs_experiment(self) -> bool:
        """Whether an experiment must be chosen."""
        return bool(self.marked)


TRAINING = Kind(name="training", command=("run",), marked="")
SWEEP = Kind(
    name="sweep",
    command=("run", "-m"),
    groups=("task", "model"),
    keys=("", "task", "client", "sweep.seeds", "sweep.side_by_side"),
    first=("rounds", "task.num_clients", "sweep.seeds", "sweep.side_by_side"),
    marked="sweep.curves",
)
RECOVERY = Kind(
    name="recovery",
    command=("attack", "inversion"),
    groups=("task", "model"),
    keys=("seed", "task", "model", "client", "clipping.norm", "recovery"),
    first=("recovery.threats", "recovery.images", "recovery.seeds", "recovery.steps"),
    marked="recovery.attacks",
)
STATISTIC = Kind(
    name="statistic",
    command=("stats",),
    groups=("task", "privacy"),
    keys=("seed", "task", "statistic", "privacy.epsilon", "privacy.delta"),
    first=(
        *("statistic.query", "statistic.values", "statistic.low", "statistic.high"),
        *("task.num_clients", "privacy.epsilon", "privacy.delta"),
    ),
)
TUNING = Kind(
    name="tuning",
    command=("tune",),
    keys=(*_OF_TRAINING, "tune"),
    first=(*FIRST, "tune.by", "tune.share", "tune.rounds"),
)
KINDS = {kind.name: kind for kind in (TRAINING, SWEEP, RECOVERY, STATISTIC, TUNING)}
"""The forms by name."""
EXPERIMENT = "experiment"
"""Field that chooses among the experiments of a kind."""
QUERY = "statistic.query"


@cache
def experiments(kind: Kind) -> tuple[str, ...]:
    """Names of a form's experiments."""
    if kind.marked is None:
        return ()
    marks = {other.marked for other in KINDS.values()} - {None, ""}
    expected = {kind.marked} - {""}
    names = []
    for name in group_options()[EXPERIMENT]:
        keys = {key for key, _ in entries(f"{EXPERIMENT}/{name}")}
        if marks & keys == expected:
            names.append(name)
    return tuple(names)


RUN_NAME = "run_name"
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SEVERAL = re.compile(r"[\w.]+=[^\[\]\"',]+(,[^\[\]\"',]+)+")  # values of a number or a choice
_NULL = re.compile(r"\b[Nn]ull\b")
_NUMBER = re.compile(r"[+-]?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})([eE][+-]?\d{1,3})?|[+-]?inf")


def without_null(text: str) -> str:
    """A key's help in the form's words: YAML's null is a field that is not set."""
    return _NULL.sub('"not set"', text)


class WrongField(Exception):
    """A value can't be used.

    Attributes:
        field: Key or group of its field; empty if no single field is to blame.
        text: Advice on what to write instead.
    """

    def __init__(self, *, field: str, text: str) -> None:
        """Take the field and the reason."""
        super().__init__(text)
        self.field, self.text = field, text


class WrongForm(Exception):
    """A form can't be used; `fields` are the wrong ones, with the first error of each."""

    def __init__(self, fields: Sequence[WrongField]) -> None:
        """Take the wrong fields."""
        super().__init__("; ".join(field.text for field in fields))
        self.fields = tuple(fields)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Requested work, checked.

    Attributes:
        overrides: As for the command line.
        run_name: Its folder's name; empty: chosen by `StartedRuns`.
        settings: With the overrides; for an experiment of many trainings, their base.
        title: Subject, for the name of its folder.
        trainings: Settings of each training of an experiment of many.
    """

    kind: Kind = TRAINING
    overrides: tuple[str, ...]
    run_name: str
    settings: Settings
    title: str
    trainings: tuple[Settings, ...] = ()

    @property
    def promises(self) -> bool:
        """Whether it is private."""
        trainings = self.trainings or [self.settings]
        return any(training.protects_clients or training.protects_records for training in trainings)

    @property
    def command(self) -> tuple[str, ...]:
        """The command that starts it, after `fl-dp`."""
        if self.kind is STATISTIC:
            query = str(self.settings.statistic.query)
            others = [text for text in self.overrides if not text.startswith(f"{QUERY}=")]
            return (*self.kind.command, query, *others)
        return (*self.kind.command, *self.overrides)

    @property
    def price(self) -> tuple[str, ...]:
        """The command for its price, after `fl-dp`; empty if that is no single number."""
        if self.kind is STATISTIC:
            return (*self.command, "--price", "--json")
        if self.kind in (SWEEP, RECOVERY) or not self.promises:
            return ()
        return ("plan", "--json", *_with_candidates(self.overrides))


@cache
def offered(kind: Kind = TRAINING, *, own_data: bool = False) -> dict[str, Key]:
    """Keys that a form has fields for; without `own_data` theirs are left out."""
    keys = {}
    for name, key in all_keys().items():
        if name in _NOT_OFFERED or key.kind == "curves by name":
            continue
        if name in _OF_OWN_DATA and not own_data:
            continue
        if key.group in kind.keys or name in kind.keys:
            keys[name] = replace(key, choices=_CHOICES.get(name, key.choices))
    return keys


@cache
def folded_groups(kind: Kind = TRAINING, *, own_data: bool = False) -> dict[str, tuple[Key, ...]]:
    """Keys that are folded away, by group."""
    keys: dict[str, tuple[Key, ...]] = {}
    for name, key in offered(kind, own_data=own_data).items():
        if name not in kind.first:
            keys[key.group] = (*keys.get(key.group, ()), key)
    return keys


@cache
def options(kind: Kind = TRAINING, *, own_data: bool = False) -> dict[str, tuple[str, ...]]:
    """Options that each group's field offers."""
    excluded = {_OF_OPERATOR}
    if not own_data:
        excluded |= {*OWN_DATA}
    choices = {}
    for group in kind.groups:
        choices[group] = tuple(name for name in group_options()[group] if name not in excluded)
    return choices


def read_form(
    form: Mapping[str, str], data: Mapping[str, Path] | None = None, kind: Kind = TRAINING
) -> Request:
    """The work that a filled form asks for; empty fields keep their defaults.

    `form` has values by field: a group, a key, `run_name`, `EXPERIMENT` or `DATA`. `data` has
    folders of own data by the names that the form may choose.

    Raises:
        WrongForm: With every field that is wrong.
    """
    data = data or {}
    overrides, wrong = _overrides_of(form, data, kind)
    run_name = form.get(RUN_NAME, "").strip()
    if run_name and _RUN_NAME.fullmatch(run_name) is None:
        text = "run_name takes up to 64 letters, digits, dots, dashes and underscores"
        wrong.append(WrongField(field=RUN_NAME, text=text))
    if any(error.field == EXPERIMENT for error in wrong):
        raise WrongForm(wrong)  # without it, other fields mean something else
    while True:
        try:
            settings, trainings = _composed(kind, list(overrides.values()))
            break
        except ConfigError as error:
            field = field_of(error.options, form, kind, own_data=bool(data))
            if field in overrides or not wrong:
                wrong.append(WrongField(field=field, text=str(error)))
            if field not in overrides:
                break
            del overrides[field]  # so that the next error shows
    if wrong:
        raise WrongForm(wrong)
    return Request(
        kind=kind,
        overrides=tuple(overrides.values()),
        run_name=run_name,
        settings=settings,
        title=form.get(EXPERIMENT, "").strip() or settings.task.name,
        trainings=trainings,
    )


def _overrides_of(
    form: Mapping[str, str], data: Mapping[str, Path], kind: Kind
) -> tuple[dict[str, str], list[WrongField]]:
    """The override of each filled field, and the fields that can't be read."""
    overrides: dict[str, str] = {}
    wrong: list[WrongField] = []
    choices = {EXPERIMENT: experiments(kind), **options(kind, own_data=bool(data))}
    for field, names in choices.items():
        option = form.get(field, "").strip()
        is_needed = field == EXPERIMENT and kind.needs_experiment
        if (option or is_needed) and option not in names:
            wrong.append(WrongField(field=field, text=_why_no_option(field, option, names)))
        elif option:
            overrides[field] = f"{field}={option}"
    folder = form.get(DATA, "").strip()
    if data and folder and folder not in data:
        wrong.append(WrongField(field=DATA, text=f"{DATA} is one of {', '.join(sorted(data))}"))
    elif data and folder:
        overrides[DATA] = f"{DATA}={quoted(str(data[folder]))}"
    for name, key in offered(kind, own_data=bool(data)).items():
        value = form.get(name, "").strip()
        try:
            if value:
                overrides[name] = override_of(key, value, several=kind is TUNING and key.tunable)
        except WrongField as error:
            wrong.append(error)
    if kind is STATISTIC and not form.get(QUERY, "").strip():
        text = f"{QUERY} must be {all_keys()[QUERY].allowed}"
        wrong.append(WrongField(field=QUERY, text=text))
    return overrides, wrong


def _why_no_option(group: str, option: str, offered: Sequence[str]) -> str:
    """Why a group does not take an option: there is none, or the form does not offer it."""
    try:
        check_option(group, option)
    except ConfigError as error:
        return str(error)
    return f"{group} is one of {', '.join(offered)}"


def _composed(kind: Kind, overrides: Sequence[str]) -> tuple[Settings, tuple[Settings, ...]]:
    """Settings of overrides, and those of each training of an experiment of many.

    Raises:
        ConfigError: If they contradict each other.
    """
    settings = compose_settings(_with_candidates(overrides))
    if kind is not SWEEP:
        return settings, ()
    from fl_dp.app.cells import expand  # with the accounting, which takes a second to load

    return settings, tuple(cell.settings for cell in expand(overrides)[1])


def shown_defaults(
    form: Mapping[str, str], kind: Kind, *, own_data: bool = False
) -> dict[str, str]:
    """Value of each group and key of a form whose field stays empty.

    The chosen options among the form's values decide.
    """
    choices = {EXPERIMENT: experiments(kind), **options(kind, own_data=own_data)}
    chosen = {field: form.get(field, "") for field in choices}
    if kind.needs_experiment and not chosen[EXPERIMENT]:
        chosen[EXPERIMENT] = experiments(kind)[0]
    valid = {field: name for field, name in chosen.items() if name in choices[field]}
    settings = _settings_with(valid)
    defaults: dict[str, str] = {}
    for group in kind.groups:
        without_group = settings
        if group in valid:
            others = {field: name for field, name in valid.items() if field != group}
            without_group = _settings_with(others)
        defaults[group] = _option_in(without_group, group)
    for name, key in offered(kind, own_data=own_data).items():
        owner: Any = settings
        *groups, last = name.split(".")
        for group in groups:
            owner = getattr(owner, group, None)
        defaults[name] = in_yaml(getattr(owner, last, key.default))
    return defaults


def _settings_with(chosen: Mapping[str, str]) -> Settings:
    """Settings with chosen options; the usual ones if they can't go together."""
    try:
        return compose_settings([f"{field}={name}" for field, name in chosen.items()])
    except ConfigError:
        return compose_settings([])  # the price says what can't go together


def _option_in(settings: Settings, group: str) -> str:
    option = getattr(settings, group)
    return option_name(group, option) if group in OPTIONS else str(option.name)


def _with_candidates(overrides: Sequence[str]) -> list[str]:
    """Overrides whose keys of several values became candidates, as in `fl-dp tune`."""
    swept = [text for text in overrides if _SEVERAL.fullmatch(text)]
    if not swept:
        return list(overrides)
    candidates = [quoted(" ".join(texts)) for texts in expand_sweep(swept)]
    fixed = [text for text in overrides if text not in swept]
    return [*fixed, f"tune.candidates=[{','.join(candidates)}]"]


def field_of(
    options: Iterable[str],
    form: Mapping[str, str],
    kind: Kind = TRAINING,
    *,
    own_data: bool = False,
) -> str:
    """The field of an error's options: the first that was filled, else the first; empty: none.

    An option is a key, or its last word where the library refuses its own argument.
    """
    fields = [EXPERIMENT, *offered(kind, own_data=own_data), *kind.groups]
    if own_data:
        fields.append(DATA)
    named = [name for option in options for name in fields if f".{name}".endswith(f".{option}")]
    filled = [name for name in named if form.get(name, "").strip()]
    return next(iter([*filled, *named]), "")


def override_of(key: Key, text: str, *, several: bool = False) -> str:
    """An override that Hydra reads as this value and as nothing else.

    `several` allows several values with commas between them.

    Raises:
        WrongField: If it is not a value of the key's kind.
    """
    if len(text) > 500 or not text.isprintable():
        raise WrongField(field=key.name, text=f"{key.name} must be {key.allowed}")
    if key.nullable and text in _unset():
        return f"{key.name}=null"
    if key.kind.startswith("a list"):
        items = [item.strip() for item in text.strip("[]").split(",")]
        values = [_value(key, item) for item in items if item]
        return f"{key.name}=[{','.join(values)}]"
    if several:
        values = [_value(key, item.strip()) for item in text.split(",")]
        return f"{key.name}={','.join(values)}"
    return f"{key.name}={_value(key, text)}"


def _unset() -> set[str]:
    """The texts for "no value", in each language."""
    return {"null", *(words.value("null") for words in languages().values())}


def _value(key: Key, text: str) -> str:
    if key.name in _CHOICES and text not in key.choices:  # others the settings refuse themselves
        raise WrongField(field=key.name, text=f"{key.name} must be {key.allowed}, got {text!r}")
    if key.kind == "true or false":
        if text in ("true", "false"):
            return text
    elif "number" in key.kind:
        if _NUMBER.fullmatch(text) or ("auto" in key.kind and text == "auto"):
            return text
    elif "${" not in text:  # Hydra would read an environment or a file through it
        return quoted(text)
    raise WrongField(field=key.name, text=wrong_value(key.name, text))
