"""Result of one training, read from its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_dp.terminal.results import Result

    from .jobs import Job, Jobs


def result_of(job: Job, seconds: float | None) -> Result:
    """Return the result of a finished training; `seconds` is None if unknown."""
    from fl_dp.guarantee import Guarantee
    from fl_dp.ledger.training import library_versions
    from fl_dp.terminal.results import DEFAULT, Result, least_noise, noise_of_mean

    statement = job.folder.read_statement()
    last = job.folder.read_metrics()[-1]
    records = statement.get("records")
    if seconds is not None:
        seconds = round(seconds, 1)
    # A run without a promise computes no privacy number, so its statement names no versions.
    versions = statement.get("versions") or library_versions()
    return Result(
        path=str(job.path),
        curve=job.variant or DEFAULT,
        x=job.axis_value,
        seed=job.settings.seed,
        accuracy=last.get("test_accuracy"),
        loss=last["test_loss"],
        measured_on=job.settings.task.measured_on,
        promise=Guarantee.stated(statement),
        of_records=None if records is None else Guarantee.stated(records),
        spent_in_rounds=last["epsilon"] if job.folder.private_metrics.is_file() else None,
        noise_multiplier=least_noise(statement),
        noise_of_mean=noise_of_mean(
            statement,
            scheme=job.settings.privacy.get("scheme"),
            cohort=last["expected_cohort"],
        ),
        rounds=statement["rounds"],
        seconds=seconds,
        versions=";".join(f"{name} {number}" for name, number in versions.items()),
        metrics=_metrics(last),
        bytes_down=last.get("bytes_down"),
        bytes_up=last.get("bytes_up"),
    )


def _metrics(line: dict[str, Any]) -> dict[str, float]:
    """Return the metrics on public rows that are one number, besides accuracy and loss."""
    from fl_dp.tasks.public_scores import NUMBERS

    values = {name: line.get(f"test_{name}") for name in NUMBERS}
    return {name: value for name, value in values.items() if value is not None}


def results_so_far(jobs: Jobs) -> dict[str, Result]:
    """Return the lines of a sweep's `results.csv`, by their folders; empty before it exists."""
    from fl_dp.terminal.results import read_results

    if not jobs.results.is_file():
        return {}
    return {result.cell: result for result in read_results(jobs.results)}
