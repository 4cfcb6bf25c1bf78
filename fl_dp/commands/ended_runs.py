"""Report and pictures of ended trainings, for `fl-dp run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fl_dp.app.pictures import where_drawn
from fl_dp.terminal.results import read_results
from fl_dp.viewer.report import write_report
from fl_dp.viewer.run_pictures import (
    plot_against_axis,
    plot_curves,
    plot_over_rounds,
    scores_of,
)

from .console import warn
from .jobs import Jobs


def drawn_and_written(jobs: Jobs) -> list[str]:
    """Draw the trainings and write their report; return lines with both paths."""
    picture, page = _draw(jobs), _page(jobs)
    lines = [where_drawn(picture, drawn=picture is not None)]
    if page is not None:
        lines.insert(0, f"Report, to look at: {page}")
    return lines


def _page(jobs: Jobs) -> Path | None:
    """Write the report, unless no training wants one; a failure is only a warning."""
    folders = [job.path for job in jobs.trainings if job.settings.report == "html"]
    if not folders:
        return None
    try:
        return write_report(folders, jobs.path / "report.html")
    except (OSError, ValueError, ModuleNotFoundError) as error:
        warn(f"no report could be written: {error}")
        return None


def _draw(jobs: Jobs) -> Path | None:
    """Draw an experiment by its axis, else runs over their rounds; None without matplotlib."""
    lines: dict[str, list[list[dict[str, Any]]]] = {}
    for job in jobs.trainings:
        lines.setdefault(job.variant or "default", []).append(job.folder.read_metrics())
    experiment = jobs.experiment
    if experiment is None or not experiment.curves:
        picture = jobs.path / "accuracy.png"
        drawn = plot_curves(lines, picture)
        return picture if drawn else None
    picture = jobs.path / "experiment.png"
    results = read_results(jobs.results)
    if experiment.axis is not None:
        label = experiment.label or experiment.axis
        panels = experiment.panels or [results[0].score.name]
        drawn = plot_against_axis(
            results,
            picture,
            label=label,
            panels=panels,
            of_epsilon=experiment.axis.endswith(".epsilon"),
        )
    else:
        scores = {curve: list(map(scores_of, members)) for curve, members in lines.items()}
        drawn = plot_over_rounds(results, scores, picture)
    return picture if drawn else None
