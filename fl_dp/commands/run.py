"""`fl-dp run`: train through Flower's simulation engine."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from .console import (
    AsJson,
    Overrides,
    doing,
    err,
    fail,
    failures_told,
    out,
    print_json,
    warn,
)

if TYPE_CHECKING:
    from fl_dp.local.launch import LocalSuperLink
    from fl_dp.report.summary import RunSummary

    from .jobs import Job, Jobs


def run(
    overrides: Overrides = None,
    multirun: Annotated[
        bool,
        typer.Option("-m", "--multirun", help="Sweep: `key=a,b` runs once with each value."),
    ] = False,
    show_config: Annotated[
        bool,
        typer.Option("--cfg", help="Print the settings that the overrides come to, and exit."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train under differential privacy through Flower's simulation engine.

    OVERRIDES are Hydra's, for example `privacy.epsilon=4 task=fashion_mnist rounds=100
    task.num_clients=500 selection.sampling_rate=0.1 clipping.norm=0.5 schedule=cosine`; `fl-dp
    config` lists every key.

    Writes `runs/NAME/`: `config.yaml`, `metrics.jsonl` (a line a round), `ledger.db`,
    `privacy.json`, `privacy.md`, `model.safetensors`, `checkpoint.safetensors`, `run.log`. Ends
    with status 0 only if Flower's run did.

    `fl-dp run resume=runs/NAME` continues a run that was stopped or crashed: same settings, same
    ledger, from its last released round. Of a sweep, `resume=runs/SWEEP` does what is missing.
    """
    # As Ctrl-C: otherwise what Flower has started would train on, and spend on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with failures_told():
        if show_config:
            _show_config(overrides or [], multirun=multirun, as_json=as_json)
            return
        from .jobs import find_jobs
        from .stats import refuse_statistics

        jobs = find_jobs(overrides or [], multirun=multirun)
        for job in jobs.each:
            refuse_statistics(job.settings)
        if any(job.settings.recovery.attacks for job in jobs.each):
            from .attack_inversion import recover

            recover(jobs, as_json=as_json)
            return
        jobs = _prepare(jobs)
        console = err if as_json else out
        runs = _run_all(jobs, console)
        _conclude(runs, jobs, console)
    if as_json:
        from fl_dp.report.summary import summary_json

        print_json(summary_json(runs))


def _show_config(overrides: Sequence[str], *, multirun: bool, as_json: bool) -> None:
    """Print what the overrides compose to, YAML or JSON."""
    from dataclasses import asdict

    from fl_dp.app.compose import compose_settings

    if multirun:
        fail("--cfg shows one run's settings: leave out -m, and sweep over nothing", status=2)
    composed = compose_settings(overrides)
    if composed.resume is not None:
        from fl_dp.app.run_folder import RunFolder

        composed = RunFolder(Path(composed.resume).expanduser()).read_settings()
    settings = asdict(composed)
    if as_json:
        print_json(settings)
        return
    from omegaconf import OmegaConf

    typer.echo(OmegaConf.to_yaml(settings), nl=False)


def _prepare(jobs: Jobs) -> Jobs:
    """Check what takes time, before anything is started or written."""
    from .cautions import cautions
    from .jobs import prepare

    many = len(jobs.each) > 1
    prepared = []
    for number, job in enumerate(jobs.each, 1):
        place = f" of run {number} of {len(jobs.each)} ({job.title})" if many else ""
        prepared.append(prepare(job, place))
    for text in dict.fromkeys(text for job in prepared for text in cautions(job.settings)):
        warn(text)
    return replace(jobs, each=tuple(prepared))


