"""Trainings that `fl-dp run` was asked for, checked before Flower starts, each with its folder.

Cheap checks come first, for all of them: settings, names of folders, devices. The checks that take
time follow: data, models, calibrations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fl_dp.app.overrides import ConfigError, quoted
from fl_dp.app.settings.sweep import SWEEP
from fl_dp.files import write_text

from .console import doing, note, redirected_log, warn, warnings_shown

if TYPE_CHECKING:
    from fl_dp.app.run_folder import RunFolder
    from fl_dp.app.settings import Settings, SweepSettings
    from fl_dp.plan import Plan, RecordPlan

_CELL = re.compile(r"run-[0-9]+")  # a training's folder in that of its sweep
_PROCESSORS_PER_TRAINING = 4  # a training by itself keeps two to four of them busy


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training.

    Attributes:
        variant: The overrides that distinguish it in a sweep, without the seed; in an experiment,
            its curve.
        axis_value: Its position on the axis of an experiment, if there is one.
        digest: Digest of the settings; empty for a single training.
        overrides: Its overrides, with those of recipes, so that nobody looks these up again.
        settings: The composed settings.
        path: Its folder, absolute.
        resumed: Whether its folder holds a training to continue.
        finished: Whether there is nothing left to train.
        plan: Its plan, once it is planned; None: without a promise, or it was planned before.
        account: File or URL of its account; None: a throw-away one.
    """

    variant: str
    overrides: tuple[str, ...]
    settings: Settings
    path: Path
    axis_value: str | None = None
    digest: str = ""
    resumed: bool = False
    finished: bool = False
    plan: Plan | RecordPlan | None = None
    account: str | None = None

    @property
    def folder(self) -> RunFolder:
        """The folder that the training writes."""
        from fl_dp.app.run_folder import RunFolder

        return RunFolder(self.path)

    @property
    def title(self) -> str:
        """A name that distinguishes it from its siblings."""
        at = "" if self.axis_value is None else f" at {self.axis_value}"
        return f"{self.variant or self.settings.task.name}{at}, seed {self.settings.seed}"

    @property
    def sent(self) -> list[str]:
        """The overrides for the ServerApp; every path is absolute, as it runs elsewhere."""
        if self.resumed:
            return [f"resume={quoted(str(self.path))}"]
        sent = [
            *self.overrides,
            f"output_dir={quoted(str(self.path.parent))}",
            f"run_name={quoted(self.path.name)}",
        ]
        if self.account is not None:
            sent = [text for text in sent if not text.startswith("privacy.account=")]
            sent.append(f"privacy.account={quoted(self.account)}")
        # Decided on this machine, which starts the nodes.
        sent.append(f"simulation.engine={self.settings.simulation.engine}")
        sent.append(f"simulation.units_per_node={self.settings.simulation.units_per_node}")
        if self.settings.task.data_dir is not None:
            sent.append(f"task.data_dir={quoted(_absolute(self.settings.task.data_dir))}")
        return sent


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Everything that one call of `fl-dp run` does.

    Attributes:
        trainings: The trainings.
        sweep: The folder of their sweep; None for a single training.
        experiment: The sweep's settings and pictures, without curves for a plain sweep; None for a
            single training.
        side_by_side: Trainings at a time.
    """

    trainings: tuple[Job, ...]
    sweep: Path | None = None
    experiment: SweepSettings | None = None
    side_by_side: int = 1

    @property
    def path(self) -> Path:
        """The folder that holds everything."""
        if self.sweep is None:
            return self.trainings[0].path
        return self.sweep

    @property
    def results(self) -> Path:
        """The table of a sweep's results."""
        return self.path / "results.csv"

    def note(self) -> None:
        """Write the list of a sweep's trainings, so that an interrupted sweep can continue."""
        if self.sweep is None or self.experiment is None:
            return
        self.sweep.mkdir(parents=True, exist_ok=True)
        cells = []
        for job in self.trainings:
            cell = {
                "name": job.path.name,
                "variant": job.variant,
                "place": job.axis_value,
                "digest": job.digest,
                "overrides": list(job.overrides),
            }
            cells.append(cell)
        document = {"experiment": asdict(self.experiment), "cells": cells}
        write_text(self.sweep / SWEEP, json.dumps(document, indent=2) + "\n", public=True)


