"""Trainings that `fl-dp run` was asked for, checked before Flower starts, each with its folder.

Cheap checks come first, for all of them: settings, names of folders, devices. Then what takes
time: data, models, calibrations.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .console import doing, note, warn, warnings_shown

if TYPE_CHECKING:
    from fl_dp.app.run_folder import RunFolder
    from fl_dp.app.settings import Settings

_SWEEP = "sweep.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training.

    Attributes:
        variant: The overrides that tell it from its siblings in a sweep, but for the seed.
        overrides: What it was asked for by.
        settings: What they compose to.
        path: Its folder, absolute.
        resumed: Whether its folder holds a training to continue.
        finished: Whether there is nothing left to train.
        budget: The epsilon that it may spend: infinite without privacy, and until it is planned.
    """

    variant: str
    overrides: tuple[str, ...]
    settings: Settings
    path: Path
    resumed: bool = False
    finished: bool = False
    budget: float = field(default=math.inf)

    @property
    def folder(self) -> RunFolder:
        """The folder that the training writes."""
        from fl_dp.app.run_folder import RunFolder

        return RunFolder(self.path)

    @property
    def title(self) -> str:
        """A name that tells it from its siblings."""
        return f"{self.variant or self.settings.task.name}, seed {self.settings.seed}"

    @property
    def sent(self) -> list[str]:
        """The overrides for the ServerApp, which runs elsewhere: every path in them is absolute."""
        if self.resumed:
            return [_quoted("resume", str(self.path))]
        sent = [
            *self.overrides,
            _quoted("output_dir", str(self.path.parent)),
            _quoted("run_name", self.path.name),
        ]
        # Decided here, for the nodes that are started here.
        sent.append(f"simulation.units_per_node={self.settings.simulation.units_per_node}")
        if self.settings.task.data_dir is not None:
            sent.append(_quoted("task.data_dir", _absolute(self.settings.task.data_dir)))
        return sent


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Everything that one call of `fl-dp run` does.

    Attributes:
        each: The trainings.
        sweep: The folder of the sweep that they belong to; None for a single one.
    """

    each: tuple[Job, ...]
    sweep: Path | None = None

    @property
    def path(self) -> Path:
        """The folder in which everything is."""
        return self.each[0].path if self.sweep is None else self.sweep

    def note(self) -> None:
        """Write down what a sweep consists of, so that it can be continued when it was stopped."""
        if self.sweep is None:
            return
        self.sweep.mkdir(parents=True, exist_ok=True)
        cells = [
            {"name": job.path.name, "variant": job.variant, "overrides": list(job.overrides)}
            for job in self.each
        ]
        text = json.dumps({"cells": cells}, indent=2) + "\n"
        (self.sweep / _SWEEP).write_text(text, encoding="utf-8")


def find_jobs(overrides: Sequence[str], *, multirun: bool) -> Jobs:
    """Return the trainings that are asked for, after the checks that cost next to nothing.

    Raises:
        ValueError: If settings are wrong or exclude each other.
        OSError: If a folder is taken, missing, or can't be written to.
    """
    from fl_dp.app.compose import compose_settings, expand_sweep

    if any(one.startswith("resume=") for one in overrides):
        if len(overrides) > 1 or multirun:
            raise ValueError(
                "a run continues with the settings it was made with: write resume=FOLDER alone"
            )
        path = Path(_absolute(compose_settings(overrides).resume or ""))
        return _jobs_of_sweep(path) if (path / _SWEEP).is_file() else Jobs(each=(_found(path),))
    cells = expand_sweep(overrides) if multirun else [list(overrides)]
    composed = _checked([compose_settings(cell) for cell in cells])
    path = _place_for(composed[0])
    if not multirun:
        return Jobs(each=(_job(overrides, composed[0], path),))
    # Titles of runs name what differs; every run would repeat the rest.
    shared = set.intersection(*(set(cell) for cell in cells))
    each = tuple(
        _job(cell, settings, path / f"run-{index}", variant=_variant(cell, shared))
        for index, (cell, settings) in enumerate(zip(cells, composed, strict=True))
    )
    return Jobs(each=each, sweep=path)


def prepare(job: Job, place: str = "") -> Job:
    """Check what takes time, and return the training with the epsilon that it may spend.

    Args:
        job: What was found.
        place: Where it stands in a sweep, for example ` of run 2 of 6`.

    Raises:
        ValueError: If the data is corrupt, or its rounds do not fit the budget.
        OSError: If the data is missing.
        LedgerCorrupted: If the ledger of a training to continue was altered.
    """
    if job.finished:
        return job
    settings = job.settings
    with doing(f"loading the data{place}: task={settings.task.name}", plainly=not place):
        from fl_dp.app.workload import check_model, parts_of

        parts_of(settings)  # a data set that is missing or corrupt shows here
        check_model(settings)  # and a model that does not fit it
    if job.resumed and job.folder.ledger.is_file():
        return replace(job, budget=job.folder.read_plan().budget.epsilon)
    if not (settings.protects_clients or settings.protects_records):
        return job
    with doing(f"calibrating the noise{place}: {_target(settings)}", plainly=True):
        from fl_dp.app.planning import check_layers, make_plan, make_record_plan

        check_layers(settings)
        with warnings_shown():
            record_plan = make_record_plan(settings)
            if settings.protects_clients:
                return replace(job, budget=make_plan(settings).budget.epsilon)
    return job if record_plan is None else replace(job, budget=record_plan.budget.epsilon)


def _target(settings: Settings) -> str:
    asked = settings.privacy if settings.protects_clients else settings.dp_sgd
    if asked.noise_multiplier is not None:
        return f"noise multiplier {asked.noise_multiplier:g}, {settings.rounds} rounds"
    return f"epsilon {asked.epsilon:g}, {settings.rounds} rounds"


def _checked(composed: Sequence[Settings]) -> list[Settings]:
    """Check settings against this machine, and decide what is left to it."""
    from fl_dp.local.devices import Machine, check_devices
    from fl_dp.local.hosting import hosted

    machine = Machine.here()
    said = [check_devices(settings, machine) for settings in composed]
    for text in dict.fromkeys(filter(None, said)):
        warn(text)
    decided = [hosted(settings, machine) for settings in composed]
    for text in dict.fromkeys(text for _, text in decided if text is not None):
        note(text)
    return [settings for settings, _ in decided]


def _job(overrides: Sequence[str], settings: Settings, path: Path, *, variant: str = "") -> Job:
    return Job(variant=variant, overrides=tuple(overrides), settings=settings, path=path)


def _found(path: Path, *, variant: str = "", overrides: Sequence[str] = ()) -> Job:
    """Return the training that a folder holds."""
    from fl_dp.app.run_folder import RunFolder

    folder = RunFolder(path)
    [settings] = _checked([folder.read_settings()])
    lines = folder.read_metrics()
    done = bool(lines) and lines[-1]["round"] >= settings.rounds and folder.statement.is_file()
    job = _job(overrides, settings, path, variant=variant)
    return replace(job, resumed=True, finished=done)


def _jobs_of_sweep(path: Path) -> Jobs:
    """Return a sweep that was stopped: what is finished, what continues, and what is missing."""
    from fl_dp.app.compose import compose_settings

    try:
        cells = json.loads((path / _SWEEP).read_text(encoding="utf-8"))["cells"]
        known = [(path / cell["name"], cell["variant"], cell["overrides"]) for cell in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path / _SWEEP} is not what a sweep of fl-dp writes: {error}") from error
    each = []
    for place, variant, overrides in known:
        if place.exists():
            each.append(_found(place, variant=variant, overrides=overrides))
        else:
            [settings] = _checked([compose_settings(overrides)])
            each.append(_job(overrides, settings, place, variant=variant))
    return Jobs(each=tuple(each), sweep=path)


def _place_for(settings: Settings) -> Path:
    """Return a folder that is not taken and can be made.

    Raises:
        FileExistsError: If there is something of that name: its ledger must not be overwritten.
        PermissionError: If nothing can be written there.
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = settings.run_name or f"{stamp}-{settings.task.name}"
    path = Path(_absolute(settings.output_dir or "runs")) / name
    if path.exists():
        raise FileExistsError(
            f"{path} exists already: choose another run_name, or leave it out; if it was stopped, "
            f"`fl-dp run resume={path}` continues it"
        )
    there = next(parent for parent in path.parents if parent.exists())
    try:
        with TemporaryDirectory(prefix=".fl-dp-", dir=there):
            pass  # permissions alone do not tell of a read-only disk
    except OSError as error:
        raise PermissionError(
            f"{there} can't be written to ({error.strerror}): choose another output_dir"
        ) from error
    return path


def _variant(overrides: Sequence[str], shared: set[str]) -> str:
    return " ".join(one for one in overrides if one not in shared and not one.startswith("seed="))


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def _quoted(key: str, value: str) -> str:
    """Return a Hydra override whose value may hold any character."""
    # Hydra reads a backslash literally unless quotes follow, and would interpolate a dollar sign.
    escaped = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ('\\"' if m[2] else ""), value)
    escaped = escaped.replace("${", "\\${")
    return f'{key}="{escaped}"'