def _run_all(jobs: Jobs, console: Console) -> list[RunSummary]:
    """Do what is not finished, one after the other, on one SuperLink."""
    from fl_dp.local.launch import LaunchError, LocalSuperLink

    jobs.note()
    runs: list[RunSummary] = []
    try:
        with ExitStack() as stack:
            link: LocalSuperLink | None = None
            for number, job in enumerate(jobs.each, 1):
                place = f"[{number}/{len(jobs.each)}] " if len(jobs.each) > 1 else ""
                if job.finished:
                    console.print(f"{place}{job.title}: finished before", markup=False)
                else:
                    if link is None:
                        with doing("starting Flower"):
                            link = stack.enter_context(LocalSuperLink())
                    _train(link, job, console, f"{place}{job.title}")
                runs.append(_summary(job))
    # Only now, when what Flower had started is stopped, does nobody write beside us.
    except LaunchError as error:
        _leave_valid(jobs.each[len(runs)])
        fail(str(error), status=1)
    except KeyboardInterrupt:
        if len(runs) < len(jobs.each):
            stopped = jobs.each[len(runs)]
            _leave_valid(stopped)
            started = jobs.sweep is not None or stopped.folder.config.is_file()
            goes_on = f"; `fl-dp run resume={jobs.path}` continues it" if started else ""
            fail(f"stopped; what was reserved stays spent{goes_on}", status=130)
    return runs


def _train(link: LocalSuperLink, job: Job, console: Console, title: str) -> None:
    """Run one job to its end, with its progress on the console."""
    from fl_dp.local.launch import run_through_flower
    from fl_dp.report.progress import progress_line

    with progress_line(console, title, rounds=job.settings.rounds, budget=job.budget) as on_round:
        run_through_flower(link, job.settings, job.sent, job.folder, on_round)


def _leave_valid(job: Job) -> None:
    """Write the statement of a run that could not do so itself."""
    from fl_dp.ledger import LedgerCorrupted

    try:
        job.folder.write_statement_of_ledger()
    except (OSError, ValueError, LedgerCorrupted) as error:
        warn(f"no privacy statement could be written: {error}")


def _summary(job: Job) -> RunSummary:
    from fl_dp.report.summary import RunSummary

    statement = job.folder.read_statement()
    last = job.folder.read_metrics()[-1]
    so_far = statement.get("epsilon_so_far", {}).values()
    records = statement.get("records")
    protected = job.settings
    of_records = protected.protects_records_alone or protected.privacy.unit == "record"
    return RunSummary(
        path=str(job.path),
        variant=job.variant,
        rounds=statement["rounds"],
        test_accuracy=last["test_accuracy"],
        epsilon=_quoted(statement),
        epsilon_so_far=min(so_far) if so_far else None,
        delta=statement["delta"],
        unit="one record" if of_records else "one client",
        record_epsilon=None if records is None else _quoted(records),
        record_delta=None if records is None else records["delta"],
        bytes_down=last.get("bytes_down"),
        bytes_up=last.get("bytes_up"),
    )


def _quoted(statement: dict[str, Any]) -> float:
    return float(statement["epsilon"].get(statement["quoted"], math.inf))


def _conclude(runs: Sequence[RunSummary], jobs: Jobs, console: Console) -> None:
    """Show what the runs came to, draw them, and say where everything is and what comes next."""
    from fl_dp.report.curves import plot_curves
    from fl_dp.report.summary import epsilon_jump, summary_json, summary_table

    curves: dict[str, list[list[dict[str, Any]]]] = {}
    for job in jobs.each:
        curves.setdefault(job.variant or "default", []).append(job.folder.read_metrics())
    picture = jobs.path / "accuracy.png"
    unit = " or ".join(dict.fromkeys(run.unit for run in runs))
    drawn = plot_curves(curves, picture, unit=unit, deltas=[run.delta for run in runs])
    if jobs.sweep is not None:
        (jobs.sweep / "summary.json").write_text(
            json.dumps(summary_json(runs), indent=2) + "\n", encoding="utf-8"
        )
    console.print(summary_table(runs))
    first = jobs.each[0].folder
    alone = jobs.each[0].settings.protects_records_alone
    budget = "privacy=dp_sgd dp_sgd.epsilon" if alone else "privacy.epsilon"
    next_step = f"fl-dp run -m {budget}=2,4,8 compares budgets"
    lines = [
        epsilon_jump(runs),
        f"Everything is in {jobs.path}",
        f"Privacy statement, to read: {first.statement_page}",
        f"Picture: {picture}"
        if drawn
        else "No picture: pip install 'fl-dp[report]' brings matplotlib",
        f"Next: fl-dp ledger {first.path} verifies what was spent; {next_step}",
    ]
    for line in filter(None, lines):
        console.print(line, soft_wrap=True, markup=False)
