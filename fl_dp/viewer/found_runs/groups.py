"""Runs that differ in their seed alone, as one curve with a band; and what else differs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_dp.app.keys import FOLDERS, SECRET
from fl_dp.app.settings import OPTIONS

from .details import FoundRun
from .rounds import Round

# Where a run is written and computed changes nothing of what it comes to.
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


@dataclass(frozen=True, kw_only=True)
class RoundRange:
    """One round of a group: mean, lowest and highest over the runs that have it.

    Attributes:
        round: Its number.
        mean: Over the runs.
        low: Of the runs.
        high: Of the runs.
    """

    round: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ in their seed alone.

    Attributes:
        name: What tells it from the other groups.
        runs: Its runs, at least one.
    """

    name: str
    runs: tuple[FoundRun, ...]

    def series(self, value: Callable[[Round], float | None]) -> list[RoundRange]:
        """Return a number of each round over the runs; rounds without one are left out."""
        found: dict[int, list[float]] = {}
        for run in self.runs:
            for each in run.rounds:
                number = value(each)
                if number is not None:
                    found.setdefault(each.round, []).append(number)
        return [
            RoundRange(round=at, mean=statistics.fmean(values), low=min(values), high=max(values))
            for at, values in sorted(found.items())
        ]


def groups_of(runs: Sequence[FoundRun]) -> list[Group]:
    """Return the runs by their settings, in the order in which they were named."""
    members: dict[str, list[FoundRun]] = {}
    for index, run in enumerate(runs):
        # Settings that can't be read are like no others.
        key = repr(sorted(compared(run).items())) if run.settings else f"unknown {index}"
        members.setdefault(key, []).append(run)
    of_groups = [each[0] for each in members.values()]
    differing = differences(of_groups)
    names: list[str] = []
    for run, group in zip(of_groups, members.values(), strict=True):
        settings = compared(run)
        # A key of another choice is not there.
        told = [f"{key}={shown_value(settings[key])}" for key in differing[:4] if key in settings]
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        names.append(", ".join(told) or f"{run.card.name}{more}")
    return [
        Group(
            name=name if names.count(name) == 1 else f"{name} ({each[0].card.name})",
            runs=tuple(each),
        )
        for name, each in zip(names, members.values(), strict=True)
    ]


def compared(run: FoundRun) -> Mapping[str, Any]:
    """Return the settings that a result can depend on and that may be shown."""
    return {
        key: value
        for key, value in run.settings.items()
        if not key.startswith(_NOT_COMPARED) and key not in SECRET | FOLDERS
    }


def differences(runs: Sequence[FoundRun]) -> list[str]:
    """Return the keys of settings in which runs differ, in the order of the settings."""
    of_runs = [compared(run) for run in runs if run.settings]
    keys = dict.fromkeys(key for each in of_runs for key in each)
    # A key of a choice is not there under another; any other that is missing is another version's.
    return [
        key
        for key in keys
        if len(
            {
                repr(each.get(key))
                for each in of_runs
                if key in each or key.partition(".")[0] in OPTIONS
            }
        )
        > 1
    ]


def shown_value(value: Any) -> str:
    """Return a setting's value as it is written, at most 80 characters of it."""
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