def find_jobs(overrides: Sequence[str], *, multirun: bool) -> Jobs:
    """Return the trainings that are asked for, after the checks that take no time.

    Raises:
        ValueError: If settings are wrong or exclude each other.
        OSError: If a folder is taken, missing, or can't be written to.
    """
    from fl_dp.app.compose import compose_settings
    from fl_dp.app.recipes import with_recipe

    if any(text.startswith("resume=") for text in overrides):
        if len(overrides) > 1 or multirun:
            raise ValueError(
                "a run continues with the settings it was made with: write resume=FOLDER alone"
            )
        path = Path(_absolute(compose_settings(overrides).resume or ""))
        if (path / SWEEP).is_file():
            return jobs_of_sweep(path)
        return Jobs(trainings=(_job_in(path),))
    if not multirun:
        composed = compose_settings(overrides)
        composed.sweep.require_none()
        tell_recipes([overrides])
        [settings] = _checked([composed])
        path = _new_folder(settings)
        job = Job(variant="", overrides=with_recipe(overrides), settings=settings, path=path)
        return Jobs(trainings=(_in_account(job, path),))
    with doing("composing the trainings"):
        from fl_dp.app.cells import expand  # with the accounting, which one training needs later

        experiment, cells = expand(overrides)
    tell_recipes([cell.overrides for cell in cells])
    at_a_time = at_once(experiment, [cell.settings for cell in cells])
    checked = _checked([cell.settings for cell in cells], at_a_time)
    path = _new_folder(checked[0], _experiment_of(overrides))
    trainings: list[Job] = []
    for index, (cell, settings) in enumerate(zip(cells, checked, strict=True)):
        job = Job(
            variant=cell.curve,
            axis_value=cell.axis_value,
            digest=cell.digest,
            overrides=with_recipe(cell.overrides),
            settings=settings,
            path=path / f"run-{index}",
        )
        trainings.append(_in_account(job, path))
    return Jobs(
        trainings=tuple(trainings), sweep=path, experiment=experiment, side_by_side=at_a_time
    )


def _in_account(job: Job, path: Path) -> Job:
    """Return a new training with its account, beside the folder of all trainings.

    A delta that is null is half of what the account has left. It becomes an override, so that a
    sweep that is continued has the same one.
    """
    if not job.settings.has_account:
        return job  # what follows imports the ledger, and an engine starts while others do
    from fl_dp.app.accounts import RunAccount, with_account_delta
    from fl_dp.app.cells import digest_of

    run_account = RunAccount.of(job.settings, path)
    if run_account is None:
        return job
    run_account.require_unused()
    settings = with_account_delta(job.settings, path)
    job = replace(job, account=run_account.location)
    if settings is job.settings:
        return job
    group = "privacy" if settings.protects_clients else "dp_sgd"
    delta = getattr(settings, group).delta
    kept = [text for text in job.overrides if not text.startswith(f"{group}.delta=")]
    overrides = (*kept, f"{group}.delta={delta!r}")
    digest = job.digest and digest_of(settings)
    return replace(job, settings=settings, overrides=overrides, digest=digest)


def tell_recipes(trainings: Iterable[Sequence[str]]) -> None:
    """Print once what recipes add to the overrides of trainings."""
    from fl_dp.app.recipes import recipe_of

    notes = (line for overrides in trainings for line in recipe_of(overrides).notes)
    for line in dict.fromkeys(notes):
        note(line)


