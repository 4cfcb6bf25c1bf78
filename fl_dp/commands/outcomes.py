"""Outcome of one training, read from its folder: for the summary, and for `results.csv`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_dp.commands.terminal.results import Result
    from fl_dp.commands.terminal.summary import RunSummary

    from .jobs import Job, Jobs


def summary_of(job: Job) -> RunSummary:
    """Return what a finished training came to, for people."""
    from fl_dp.commands.terminal.summary import RunSummary

    statement = job.folder.read_statement()
    last = job.folder.read_metrics()[-1]
    so_far = statement.get("epsilon_so_far", {}).values()
    is_measured = job.folder.private_metrics.is_file()
    records = statement.get("records")
    return RunSummary(
        path=str(job.path),
        variant=job.variant if job.place is None else f"{job.variant} at {job.place}",
        rounds=statement["rounds"],
        test_accuracy=last.get("test_accuracy"),
        test_metrics=_metrics(last),
        measured_on=measured_on(job),
        epsilon=_quoted(statement),
        epsilon_so_far=last["epsilon"] if is_measured else min(so_far) if so_far else None,
        is_measured_privately=is_measured,
        delta=statement["delta"],
        unit=_unit(job),
        record_epsilon=None if records is None else _quoted(records),
        record_delta=None if records is None else records["delta"],
        bytes_down=last.get("bytes_down"),
        bytes_up=last.get("bytes_up"),
    )


def result_of(job: Job, seconds: float | None) -> Result:
    """Return a finished training as a line of `results.csv`.

    Args:
        job: The training.
        seconds: How long it took; None if that is not known.
    """
    from fl_dp.commands.terminal.results import Result, least_noise, noise_of_mean
    from fl_dp.ledger.training import library_versions

    statement = job.folder.read_statement()
    last = job.folder.read_metrics()[-1]
    # A run that promises nothing computes no privacy number, and so names no versions.
    versions = statement.get("versions") or library_versions()
    return Result(
        cell=job.path.name,
        curve=job.variant or "default",
        x=job.place,
        seed=job.settings.seed,
        accuracy=last.get("test_accuracy"),
        loss=last["test_loss"],
        measured_on=measured_on(job),
        epsilon=_quoted(statement),
        delta=statement["delta"],
        unit="nobody" if math.isinf(_quoted(statement)) else _unit(job),
        noise_multiplier=least_noise(statement),
        noise_of_mean=noise_of_mean(
            statement,
            scheme=job.settings.privacy.scheme,
            cohort=last["expected_cohort"],
        ),
        rounds=statement["rounds"],
        seconds=None if seconds is None else round(seconds, 1),
        versions=";".join(f"{name} {number}" for name, number in versions.items()),
        metrics=_metrics(last),
    )


def _metrics(line: dict[str, Any]) -> dict[str, float]:
    """Return the metrics on public rows that are one number, besides accuracy and loss."""
    from fl_dp.tasks.metrics import NUMBERS

    found = {name: line.get(f"test_{name}") for name in NUMBERS}
    return {name: value for name, value in found.items() if value is not None}


def results_so_far(jobs: Jobs) -> dict[str, Result]:
    """Return the lines of a sweep's `results.csv`, by their folders; none before it has any."""
    from fl_dp.commands.terminal.results import read_results

    if not jobs.results.is_file():
        return {}
    return {result.cell: result for result in read_results(jobs.results)}


def measured_on(job: Job) -> str:
    """Return the public rows that a training's score is of."""
    return "validation" if job.settings.task.validation else "test"


def _quoted(statement: dict[str, Any]) -> float:
    """Return the epsilon that a statement quotes; infinite where the noise can be predicted."""
    if statement.get("insecure", False):
        return math.inf
    return float(statement["epsilon"].get(statement["quoted"], math.inf))


def _unit(job: Job) -> str:
    settings = job.settings
    of_records = settings.protects_records_alone or settings.privacy.unit == "record"
    return "one record" if of_records else "one client"
