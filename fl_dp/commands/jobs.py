"""Trainings that `fl-dp run` was asked for, checked before Flower starts, each with its folder.

Cheap checks come first, for all of them: settings, names of folders, devices. Then what takes
time: data, models, calibrations.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fl_dp.app.overrides import ConfigError, quoted
from fl_dp.app.settings.sweep import SWEEP
from fl_dp.files import write_text
from fl_dp.promise import brief_epsilon

from .console import doing, note, told_by, warn, warnings_shown

if TYPE_CHECKING:
    from fl_dp.app.run_folder import RunFolder
    from fl_dp.app.settings import Settings, SweepSettings

_CELL = re.compile(r"run-[0-9]+")  # a training's folder in that of its sweep
_PROCESSORS_EACH = 4  # one training alone keeps two to four of them busy


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training.

    Attributes:
        variant: The overrides that tell it from its siblings in a sweep, but for the seed; of an
            experiment, its curve.
        place: Its place on the axis of an experiment, if there is one.
        digest: Of the settings, which it keeps to; empty for a single training.
        overrides: What it was asked for by, and what that brought: nobody looks it up again.
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
    place: str | None = None
    digest: str = ""
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
        at = "" if self.place is None else f" at {self.place}"
        return f"{self.variant or self.settings.task.name}{at}, seed {self.settings.seed}"

    @property
    def sent(self) -> list[str]:
        """The overrides for the ServerApp, which runs elsewhere: every path in them is absolute."""
        if self.resumed:
            return [f"resume={quoted(str(self.path))}"]
        sent = [
            *self.overrides,
            f"output_dir={quoted(str(self.path.parent))}",
            f"run_name={quoted(self.path.name)}",
        ]
        # Decided here, for the nodes that are started here.
        sent.append(f"simulation.engine={self.settings.simulation.engine}")
        sent.append(f"simulation.units_per_node={self.settings.simulation.units_per_node}")
        if self.settings.task.data_dir is not None:
            sent.append(f"task.data_dir={quoted(_absolute(self.settings.task.data_dir))}")
        return sent


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Everything that one call of `fl-dp run` does.

    Attributes:
        each: The trainings.
        sweep: The folder of the sweep that they belong to; None for a single one.
        experiment: What the sweep was made from and how it is drawn; None for a single one, and
            without curves for a plain sweep.
        side_by_side: Trainings at a time.
    """

    each: tuple[Job, ...]
    sweep: Path | None = None
    experiment: SweepSettings | None = None
    side_by_side: int = 1

    @property
    def path(self) -> Path:
        """The folder in which everything is."""
        return self.each[0].path if self.sweep is None else self.sweep

    @property
    def results(self) -> Path:
        """The table of a sweep's results."""
        return self.path / "results.csv"

    def note(self) -> None:
        """Write down what a sweep consists of, so that it can be continued when it was stopped."""
        if self.sweep is None or self.experiment is None:
            return
        self.sweep.mkdir(parents=True, exist_ok=True)
        cells = [
            {
                "name": job.path.name,
                "variant": job.variant,
                "place": job.place,
                "digest": job.digest,
                "overrides": list(job.overrides),
            }
            for job in self.each
        ]
        document = {"experiment": asdict(self.experiment), "cells": cells}
        write_text(self.sweep / SWEEP, json.dumps(document, indent=2) + "\n", public=True)


def find_jobs(overrides: Sequence[str], *, multirun: bool) -> Jobs:
    """Return the trainings that are asked for, after the checks that cost next to nothing.

    Raises:
        ValueError: If settings are wrong or exclude each other.
        OSError: If a folder is taken, missing, or can't be written to.
    """
    from fl_dp.app.compose import compose_settings
    from fl_dp.app.recipes import with_recipe

    if any(one.startswith("resume=") for one in overrides):
        if len(overrides) > 1 or multirun:
            raise ValueError(
                "a run continues with the settings it was made with: write resume=FOLDER alone"
            )
        path = Path(_absolute(compose_settings(overrides).resume or ""))
        return jobs_of_sweep(path) if (path / SWEEP).is_file() else Jobs(each=(_found(path),))
    if not multirun:
        composed = compose_settings(overrides)
        composed.sweep.require_none()
        tell_recipes([overrides])
        [settings] = _checked([composed])
        path = _place_for(settings)
        return Jobs(
            each=(Job(variant="", overrides=with_recipe(overrides), settings=settings, path=path),)
        )
    with doing("composing the trainings"):
        from fl_dp.app.cells import expand  # with the accounting, which one training needs later

        experiment, cells = expand(overrides)
    tell_recipes([cell.overrides for cell in cells])
    at_a_time = at_once(experiment, [cell.settings for cell in cells])
    checked = _checked([cell.settings for cell in cells], at_a_time)
    path = _place_for(checked[0], _experiment_of(overrides))
    each = tuple(
        Job(
            variant=cell.curve,
            place=cell.place,
            digest=cell.digest,
            overrides=with_recipe(cell.overrides),
            settings=settings,
            path=path / f"run-{index}",
        )
        for index, (cell, settings) in enumerate(zip(cells, checked, strict=True))
    )
    return Jobs(each=each, sweep=path, experiment=experiment, side_by_side=at_a_time)


