"""Forms that start something: fields, help and checks come from the settings themselves.

There is one form for each kind of work: a training, an experiment of many trainings, an attack, a
statistic, and a training whose hyper-parameters are chosen first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fl_dp.app.compose import ConfigError, compose_settings, expand_sweep
from fl_dp.app.keys import FOLDERS, Key, all_keys, in_yaml
from fl_dp.app.overrides import group_options, quoted
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
    """One form: what it starts, and which settings it has fields for.

    Attributes:
        name: In addresses and in the keys of its words.
        groups: Groups of which it offers each option.
        keys: Groups whose keys it offers, and single keys.
        first: Keys that are shown at once; the others are folded away by group.
        marked: Key that marks its experiments in their files; empty: those without such a mark.
        command: Of the command line.
    """

    name: str
    command: tuple[str, ...]
    groups: tuple[str, ...] = GROUPS
    keys: tuple[str, ...] = _OF_TRAINING
    first: tuple[str, ...] = FIRST
    marked: str | None = None

    @property
    def needs_experiment(self) -> bool:
        """Whether an experiment has to be chosen."""
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
    command=("run",),
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
_KINDS = (TRAINING, SWEEP, RECOVERY, STATISTIC, TUNING)
EXPERIMENT = "experiment"
"""Field that chooses among the experiments of a kind."""
QUERY = "statistic.query"


@cache
def kinds() -> dict[str, Kind]:
    """Return the forms by name; without the wing that has its keys, one is left out."""
    known = {key.group for key in all_keys().values()}
    needed = {RECOVERY.name: "recovery", TUNING.name: "tune"}
    return {each.name: each for each in _KINDS if needed.get(each.name, "") in known}


@cache
def experiments(kind: Kind) -> tuple[str, ...]:
    """Return the names of the experiments that a form offers."""
    if kind.marked is None:
        return ()
    marks = {each.marked for each in _KINDS} - {None, ""}
    found = []
    for name in group_options()[EXPERIMENT]:
        marked = marks & {key for key, _ in entries(f"{EXPERIMENT}/{name}")}
        if marked == ({kind.marked} if kind.marked else set()):
            found.append(name)
    return tuple(found)


RUN_NAME = "run_name"
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SEVERAL = re.compile(r"[\w.]+=[^\[\]\"',]+(,[^\[\]\"',]+)+")  # values of a number or a choice
_OPTION = re.compile(r"(?<![\w.])(?P<name>[a-z]\w*(\.\w+)*)(?P<value>=?)")
_NULL = re.compile(r"\b[Nn]ull\b")
_NUMBER = re.compile(r"[+-]?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})([eE][+-]?\d{1,3})?|[+-]?inf")


def without_null(text: str) -> str:
    """Return a text of the settings as a form says it: YAML's null is a field that is not set."""
    return _NULL.sub('"not set"', text)


class WrongField(Exception):
    """A value can't be used.

    Attributes:
        field: Key or group whose field it stands in; empty if no single field is to blame.
        text: Says what to write instead.
    """

    def __init__(self, *, field: str, text: str) -> None:
        """Say which field is wrong and why."""
        super().__init__(text)
        self.field, self.text = field, without_null(text)


