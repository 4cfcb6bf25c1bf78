"""`fl-dp run`: train with simulated nodes."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fl_dp.files import write_text

from .console import (
    AsJson,
    Overrides,
    err,
    exit_on_errors,
    fail,
    note,
    out,
    print_json,
    warn,
)
from .extras import has_wing

if TYPE_CHECKING:
    from fl_dp.terminal.results import Result

    from .jobs import Job, Jobs


def run(
    overrides: Overrides = None,
    multirun: Annotated[
        bool,
        typer.Option("-m", "--multirun", help="Sweep: `key=a,b` runs once with each value."),
    ] = False,
    show_config: Annotated[
        bool,
        typer.Option("--cfg", help="Print the resulting settings, and exit."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train under differential privacy with simulated nodes, small tasks in one process.

    OVERRIDES are settings, KEY=VALUE, for example `privacy.epsilon=4 task=fashion_mnist rounds=100
    task.num_clients=500 selection.sampling_rate=0.1 clipping.norm=0.5 schedule=cosine`; `fl-dp
    config` lists every key. A task, a model and `privacy=NAME` bring settings that fit them, which
    is said before anything starts; what OVERRIDES say wins. `simulation.engine=flower` trains small
    tasks, too, through Flower's simulation engine.

    Runs on data of your own add up in an account beside them, as `privacy.account=NAME` does for
    all; `fl-dp budgets` lists accounts.

    Writes `runs/NAME/`: `config.yaml`, `metrics.jsonl` (one line per round), `ledger.db` (or
    `account.json`), `privacy.json`, `privacy.md`, `model.safetensors`, `checkpoint.safetensors`,
    `run.log`, and `report.html` (`report=none` leaves it out).
    Exits with status 0 only if the run succeeded.

    `fl-dp run resume=runs/NAME` continues a run that was stopped or crashed: same settings, same
    ledger, from its last released round. For a sweep, `resume=runs/SWEEP` runs what is missing.

    `fl-dp run -m experiment=privacy_levels` runs an experiment of many trainings, for example with
    `seed=0,1 task=fashion_mnist`; it ends in `results.csv` and `experiment.png`.
    """
    # As Ctrl-C: otherwise what Flower has started would train on, and spend on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with exit_on_errors():
        if show_config:
            _show_config(overrides or [], multirun=multirun, as_json=as_json)
            return
        from .jobs import find_jobs
        from .queue import Queue

        jobs = find_jobs(overrides or [], multirun=multirun)
        for job in jobs.trainings:
            job.settings.require_training()
        console = err if as_json else out
        runs = Queue(jobs, console, prepare=_prepare).work_off()
        conclude(runs, jobs, console)
    if as_json:
        from fl_dp.terminal.summary import summary_json

        print_json(summary_json(runs))


def _show_config(overrides: Sequence[str], *, multirun: bool, as_json: bool) -> None:
    """Print the settings that the overrides compose to, as YAML or JSON."""
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
    """Check what takes time, before any training starts or anything is written.

    Trainings of a sweep that differ only in their seed spend the same, and are checked once.
    """
    from fl_dp.app.cautions import cautions, cautions_of_data

    from .job_accounts import accounts_in_words, lost_totals, require_room
    from .jobs import prepare

    count = len(jobs.trainings)
    planned: dict[str, Job] = {}
    prepared: list[Job] = []
    for number, job in enumerate(jobs.trainings, 1):
        of_sweep = f" of run {number} of {count} ({job.title})" if count > 1 else ""
        if job.resumed:
            prepared.append(prepare(job, of_sweep))
            continue
        without_seed = replace(job.settings, seed=0).to_json()
        if without_seed not in planned:
            planned[without_seed] = prepare(job, of_sweep)
        prepared.append(replace(job, plan=planned[without_seed].plan))
    texts = [text for job in prepared for text in cautions(job.settings)]
    for job in prepared:
        if not job.resumed:
            texts += cautions_of_data(job.settings)
    for text in dict.fromkeys(texts):
        warn(text)
    jobs = replace(jobs, trainings=tuple(prepared))
    require_room(jobs)
    for text in lost_totals(jobs):
        warn(text)
    for text in accounts_in_words(jobs):
        note(text)
    return jobs


def conclude(runs: Sequence[Result], jobs: Jobs, console: Console) -> None:
    """Show the results of the runs, where everything is, and what comes next."""
    from fl_dp.terminal.summary import epsilon_jump, summary_json, summary_tables

    from .job_accounts import accounts_in_words, totals_of

    shown: list[str] = []
    if has_wing("viewer"):
        from .ended_runs import drawn_and_written

        shown = drawn_and_written(jobs)
    if jobs.sweep is not None:
        text = json.dumps(summary_json(runs), indent=2) + "\n"
        write_text(jobs.sweep / "summary.json", text, public=True)
    for table in summary_tables(runs):
        console.print(table)
    first, settings = jobs.trainings[0].folder, jobs.trainings[0].settings
    next_step = f"fl-dp ledger {first.path} verifies what was spent; "
    budget = "privacy.epsilon"
    if settings.protects_records_alone:
        budget = "privacy=dp_sgd dp_sgd.epsilon"
    elif not settings.protects_clients:
        budget, next_step = "privacy=central privacy.epsilon", ""
    jump = epsilon_jump(runs)
    lines = [] if jump is None else [jump]
    lines.append(f"Everything is in {jobs.path}")
    if jobs.sweep is not None:
        lines.append(f"Table: {jobs.results}")
    lines.append(f"Privacy statement, to read: {first.statement_page}")
    lines += [*totals_of(jobs), *accounts_in_words(jobs)]
    lines += shown
    further = f"your settings with -m {budget}=2,4,8 compare budgets"
    if settings.has_account:  # a comparison would be charged to the same people
        further = f"fl-dp budgets {jobs.path.parent} lists what all runs on these data may spend"
    lines.append(f"Next: {next_step}{further}")
    for line in filter(None, lines):
        console.print(line, soft_wrap=True, markup=False)
