"""`fl-dp audit`: what the running system leaks at least, beside what it claims."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fl_dp.codec import encode_text
from fl_dp.files import write_text

from .console import (
    AsJson,
    Overrides,
    err,
    exit_on_errors,
    fail,
    finite,
    note,
    out,
    print_json,
    print_plainly,
    warn,
)
from .on_public_data import DataIsPublic, counted, require_public

if TYPE_CHECKING:
    from fl_dp.app.settings import Settings
    from fl_dp.lab.audit.verdict import AuditReport
    from fl_dp.lab.games.canary_run import CanaryRun

    from .jobs import Job

_FOLDER = "audits"


class By(StrEnum):
    """Kinds of audits."""

    CLIENTS = "clients"
    RECORDS = "records"


def audit(
    overrides: Overrides = None,
    by: Annotated[
        By,
        typer.Option(
            help="clients: train with canary clients; records: one client trains by DP-SGD with "
            "canary records."
        ),
    ] = By.CLIENTS,
    canaries: Annotated[
        int | None,
        typer.Option(help="Canaries, half of them left out; 1000, or what the model holds."),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="Probability that a system that keeps its claim is accused.")
    ] = 1e-6,
    scores: Annotated[
        Path | None,
        typer.Option(help="Audit scores: .npz with `out` and `there`; needs --claim, --delta."),
    ] = None,
    claim: Annotated[
        float | None, typer.Option(help="Epsilon that the model of the scores claims.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of that claim.")] = None,
    keep_model: Annotated[
        bool,
        typer.Option(
            "--keep-model",
            help="Keep the model, which canaries have moved, and allow run_name and output_dir.",
        ),
    ] = False,
    data_is_public: DataIsPublic = False,
    as_json: AsJson = False,
) -> None:
    """Bound from below what the running system leaks, and compare it with what it claims.

    `fl-dp audit model=mlp` trains the task through Flower's engine with canary clients among the
    others, and bounds epsilon from what every released model tells of them. OVERRIDES are those of
    `fl-dp run`. Canaries take places in cohorts and move the model: it is not for use, and is
    deleted unless `--keep-model`. Everything else stays in `audits/NAME/`. With `selection=public`
    or `privacy=correlated` canaries take the places of half of the clients. With
    `privacy=distributed` and `distributed_records` nobody trains: the encoder of the nodes adds up
    canaries and the shares of noise that the plan counts.

    `fl-dp audit --by records dp_sgd.epsilon=4` has one client train by DP-SGD with canary records.
    Ends with status 1 if a claim is violated.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not 0.0 < alpha < 1.0:
        fail(f"--alpha must lie in (0, 1), got {alpha}", status=2)
    asked = list(overrides or [])
    with exit_on_errors():
        from fl_dp.app.compose import compose_settings

        if scores is not None:
            reports = [_by_scores(scores, claim=claim, delta=delta, alpha=alpha)]
        elif by is By.RECORDS:
            reports = [_by_records(asked, canaries, alpha, data_is_public=data_is_public)]
        elif (settings := compose_settings(asked)).privacy.noised_by == "nodes":
            reports = [_by_sums(settings, canaries, alpha)]
        else:
            job = _trainable(asked, keep_model=keep_model, data_is_public=data_is_public)
            reports = [_by_clients(job, canaries, alpha, keep_model=keep_model)]
    if as_json:
        print_json({"audits": [report.to_dict() for report in reports]})
    else:
        from fl_dp.lab.audit.verdict import audit_lines, audit_table

        for report in reports:
            print_plainly(out, audit_table(report), *audit_lines(report))
    if not all(report.stands for report in reports):
        raise typer.Exit(1)


def _by_scores(
    path: Path, *, claim: float | None, delta: float | None, alpha: float
) -> AuditReport:
    from fl_dp.lab.audit.scores import read_scores, report_of_scores

    if claim is None or delta is None:
        raise ValueError("scores alone claim nothing: give --claim EPSILON and --delta DELTA")
    scores = read_scores(path)
    return report_of_scores(*scores, claim=claim, delta=delta, alpha=alpha, subject=path.name)


def _by_records(
    overrides: Sequence[str], canaries: int | None, alpha: float, *, data_is_public: bool
) -> AuditReport:
    """Have one client train by DP-SGD with canary records."""
    from fl_dp.app.compose import compose_settings
    from fl_dp.app.planning import make_record_plan

    if not any(text.startswith("privacy=") for text in overrides):
        overrides = ["privacy=dp_sgd", *overrides]
    settings = compose_settings(overrides)
    require_public(
        settings, stated=data_is_public, because="no ledger is charged for an audited training"
    )
    plan = make_record_plan(settings)
    if plan is None:
        raise ValueError("these settings have no DP-SGD to audit: write privacy=dp_sgd")
    if plan.unit != "record":
        raise ValueError("canaries are records, not persons: leave task.person_column out")
    from fl_dp.lab.games.canary_records import AuditedRecords, audit_records
    from fl_dp.lab.games.canary_run import MOST_CANARIES

    count = MOST_CANARIES if canaries is None else canaries
    records = AuditedRecords.of_first_client(settings, count)
    title = f"{plan.steps} steps of DP-SGD"
    with counted(err, title, plan.participations, "participations") as done:
        return audit_records(records, plan, alpha=alpha, on_participation=done)


