"""Tables of the results of runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.table import Table

from fl_dp.promise import brief_epsilon, delta_rounded_up
from fl_dp.tasks.public_scores import Score

from .numbers import epsilon_text
from .sheets import sheet


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Result of one run; every number is public or covered by its epsilon.

    Attributes:
        path: The run's folder.
        variant: The overrides that distinguish it from its siblings, without the seed.
        rounds: Rounds that were spent.
        test_accuracy: Accuracy of the last model on the public rows that `measured_on` names; None
            where the label is a number.
        epsilon: The bound that the statement quotes, from the ledger's entries.
        epsilon_so_far: What the done rounds had spent, as the progress showed; None without
            privacy.
        delta: The delta of that epsilon.
        unit: The privacy unit, for example `one client`.
        measured_on: `test`, or `validation` where settings are being chosen.
        record_epsilon: Epsilon of each record besides; None where `unit` is all.
        record_delta: The delta of that epsilon.
        bytes_down: Bytes of the arrays in a message to a client; None if no round was done.
        bytes_up: Bytes of the arrays in its reply.
        test_metrics: Other metrics of the last model on the same rows.
        is_measured_privately: Whether the last model was measured on clients' rows as well.
    """

    path: str
    variant: str
    rounds: int
    test_accuracy: float | None
    epsilon: float
    delta: float
    unit: str = "one client"
    measured_on: str = "test"
    epsilon_so_far: float | None = None
    record_epsilon: float | None = None
    record_delta: float | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    test_metrics: Mapping[str, float] = field(default_factory=dict)
    is_measured_privately: bool = False

    @property
    def score(self) -> Score:
        """The score of the last model."""
        return Score.of(self.test_accuracy, self.test_metrics)


def by_variant(runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Average the runs that differ only in their seed.

    Returns:
        For each variant: its name, the number of runs, mean and standard deviation of the score
        under its name, for example `test_accuracy_mean` (the latter None for one run), means of
        other metrics, the largest epsilon and delta of the runs, also those of one record where
        both are promised, and the bytes of a message down and up.
    """
    rows = []
    for variant in dict.fromkeys(run.variant for run in runs):
        members = [run for run in runs if run.variant == variant]
        name, score_values = members[0].score.name, [run.score.value for run in members]
        values = [value for value in score_values if value is not None]
        mean = statistics.fmean(values) if values else None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        metrics = {}
        for metric in members[0].test_metrics:
            if all(metric in run.test_metrics for run in members):
                metrics[metric] = statistics.fmean(run.test_metrics[metric] for run in members)
        rows.append(
            {
                "variant": variant,
                "runs": len(members),
                f"test_{name}_mean": mean,
                f"test_{name}_std": deviation,
                "test_metrics_mean": metrics,
                "epsilon": max(run.epsilon for run in members),
                "delta": max(run.delta for run in members),
                "record_epsilon": _largest([run.record_epsilon for run in members]),
                "record_delta": _largest([run.record_delta for run in members]),
                "bytes_down": members[0].bytes_down,
                "bytes_up": members[0].bytes_up,
            }
        )
    return rows


def summary_json(runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Return runs and variants as plain JSON values."""
    return {"runs": [asdict(run) for run in runs], "variants": by_variant(runs)}


def summary_table(runs: Sequence[RunSummary]) -> Table:
    """Return the variants as a table for the terminal."""
    units = " or ".join(dict.fromkeys(run.unit for run in runs))
    rows_measured = " or ".join(dict.fromkeys(run.measured_on for run in runs))
    score = runs[0].score
    rows = by_variant(runs)
    both = any(row["record_epsilon"] is not None for row in rows)
    of_records = ("epsilon of a record", "delta of a record") if both else ()
    aucs = [row["test_metrics_mean"].get("auc") for row in rows]
    has_auc = any(auc is not None for auc in aucs)
    scores = (score.title, "AUC") if has_auc else (score.title,)
    headings = ("setting", "runs", *scores, "epsilon", "delta", *of_records, "bytes down, up")
    shown = []
    for row, auc in zip(rows, aucs, strict=True):
        spread = row[f"test_{score.name}_std"]
        mean = str(replace(score, value=row[f"test_{score.name}_mean"]))
        if spread is not None:
            mean += f" ± {spread:.3f}"
        cells = [row["variant"] or "default", str(row["runs"]), mean]
        if has_auc:
            cells.append("-" if auc is None else f"{auc:.3f}")
        cells += _promised(row["epsilon"], row["delta"])
        if both:
            cells += _promised(row["record_epsilon"], row["record_delta"])
        traffic = "-"
        if row["bytes_up"] is not None:
            traffic = f"{row['bytes_down']:,}, {row['bytes_up']:,}"
        shown.append([*cells, traffic])
    title = f"{rows_measured.capitalize()} {score.title} (unit: {units})"
    return sheet(title, headings, shown, numbers=headings[1:])


def epsilon_jump(runs: Sequence[RunSummary]) -> str | None:
    """Return why the summary's epsilon exceeds the last one of the progress, if it does."""
    for run in runs:
        spent = run.epsilon_so_far
        if spent is not None and math.isfinite(run.epsilon) and run.epsilon > 1.001 * spent:
            reason = "is lower and not promised"
            if run.is_measured_privately:
                reason = "leaves out that the last model was measured on clients' rows"
            return (
                f"Report epsilon {brief_epsilon(run.epsilon)}, the promise; "
                f"{brief_epsilon(spent)}, where the progress ended, {reason}"
            )
    return None


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _promised(epsilon: float | None, delta: float | None) -> tuple[str, str]:
    if epsilon is None or delta is None:
        return "-", "-"
    return epsilon_text(epsilon), delta_rounded_up(delta)