def tell_recipes(trainings: Iterable[Sequence[str]]) -> None:
    """Say once what the overrides of trainings bring with them."""
    from fl_dp.app.recipes import recipe_of

    told = (line for overrides in trainings for line in recipe_of(overrides).told)
    for line in dict.fromkeys(told):
        note(line)


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
        from fl_dp.app.workload import check_model, require_records

        require_records(settings)  # a data set that is missing or corrupt shows here
        check_model(settings)  # and a model that does not fit it
    if settings.features.name != "none":
        said = f"encoding the records{place}: features={settings.features.name}"
        from fl_dp.app.workload import dataset_of
        from fl_dp.tasks.features.progress import PROGRESS

        with doing(said, plainly=True) as say, told_by(PROGRESS, say):
            dataset_of(settings)  # kept for the nodes
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
    asked = settings.privacy if settings.protects_clients else settings.record_training
    if asked.noise_multiplier is not None:
        return f"noise multiplier {asked.noise_multiplier:g}, {settings.rounds} rounds"
    assert asked.epsilon is not None  # the settings refuse both being null
    return f"epsilon {brief_epsilon(asked.epsilon)}, {settings.rounds} rounds"


def at_once(experiment: SweepSettings, each: Iterable[Settings]) -> int:
    """Return how many trainings of a sweep run at a time: as many as the most demanding allows."""
    return min(_at_once(experiment, settings) for settings in each)


def _at_once(experiment: SweepSettings, settings: Settings) -> int:
    from fl_dp.app.local.devices import Machine
    from fl_dp.app.local.hosting import with_engine

    settings, _ = with_engine(settings)
    one_port = settings.tracking.metrics_port is not None
    on_cluster = settings.simulation.engine == "cluster"
    if (one_port or on_cluster) and (experiment.side_by_side or 1) > 1:
        key = "tracking.metrics_port" if one_port else "simulation.ray_address"
        raise ValueError(
            f"one training at a time can have {key}: write sweep.side_by_side=1, or leave it out"
        )
    if one_port or on_cluster:
        return 1
    if experiment.side_by_side is not None:
        return experiment.side_by_side
    if settings.simulation.num_gpus > 0:
        return 1  # the workers of one training share the GPUs already
    if settings.simulation.engine == "in_process":
        return Machine.here().cpus  # each computes on one
    return max(1, Machine.here().cpus // _PROCESSORS_EACH)


def _checked(composed: Sequence[Settings], at_a_time: int = 1) -> list[Settings]:
    """Check settings against this machine, and decide what is left to it.

    Args:
        composed: What is to be trained.
        at_a_time: Trainings that share this machine.
    """
    from fl_dp.app.local.cluster import cluster_at
    from fl_dp.app.local.devices import Machine, check_devices
    from fl_dp.app.local.hosting import hosted
    from fl_dp.app.tracking import require_installed

    for settings in composed:
        require_installed(settings.tracking.name)
    machine = Machine.here()
    machines: list[Machine] = []
    said: list[str | None] = []
    for settings in composed:
        address = settings.simulation.ray_address
        cluster = None if address is None else cluster_at(address)
        machines.append(machine if cluster is None else cluster.machine)
        said += [check_devices(settings, machines[-1]), cluster.caution if cluster else None]
        if cluster is not None:
            note(cluster.told)
    for text in dict.fromkeys(filter(None, said)):
        warn(text)
    decided = [
        hosted(settings, each.shared_by(at_a_time))
        for settings, each in zip(composed, machines, strict=True)
    ]
    for text in dict.fromkeys(text for _, text in decided if text is not None):
        note(text)
    return [settings for settings, _ in decided]


def _found(path: Path) -> Job:
    """Return the training that a folder holds.

    Raises:
        ConfigError: If its nodes are real, with the command that goes on with it.
        HeldElsewhere: If another process trains in it.
    """
    from fl_dp.app.run_folder import RunFolder

    folder = RunFolder(path)
    found = folder.read_settings()
    if found.task.partition == "nodes":  # their own data: no simulation can go on with it
        raise ConfigError(
            f"{path} is of a run by `flwr run`, whose nodes are real: to go on with it write "
            f"flwr run . CONNECTION --stream --run-config \"hydra-overrides='resume={path}'\""
        )
    with folder.held():
        pass  # by the process that trains, once it is started: here nobody else has it
    [settings] = _checked([found])
    lines = folder.read_metrics()
    done = bool(lines) and lines[-1]["round"] >= settings.rounds and folder.statement.is_file()
    return Job(variant="", overrides=(), settings=settings, path=path, resumed=True, finished=done)


def jobs_of_sweep(path: Path) -> Jobs:
    """Return a sweep that was stopped: what is finished, what continues, and what is missing.

    Raises:
        ValueError: If it can't be read, or a training's settings are not those that it began with.
    """
    from fl_dp.app.settings import SweepSettings

    try:
        document = json.loads((path / SWEEP).read_text(encoding="utf-8"))
        experiment = SweepSettings(**document["experiment"])
        known = [_Known(**cell) for cell in document["cells"]]
        if not known:
            raise ValueError("it has no cells")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path / SWEEP} is not what a sweep of fl-dp writes: {error}") from error
    with doing("looking at what there is"):
        begun = [_pinned(path / cell.name, cell) for cell in known]
    at_a_time = at_once(experiment, [job.settings for job in begun])
    missing = iter(_checked([job.settings for job in begun if not job.resumed], at_a_time))
    each = tuple(job if job.resumed else replace(job, settings=next(missing)) for job in begun)
    return Jobs(each=each, sweep=path, experiment=experiment, side_by_side=at_a_time)