def prepare(job: Job, of_sweep: str = "") -> Job:
    """Check what takes time: data, model, plan.

    Raises:
        ValueError: If the data are corrupt, or the rounds do not fit the budget.
        OSError: If the data are missing.
        LedgerCorrupted: If the ledger of a training to continue was altered.
    """
    if job.finished:
        return job
    settings = job.settings
    with doing(f"loading the data{of_sweep}: task={settings.task.name}", plainly=not of_sweep):
        from fl_dp.app.workload import check_model, require_records

        require_records(settings)  # shows missing or corrupt data here
        check_model(settings)  # and a model that does not fit them
    if settings.features.name != "none":
        work = f"encoding the records{of_sweep}: features={settings.features.name}"
        from fl_dp.app.workload import dataset_of
        from fl_dp.tasks.features.encoding_progress import PROGRESS

        with doing(work, plainly=True) as show, redirected_log(PROGRESS, show):
            dataset_of(settings)  # cached for the nodes
    if job.resumed and job.folder.has_ledger:
        job.folder.read_plan()
        return job
    if not (settings.protects_clients or settings.protects_records):
        return job
    with doing(f"calibrating the noise{of_sweep}: {_target(settings)}", plainly=True):
        from fl_dp.app.planning import check_layers, make_plan, make_record_plan

        check_layers(settings)
        with warnings_shown():
            record_plan = make_record_plan(settings)
            plan = make_plan(settings) if settings.protects_clients else record_plan
    return replace(job, plan=plan)


def _target(settings: Settings) -> str:
    chosen = settings.privacy if settings.protects_clients else settings.record_training
    if chosen.noise_multiplier is not None:
        return f"noise multiplier {chosen.noise_multiplier:g}, {settings.rounds} rounds"
    assert chosen.epsilon is not None  # the settings refuse both being null
    return f"epsilon={chosen.epsilon:g}, {settings.rounds} rounds"


def at_once(experiment: SweepSettings, trainings: Iterable[Settings]) -> int:
    """Return how many trainings of a sweep run at a time: as many as the most demanding allows."""
    return min(_at_once(experiment, settings) for settings in trainings)


def _at_once(experiment: SweepSettings, settings: Settings) -> int:
    from fl_dp.app.local.auto_hosting import with_engine
    from fl_dp.app.local.devices import Machine

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
    return max(1, Machine.here().cpus // _PROCESSORS_PER_TRAINING)


def _checked(composed: Sequence[Settings], at_a_time: int = 1) -> list[Settings]:
    """Check settings against this machine, and decide what they leave open."""
    from fl_dp.app.local.auto_hosting import hosted
    from fl_dp.app.local.cluster import cluster_at
    from fl_dp.app.local.devices import Machine, check_devices
    from fl_dp.app.tracking import require_installed

    for settings in composed:
        require_installed(settings.tracking.name)
    machine = Machine.here()
    machines: list[Machine] = []
    warnings: list[str | None] = []
    for settings in composed:
        address = settings.simulation.ray_address
        if address is None:
            machines.append(machine)
            warnings.append(check_devices(settings, machine))
            continue
        cluster = cluster_at(address)
        machines.append(cluster.machine)
        warnings += [check_devices(settings, cluster.machine), cluster.caution]
        note(cluster.summary)
    for text in dict.fromkeys(filter(None, warnings)):
        warn(text)
    decided: list[Settings] = []
    reasons: list[str | None] = []
    for settings, whole in zip(composed, machines, strict=True):
        settings, reason = hosted(settings, whole.shared_by(at_a_time))
        decided.append(settings)
        reasons.append(reason)
    for text in dict.fromkeys(filter(None, reasons)):
        note(text)
    return decided


def _job_in(path: Path) -> Job:
    """Return the training in a folder.

    Raises:
        ConfigError: If its nodes are real; the text has the command that continues it.
        HeldElsewhere: If another process trains in it.
    """
    from fl_dp.app.run_folder import RunFolder

    folder = RunFolder(path)
    stored = folder.read_settings()
    if stored.task.partition == "nodes":  # with data of their own, which no simulation has
        raise ConfigError(
            f"{path} is of a run by `flwr run`, whose nodes are real: to go on with it write "
            f"flwr run . CONNECTION --stream --run-config \"hydra-overrides='resume={path}'\"",
            option="resume",
        )
    with folder.held():
        pass  # the process that trains will lock it; here nobody else does
    [settings] = _checked([stored])
    lines = folder.read_metrics()
    done = bool(lines) and lines[-1]["round"] >= settings.rounds and folder.statement.is_file()
    return Job(variant="", overrides=(), settings=settings, path=path, resumed=True, finished=done)


def jobs_of_sweep(path: Path) -> Jobs:
    """Return an interrupted sweep, with what is finished, what continues, and what is missing.

    Raises:
        ValueError: If it can't be read, or a training has other settings than at its start.
    """
    from fl_dp.app.settings import SweepSettings

    try:
        document = json.loads((path / SWEEP).read_text(encoding="utf-8"))
        experiment = SweepSettings(**document["experiment"])
        cells = [_Cell(**cell) for cell in document["cells"]]
        if not cells:
            raise ValueError("it has no cells")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path / SWEEP} is not what a sweep of fl-dp writes: {error}") from error
    with doing("looking at what there is"):
        jobs = [_pinned(path / cell.name, cell) for cell in cells]
    at_a_time = at_once(experiment, [job.settings for job in jobs])
    missing = iter(_checked([job.settings for job in jobs if not job.resumed], at_a_time))
    trainings = tuple(job if job.resumed else replace(job, settings=next(missing)) for job in jobs)
    return Jobs(trainings=trainings, sweep=path, experiment=experiment, side_by_side=at_a_time)


