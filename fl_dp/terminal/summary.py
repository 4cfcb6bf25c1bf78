"""Tables of the results of runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from fl_dp.guarantee import ENDED_EARLY, Guarantee, grouped, weakest_guarantee
from fl_dp.promise import NO_PRIVACY, brief_epsilon
from fl_dp.tasks.public_scores import Score

from .results import Result
from .sheets import sheet


def by_variant(runs: Sequence[Result]) -> list[dict[str, Any]]:
    """Average the runs that differ only in their seed.

    Returns:
        For each variant: its name, the number of runs, mean and standard deviation of the score
        under its name, for example `test_accuracy_mean` (the latter None for one run), means of
        other metrics, the promises with the largest epsilon of the runs, and the bytes of a
        message down and up.
    """
    rows = []
    for variant in dict.fromkeys(run.variant for run in runs):
        members = [run for run in runs if run.variant == variant]
        name, score_values = members[0].score.name, [run.score.value for run in members]
        values = [value for value in score_values if value is not None]
        mean = statistics.fmean(values) if values else None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        metrics = {}
        for metric in members[0].metrics:
            if all(metric in run.metrics for run in members):
                metrics[metric] = statistics.fmean(run.metrics[metric] for run in members)
        of_records = [run.of_records for run in members if run.of_records is not None]
        rows.append(
            {
                "variant": variant,
                "runs": len(members),
                f"test_{name}_mean": mean,
                f"test_{name}_std": deviation,
                "test_metrics_mean": metrics,
                "promise": weakest_guarantee([run.promise for run in members]),
                "of_records": weakest_guarantee(of_records) if of_records else None,
                "bytes_down": members[0].bytes_down,
                "bytes_up": members[0].bytes_up,
            }
        )
    return rows


def summary_json(runs: Sequence[Result]) -> dict[str, Any]:
    """Return runs and variants as plain JSON values."""
    variants = [row | _promises_json(row["promise"], row["of_records"]) for row in by_variant(runs)]
    return {"runs": [_run_json(run) for run in runs], "variants": variants}


def _run_json(run: Result) -> dict[str, Any]:
    same = ("path", "variant", "rounds", "measured_on", "bytes_down", "bytes_up", "spent_in_rounds")
    return {
        **{name: getattr(run, name) for name in same},
        "test_accuracy": run.accuracy,
        "test_metrics": dict(run.metrics),
        **_promises_json(run.promise, run.of_records),
    }


def summary_tables(runs: Sequence[Result]) -> list[Table]:
    """Return the variants as tables for the terminal, one for each kind of promise."""
    measured_on = " or ".join(dict.fromkeys(run.measured_on for run in runs))
    score = replace(runs[0].score, measured_on=measured_on)
    groups = grouped(by_variant(runs), lambda row: _terms(row["promise"], row["of_records"]))
    return [_table(terms, rows, score) for terms, rows in groups.items()]


def _table(terms: str, rows: Sequence[Mapping[str, Any]], score: Score) -> Table:
    both = any(row["of_records"] is not None for row in rows)
    aucs = [row["test_metrics_mean"].get("auc") for row in rows]
    has_auc = score.name != "auc" and any(auc is not None for auc in aucs)
    scores = (score.title, "AUC") if has_auc else (score.title,)
    of_records = ("epsilon of a record",) if both else ()
    headings = ("setting", "runs", *scores, "epsilon", *of_records, "bytes down, up")
    shown = []
    for row, auc in zip(rows, aucs, strict=True):
        spread = row[f"test_{score.name}_std"]
        is_constant = row["test_metrics_mean"].get("largest_answer") == 1.0
        of_row = replace(score, value=row[f"test_{score.name}_mean"], is_constant=is_constant)
        mean = of_row.marked
        if spread is not None:
            mean += f" ± {spread:.3f}"
        cells = [row["variant"] or "default", str(row["runs"]), mean]
        if has_auc:
            cells.append("-" if auc is None else f"{auc:.3f}")
        cells.append(row["promise"].numbers)
        if both:
            cells.append("-" if row["of_records"] is None else row["of_records"].numbers)
        traffic = "-"
        if row["bytes_up"] is not None:
            traffic = f"{row['bytes_down']:,}, {row['bytes_up']:,}"
        shown.append([*cells, traffic])
    return sheet(terms, headings, shown, numbers=headings[1:])


def epsilon_jump(runs: Sequence[Result]) -> str | None:
    """Return why the summary's epsilon exceeds the last one of the progress, if it does."""
    for run in runs:
        promise, spent = run.promise, run.spent_in_rounds
        if promise.ended_early:
            return f"{promise.numbers}. {ENDED_EARLY}"
        if spent is not None and promise.promises and promise.number != brief_epsilon(spent):
            return (
                f"{promise}: more than {brief_epsilon(spent)}, where the progress ended, as the "
                "last model was measured on clients' rows, too"
            )
    return None


def _promises_json(promise: Guarantee, of_records: Guarantee | None) -> dict[str, Any]:
    records = None if of_records is None else of_records.to_dict()
    return {"promise": promise.to_dict(), "of_records": records}


def _terms(promise: Guarantee, of_records: Guarantee | None) -> str:
    """Return the heading of promises that can be compared."""
    if not promise.promises:
        return NO_PRIVACY
    terms = f"epsilon {promise.terms}"
    return terms if of_records is None else f"{terms}; of a record {of_records.terms}"