def _by_sums(settings: Settings, canaries: int | None, alpha: float) -> AuditReport:
    """Play the sums of a training whose noise is in shares; nobody trains, and no data is read."""
    from fl_dp.app.planning import make_plan
    from fl_dp.app.workload import initial_arrays_of
    from fl_dp.lab.games.played_sums import report_of_sums
    from fl_dp.updates import VectorLayout

    size = VectorLayout.of(initial_arrays_of(settings)).size
    return report_of_sums(
        make_plan(settings),
        settings.task.name,
        size=size,
        alpha=alpha,
        count=canaries,
        seed=settings.seed,
    )


def _trainable(overrides: Sequence[str], *, keep_model: bool, data_is_public: bool) -> Job:
    """Return the requested training, with room for canaries, after all checks.

    Raises:
        ValueError: If it can't be audited.
    """
    from fl_dp.app.compose import compose_settings
    from fl_dp.lab.games.canary_run import require_auditable, room_for_canaries

    from .jobs import find_jobs, prepare

    for key in ("run_name", "output_dir", "resume"):
        if not keep_model and any(text.startswith(f"{key}=") for text in overrides):
            raise ValueError(
                f"{key}= is for models that are used, and canaries move this one: leave it out, or "
                "say --keep-model"
            )
    if any(text.startswith("resume=") for text in overrides):
        raise ValueError("canaries take part from the first round on: leave resume= out")
    asked = [*overrides, *room_for_canaries(compose_settings(overrides))]
    if not keep_model:
        asked.append(f"output_dir={_FOLDER}")
    (job,) = find_jobs(asked, multirun=False).trainings
    require_auditable(job.settings)
    # A round's model less its noise, which is written down, is the exact sum of the updates.
    require_public(
        job.settings, stated=data_is_public, because="an audit writes down the noise of each round"
    )
    prepare(job)
    return job


def _by_clients(job: Job, canaries: int | None, alpha: float, *, keep_model: bool) -> AuditReport:
    """Train with canaries in the chosen engine, and judge what its releases show of them."""
    from fl_dp.app.workload import initial_arrays_of
    from fl_dp.lab.games.canary_run import CANARIES_FILE, CanaryRun
    from fl_dp.lab.games.observed_run import read_observed_run, report_of_run
    from fl_dp.updates import VectorLayout

    settings = job.settings
    size = VectorLayout.of(initial_arrays_of(settings)).size
    run = CanaryRun.fitting(settings, size, canaries)
    try:
        _train(job, run)
    finally:
        if not keep_model:
            for file in (job.folder.model, job.folder.checkpoint):
                file.unlink(missing_ok=True)
    observed = read_observed_run(job.path / CANARIES_FILE)
    if len(observed.rounds) < settings.rounds:
        warn(
            f"{len(observed.rounds)} of {settings.rounds} rounds were released; the claim is of all"
        )
    report = report_of_run(observed, run, settings, job.folder, alpha=alpha)
    text = json.dumps({"audits": [finite(report.to_dict())]}, indent=2) + "\n"
    write_text(job.path / "audit.json", text, public=True)
    note(f"Everything is in {job.path}")
    return report


def _train(job: Job, run: CanaryRun) -> None:
    from fl_dp.app.local.engines import engine
    from fl_dp.app.local.launch import App, LaunchError, run_and_follow
    from fl_dp.lab.games.canary_run import RUN_KEY
    from fl_dp.terminal.progress import progress_line

    app = App(
        server="fl_dp.lab.games.canary_server",
        client="fl_dp.lab.games.canary_client",
        config={RUN_KEY: encode_text(run)},
    )
    settings = job.settings
    clients = settings.task.num_clients
    joined = f"join the {clients}: they take places in cohorts"
    if run.in_place:
        joined = f"take the places of as many of the {clients}"
    note(f"{run.count} canary clients {joined} and move the model, which is not for use")
    title, more = f"auditing {settings.task.name}", run.more_nodes(settings)
    try:
        with (
            engine(settings.simulation.engine, app, more_nodes=more) as started,
            progress_line(err, title, rounds=settings.rounds) as on_round,
        ):
            run_and_follow(started, settings, job.sent, job.folder, on_round)
    except LaunchError as error:
        fail(str(error), status=1)
