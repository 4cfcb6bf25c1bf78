"""Runs that differ in their seed alone, as one curve with a band; and their other differences."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fl_dp.app.keys import FOLDERS, SECRET, all_keys
from fl_dp.app.settings import OPTIONS
from fl_dp.app.settings.options import chosen_by
from fl_dp.tasks.public_scores import Score

from .details import FoundRun
from .rounds import Round

# Where a run is written and computed does not change its results.
_NOT_COMPARED = (
    "seed",
    "output_dir",
    "run_name",
    "resume",
    "report",
    "simulation.",
    "sweep.",
    "tracking.",
)


_IMPLIED = "dp_sgd.enabled"  # by `privacy=dp_sgd`


@dataclass(frozen=True, kw_only=True)
class RoundRange:
    """One round of a group: mean, lowest and highest value over runs that have it."""

    round: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ in their seed alone, named by differences from other groups."""

    name: str
    runs: tuple[FoundRun, ...]

    @property
    def score(self) -> Score:
        """One run's score, for its name; of a constant answer if those of all runs are."""
        return min((run.card.score for run in self.runs), key=lambda score: score.is_constant)

    def series(self, value: Callable[[Round], float | None]) -> list[RoundRange]:
        """A value of each round over the runs; rounds without it are left out."""
        by_round: dict[int, list[float]] = {}
        for run in self.runs:
            for point in run.rounds:
                number = value(point)
                if number is not None:
                    by_round.setdefault(point.round, []).append(number)
        series = []
        for round_number, values in sorted(by_round.items()):
            mean, low, high = statistics.fmean(values), min(values), max(values)
            series.append(RoundRange(round=round_number, mean=mean, low=low, high=high))
        return series


def groups_of(runs: Sequence[FoundRun]) -> list[Group]:
    """The runs by their settings, in the order they were named."""
    members: dict[str, list[FoundRun]] = {}
    for index, run in enumerate(runs):
        # A run with unreadable settings has a group of its own.
        key = repr(sorted(compared(run).items())) if run.settings else f"unknown {index}"
        members.setdefault(key, []).append(run)
    differing = differences([group[0] for group in members.values()])[:4]
    names = [_name(group, differing) for group in members.values()]
    groups = []
    for name, group in zip(names, members.values(), strict=True):
        if names.count(name) > 1:
            name = f"{name} ({group[0].card.name})"
        groups.append(Group(name=name, runs=tuple(group)))
    return groups


def _name(runs: Sequence[FoundRun], differing: Sequence[str]) -> str:
    settings = compared(runs[0])
    # A key of another choice is missing.
    texts = [_as_chosen(key, settings[key]) for key in differing if key in settings]
    if texts:
        return ", ".join(texts)
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return f"{runs[0].card.name}{more}"


def _as_chosen(key: str, value: Any) -> str:
    """The override that chooses a value, for example `dp_sgd=on`."""
    group = key.partition(".")[0]
    if group in OPTIONS and key == f"{group}.{chosen_by(group)}":
        for name, option in OPTIONS[group].items():
            if getattr(option, chosen_by(group)) == value:
                return f"{group}={name}"
    return f"{key}={shown_value(value)}"


def compared(run: FoundRun) -> Mapping[str, Any]:
    """Settings that can change a result and may be shown."""
    return {
        key: value
        for key, value in run.settings.items()
        if not key.startswith(_NOT_COMPARED) and key not in SECRET | FOLDERS
    }


def differences(runs: Sequence[FoundRun]) -> list[str]:
    """Keys of settings in which runs differ, in the settings' order."""
    settings = [compared(run) for run in runs if run.settings]
    differing = []
    for key in dict.fromkeys(chain.from_iterable(settings)):
        # A key of a choice is missing under another; any other missing key is another version's.
        is_of_choice = key.partition(".")[0] in OPTIONS
        having = [values for values in settings if key in values or is_of_choice]
        if len({repr(values.get(key)) for values in having}) < 2:
            continue
        if key == _IMPLIED and all(_is_implied(values) for values in settings):
            continue
        if not all(key in values for values in settings) and _all_defaults(key, settings):
            continue
        differing.append(key)
    return differing


def _is_implied(values: Mapping[str, Any]) -> bool:
    return bool(values.get(_IMPLIED)) == (values.get("privacy.mode") == "dp_sgd")


def _all_defaults(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether nobody chose a value of a key: each is null, or the default of an option."""
    known = all_keys().get(key)
    defaults = [None] if known is None else [None, known.default, *known.other_defaults.values()]
    return all(values[key] in defaults for values in settings if key in values)


def shown_value(value: Any) -> str:
    """A setting's value as text, at most 80 characters."""
    match value:
        case None:
            text = "null"
        case bool():
            text = str(value).lower()
        case list():
            text = f"[{','.join(map(shown_value, value))}]"
        case _:
            text = str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