@dataclass(frozen=True, kw_only=True)
class _Known:
    """One training of a sweep, as `sweep.json` has it."""

    name: str
    variant: str
    place: str | None
    digest: str
    overrides: list[str]

    def __post_init__(self) -> None:
        """Check what the file says, which somebody may have edited.

        Raises:
            ValueError: If a value is of another type, or the name leads out of the sweep's folder.
        """
        texts = [self.name, self.variant, self.digest]
        texts += [] if self.place is None else [self.place]
        if not isinstance(self.overrides, list):
            raise ValueError(f"the overrides of a cell are a list, got {self.overrides!r}")
        for text in [*texts, *self.overrides]:
            if not isinstance(text, str):
                raise ValueError(f"a cell has texts alone, got {text!r}")
        if _CELL.fullmatch(self.name) is None:
            raise ValueError(f"a cell's folder is run-NUMBER, got {self.name!r}")


def _pinned(path: Path, cell: _Known) -> Job:
    """Return a training of a sweep that was stopped, where it has got to.

    Raises:
        ValueError: If its settings are not those that the sweep began with.
    """
    from fl_dp.app.cells import digest_of
    from fl_dp.app.compose import compose_settings

    if path.exists():
        job, changed = _found(path), f"{path / 'config.yaml'} was"
    else:
        settings = compose_settings(cell.overrides)
        job = Job(variant="", overrides=(), settings=settings, path=path)
        changed = "conf/ or fl-dp itself was"
    if digest_of(job.settings) != cell.digest:
        raise ValueError(
            f"{path} has other settings than this sweep began with: {changed} changed since, and "
            "results of different settings are never mixed; start a new sweep"
        )
    return replace(
        job,
        variant=cell.variant,
        place=cell.place,
        digest=cell.digest,
        overrides=tuple(cell.overrides),
    )


def _experiment_of(overrides: Sequence[str]) -> str | None:
    """Return the name that `experiment=NAME` says, if anything does."""
    named = [one.partition("=")[2] for one in overrides if one.startswith("experiment=")]
    return named[-1] if named else None


def _place_for(settings: Settings, experiment: str | None = None) -> Path:
    """Return a folder that is not taken and can be made, named after experiment or task.

    Raises:
        FileExistsError: If there is something of that name: its ledger must not be overwritten.
        PermissionError: If nothing can be written there.
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = settings.run_name or f"{stamp}-{experiment or settings.task.name}"
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


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())