class WrongForm(Exception):
    """A form can't be used.

    Attributes:
        fields: Everything that is wrong, the first of each field.
    """

    def __init__(self, fields: Sequence[WrongField]) -> None:
        """Say which fields are wrong and why."""
        super().__init__("; ".join(each.text for each in fields))
        self.fields = tuple(fields)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Wanted work, checked.

    Attributes:
        kind: The form that asks for it.
        overrides: As for the command line.
        run_name: Name of its folder; empty leaves it to us.
        settings: What the overrides come to; of an experiment of many trainings, what it starts
            from.
        title: What it is about, for the name of its folder.
        trainings: Of an experiment of many: the settings of each.
    """

    kind: Kind = TRAINING
    overrides: tuple[str, ...]
    run_name: str
    settings: Settings
    title: str
    trainings: tuple[Settings, ...] = ()

    @property
    def promises(self) -> bool:
        """Whether it is private at all."""
        return any(
            each.protects_clients or each.protects_records
            for each in self.trainings or [self.settings]
        )

    @property
    def command(self) -> tuple[str, ...]:
        """What starts it, after `fl-dp`."""
        if self.kind is STATISTIC:
            query = str(self.settings.statistic.query)
            asked = (each for each in self.overrides if not each.startswith(f"{QUERY}="))
            return (*self.kind.command, query, *asked)
        return (*self.kind.command, *self.overrides)

    @property
    def price(self) -> tuple[str, ...]:
        """What tells its price, after `fl-dp`; empty where that is no single number."""
        if self.kind is STATISTIC:
            return (*self.command, "--price", "--json")
        if self.kind in (SWEEP, RECOVERY) or not self.promises:
            return ()
        return ("plan", "--json", *_with_candidates(self.overrides))


@cache
def offered(kind: Kind = TRAINING, *, own_data: bool = False) -> dict[str, Key]:
    """Return the keys that a form has a field for.

    Args:
        kind: The form.
        own_data: Whether there are own data, and so their settings.
    """
    return {
        name: replace(key, choices=_CHOICES.get(name, key.choices))
        for name, key in all_keys().items()
        if name not in _NOT_OFFERED
        and (own_data or name not in _OF_OWN_DATA)
        and (key.group in kind.keys or name in kind.keys)
        and key.kind != "curves by name"
    }


@cache
def folded(kind: Kind = TRAINING, *, own_data: bool = False) -> dict[str, tuple[Key, ...]]:
    """Return the keys that are folded away, by group."""
    found: dict[str, tuple[Key, ...]] = {}
    for name, key in offered(kind, own_data=own_data).items():
        if name not in kind.first:
            found[key.group] = (*found.get(key.group, ()), key)
    return found


@cache
def options(kind: Kind = TRAINING, *, own_data: bool = False) -> dict[str, tuple[str, ...]]:
    """Return what each group's field offers."""
    left_out = {_OF_OPERATOR, *(() if own_data else OWN_DATA)}
    return {
        group: tuple(name for name in group_options()[group] if name not in left_out)
        for group in kind.groups
    }


def read_form(
    form: Mapping[str, str], data: Mapping[str, Path] | None = None, kind: Kind = TRAINING
) -> Request:
    """Return what a filled form asks for; an empty field leaves its default.

    Args:
        form: Values by field: a group, a key, `run_name`, `EXPERIMENT` or `DATA`.
        data: Folders of own data by the names that the form may choose; None: there are none.
        kind: The form.

    Raises:
        WrongForm: With every field that is wrong.
    """
    data = data or {}
    overrides, wrong = _written(form, data, kind)
    run_name = form.get(RUN_NAME, "").strip()
    if run_name and _RUN_NAME.fullmatch(run_name) is None:
        text = "run_name takes up to 64 letters, digits, dots, dashes and underscores"
        wrong.append(WrongField(field=RUN_NAME, text=text))
    if EXPERIMENT in [each.field for each in wrong]:
        raise WrongForm(wrong)  # without it, other fields mean something else
    while True:
        try:
            settings, trainings = _composed(kind, list(overrides.values()))
            break
        except ConfigError as error:
            place = field_of(str(error), form, kind, own_data=bool(data))
            if place in overrides or not wrong:
                wrong.append(WrongField(field=place, text=str(error)))
            if place not in overrides:
                break
            del overrides[place]  # what else is wrong is told without it
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


def _written(
    form: Mapping[str, str], data: Mapping[str, Path], kind: Kind
) -> tuple[dict[str, str], list[WrongField]]:
    """Return the override of each field that was filled, and the fields that can't be read."""
    found: dict[str, str] = {}
    wrong: list[WrongField] = []
    choices = {EXPERIMENT: experiments(kind), **options(kind, own_data=bool(data))}
    for field, known in choices.items():
        option = form.get(field, "").strip()
        if (option or (field == EXPERIMENT and kind.needs_experiment)) and option not in known:
            wrong.append(WrongField(field=field, text=f"{field} is one of {', '.join(known)}"))
        elif option:
            found[field] = f"{field}={option}"
    chosen = form.get(DATA, "").strip()
    if data and chosen and chosen not in data:
        wrong.append(WrongField(field=DATA, text=f"{DATA} is one of {', '.join(sorted(data))}"))
    elif data and chosen:
        found[DATA] = f"{DATA}={quoted(str(data[chosen]))}"
    for name, key in offered(kind, own_data=bool(data)).items():
        written = form.get(name, "").strip()
        try:
            if written:
                found[name] = override_of(key, written, several=kind is TUNING and key.tunable)
        except WrongField as error:
            wrong.append(error)
    if kind is STATISTIC and not form.get(QUERY, "").strip():
        text = f"{QUERY} must be {all_keys()[QUERY].allowed}"
        wrong.append(WrongField(field=QUERY, text=text))
    return found, wrong