@dataclass(frozen=True, kw_only=True)
class _Cell:
    """One training of a sweep, as `sweep.json` stores it."""

    name: str
    variant: str
    place: str | None
    digest: str
    overrides: list[str]

    def __post_init__(self) -> None:
        """Check the values of the file, which somebody may have edited.

        Raises:
            ValueError: If a value is of another type, or the name leads out of the sweep's folder.
        """
        texts = [self.name, self.variant, self.digest]
        if self.place is not None:
            texts.append(self.place)
        if not isinstance(self.overrides, list):
            raise ValueError(f"the overrides of a cell are a list, got {self.overrides!r}")
        for text in [*texts, *self.overrides]:
            if not isinstance(text, str):
                raise ValueError(f"a cell has texts alone, got {text!r}")
        if _CELL.fullmatch(self.name) is None:
            raise ValueError(f"a cell's folder is run-NUMBER, got {self.name!r}")


def _pinned(path: Path, cell: _Cell) -> Job:
    """Return a training of an interrupted sweep, at the point that it has reached."""
    from fl_dp.app.accounts import RunAccount
    from fl_dp.app.cells import digest_of
    from fl_dp.app.compose import compose_settings

    if path.exists():
        job, changed = _job_in(path), f"{path / 'config.yaml'} was"
    else:
        settings = compose_settings(cell.overrides)
        run_account = RunAccount.of(settings, path.parent)
        account = None if run_account is None else run_account.location
        job = Job(variant="", overrides=(), settings=settings, path=path, account=account)
        changed = "conf/ or fl-dp itself was"
    if digest_of(job.settings) != cell.digest:
        raise ValueError(
            f"{path} has other settings than this sweep began with: {changed} changed since, and "
            "results of different settings are never mixed; start a new sweep"
        )
    return replace(
        job,
        variant=cell.variant,
        axis_value=cell.place,
        digest=cell.digest,
        overrides=tuple(cell.overrides),
    )


def _experiment_of(overrides: Sequence[str]) -> str | None:
    names = [text.partition("=")[2] for text in overrides if text.startswith("experiment=")]
    return names[-1] if names else None


def _new_folder(settings: Settings, experiment: str | None = None) -> Path:
    """Return a new folder that can be made, named after experiment or task."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = settings.run_name or f"{stamp}-{experiment or settings.task.name}"
    path = Path(_absolute(settings.output_dir or "runs")) / name
    if path.exists():
        raise FileExistsError(
            f"{path} exists already: choose another run_name, or leave it out; if it was stopped, "
            f"`fl-dp run resume={path}` continues it"
        )
    parent = next(parent for parent in path.parents if parent.exists())
    try:
        with TemporaryDirectory(prefix=".fl-dp-", dir=parent):
            pass  # permissions alone do not show a read-only disk
    except OSError as error:
        raise PermissionError(
            f"{parent} can't be written to ({error.strerror}): choose another output_dir"
        ) from error
    return path


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())