def _composed(kind: Kind, overrides: Sequence[str]) -> tuple[Settings, tuple[Settings, ...]]:
    """Return the settings of overrides, and those of each training of an experiment of many.

    Raises:
        ConfigError: If they can't go together.
    """
    settings = compose_settings(_with_candidates(overrides))
    if kind is not SWEEP:
        return settings, ()
    from fl_dp.app.cells import expand  # with the accounting, which takes a second to load

    return settings, tuple(cell.settings for cell in expand(overrides)[1])


def shown_defaults(
    form: Mapping[str, str], kind: Kind, *, own_data: bool = False
) -> dict[str, str]:
    """Return what each group and key of a form is where its field stays empty.

    Args:
        form: Values by field; what is chosen of its groups decides.
        kind: The form.
        own_data: Whether there are own data, and so their settings.
    """
    choices = {EXPERIMENT: experiments(kind), **options(kind, own_data=own_data)}
    chosen = {field: form.get(field, "") for field in choices}
    if kind.needs_experiment and not chosen[EXPERIMENT]:
        chosen[EXPERIMENT] = experiments(kind)[0]
    taken = {field: name for field, name in chosen.items() if name in choices[field]}
    settings = _beside(taken)
    shown: dict[str, str] = {}
    for group in kind.groups:
        others = {field: name for field, name in taken.items() if field != group}
        shown[group] = _option_in(settings if group not in taken else _beside(others), group)
    for name, key in offered(kind, own_data=own_data).items():
        place: Any = settings
        *groups, last = name.split(".")
        for group in groups:
            place = getattr(place, group, None)
        shown[name] = in_yaml(getattr(place, last, key.default))
    return shown


def _beside(chosen: Mapping[str, str]) -> Settings:
    """Return the settings beside chosen parts; the usual ones where the parts can't go together."""
    try:
        return compose_settings([f"{field}={name}" for field, name in chosen.items()])
    except ConfigError:
        return compose_settings([])  # the price says what can't go together


def _option_in(settings: Settings, group: str) -> str:
    of_group = getattr(settings, group)
    return option_name(group, of_group) if group in OPTIONS else str(of_group.name)


def _with_candidates(overrides: Sequence[str]) -> list[str]:
    """Return overrides in which keys of several values have become candidates, as `fl-dp tune`."""
    swept = [each for each in overrides if _SEVERAL.fullmatch(each)]
    if not swept:
        return list(overrides)
    listed = ",".join(quoted(" ".join(each)) for each in expand_sweep(swept))
    return [*(each for each in overrides if each not in swept), f"tune.candidates=[{listed}]"]


def field_of(
    error: str,
    form: Mapping[str, str],
    kind: Kind = TRAINING,
    *,
    own_data: bool = False,
) -> str:
    """Return the field that an error is about: the first it names that was filled, or the first.

    Args:
        error: Names keys, in full or by their last word; without one, the answer is empty.
        form: Values by field.
        kind: The form.
        own_data: Whether there are own data, and so their settings.
    """
    fields = [*offered(kind, own_data=own_data), *kind.groups, *([DATA] if own_data else [])]
    named: list[str] = []
    for word in _OPTION.finditer(error):
        if word.start() == 0 or word["value"] or set("._") & set(word["name"]):  # no plain word
            named += [name for name in fields if f".{name}".endswith(f".{word['name']}")]
    filled = [name for name in named if form.get(name, "").strip()]
    return next(iter([*filled, *named]), "")


def override_of(key: Key, written: str, *, several: bool = False) -> str:
    """Return an override that Hydra reads as this value and as nothing else.

    Args:
        key: The setting.
        written: Its value.
        several: Whether there may be several values with commas between them.

    Raises:
        WrongField: If it is not a value of the key's kind.
    """
    if len(written) > 500 or not written.isprintable():
        raise WrongField(field=key.name, text=f"{key.name} must be {key.allowed}")
    if key.nullable and written in _unset():
        return f"{key.name}=null"
    if key.kind.startswith("a list"):
        items = [item.strip() for item in written.strip("[]").split(",")]
        return f"{key.name}=[{','.join(_value(key, item) for item in items if item)}]"
    if several:
        return f"{key.name}={','.join(_value(key, each.strip()) for each in written.split(','))}"
    return f"{key.name}={_value(key, written)}"


def _unset() -> set[str]:
    """Return what a reader may write for no value, in each language."""
    return {"null", *(words.value("null") for words in languages().values())}


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
