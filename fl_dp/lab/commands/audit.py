"""`fl-dp audit`: what the running system leaks at least, beside what it claims."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from fl_dp.commands.console import (
    AsJson,
    Overrides,
    err,
    fail,
    failures_told,
    note,
    out,
    print_json,
    warn,
)
from fl_dp.files import write_text

from .public_data import DataIsPublic, require_public

if TYPE_CHECKING:
    from collections.abc import Callable

    from fl_dp.accounting.trade_off import TradeOff
    from fl_dp.app.settings import Settings
    from fl_dp.commands.jobs import Job
    from fl_dp.lab.audit.correlated_run import WhoseTurn
    from fl_dp.lab.audit.verdict import AuditReport
    from fl_dp.lab.games.canary_run import CanaryRun

_MOST_CANARIES = 1000
_FOLDER = "audits"


class By(StrEnum):
    """Kinds of audits."""

    CLIENTS = "clients"
    GAME = "game"
    RECORDS = "records"


class Against(StrEnum):
    """Strategies that the game can be played with."""

    FL_DP = "fl-dp"
    FLOWER = "flower"


def audit(
    overrides: Overrides = None,
    by: Annotated[
        By,
        typer.Option(
            help="clients: train with canary clients; records: one client trains by DP-SGD with "
            "canary records; game: play worst-case rounds on the strategy."
        ),
    ] = By.CLIENTS,
    against: Annotated[
        Against | None,
        typer.Option(help="Play the game on fl-dp, or on Flower's own wrappers. Implies game."),
    ] = None,
    canaries: Annotated[
        int | None,
        typer.Option(help="Canaries, half of them left out; 1000, or what the model holds."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Rounds of the longest game with and without the client.")
    ] = 1000,
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
    delta: Annotated[
        float | None, typer.Option(help="Delta of scores; of the game, 1e-5 unless given.")
    ] = None,
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
    deleted unless `--keep-model`. Everything else stays in `audits/NAME/`. With `selection=public`,
    `noise=spaced` or `cyclic` canaries take the places of half of the clients.

    `fl-dp audit --by records dp_sgd.epsilon=4` has one client train by DP-SGD with canary records.
    `fl-dp audit --against flower` plays the game on Flower's own wrappers, to see what failing
    looks like. Ends with status 1 if a claim is violated.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not 0.0 < alpha < 1.0:
        fail(f"--alpha must lie in (0, 1), got {alpha}", status=2)
    with failures_told():
        if scores is not None:
            reports = [_of_scores(scores, claim=claim, delta=delta, alpha=alpha)]
        elif by is By.GAME or against is not None:
            if overrides:
                raise ValueError("the game has a plan of its own: leave the overrides out")
            reports = _by_game(
                against or Against.FL_DP, rounds=rounds, alpha=alpha, delta=delta or 1e-5
            )
        elif by is By.RECORDS:
            reports = [
                _by_records(
                    overrides or [], canaries=canaries, alpha=alpha, data_is_public=data_is_public
                )
            ]
        else:
            reports = [
                _by_clients(
                    overrides or [],
                    canaries=canaries,
                    alpha=alpha,
                    keep_model=keep_model,
                    data_is_public=data_is_public,
                )
            ]
    if as_json:
        print_json({"audits": [report.to_dict() for report in reports]})
    else:
        _show(reports)
    if not all(report.stands for report in reports):
        raise typer.Exit(1)


def _show(reports: Sequence[AuditReport]) -> None:
    from fl_dp.lab.audit_view import audit_lines, audit_table

    for report in reports:
        out.print(audit_table(report))
        for line in audit_lines(report):
            out.print(line, soft_wrap=True, markup=False)


def _by_game(against: Against, *, rounds: int, alpha: float, delta: float) -> list[AuditReport]:
    """Play every game on ours, or on Flower's wrappers, with each way of clipping."""
    from fl_dp.lab.games.game import GAME_MULTIPLIER, audit_strategy, names_of
    from fl_dp.lab.games.subjects import FlDp, FlowersOwn, Subject

    if rounds < 20:
        raise ValueError(f"--rounds must be at least 20, got {rounds}")
    subjects: list[Subject] = [
        FlDp(noise_multiplier=GAME_MULTIPLIER),
        FlDp(name="fl-dp, adaptive clipping", noise_multiplier=GAME_MULTIPLIER, adaptive=True),
        FlDp(name="fl-dp, four arrays' norms", noise_multiplier=GAME_MULTIPLIER, arrays=4),
    ]
    if against is Against.FLOWER:
        subjects = [
            FlowersOwn(noise_multiplier=GAME_MULTIPLIER),
            FlowersOwn(
                name="Flower's server-side adaptive clipping",
                noise_multiplier=GAME_MULTIPLIER,
                adaptive=True,
                crowd=18,
            ),
        ]
    reports = []
    for subject in subjects:
        with _counted(subject.name, len(names_of(subject))) as done:
            reports.append(
                audit_strategy(subject, rounds=rounds, alpha=alpha, delta=delta, on_done=done)
            )
    return reports


@contextmanager
def _counted(title: str, tests: int) -> Iterator[Callable[[], None]]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as progress:
        task = progress.add_task(title, total=tests)
        yield lambda: progress.advance(task)


def _by_records(
    overrides: Sequence[str], *, canaries: int | None, alpha: float, data_is_public: bool
) -> AuditReport:
    """Have one client train by DP-SGD with canary records."""
    from fl_dp.app.compose import compose_settings
    from fl_dp.app.planning import make_record_plan

    if not any(each.startswith("privacy=") for each in overrides):
        overrides = ["privacy=dp_sgd", *overrides]
    settings = compose_settings(overrides)
    require_public(
        settings, stated=data_is_public, because="no ledger is charged for an audited training"
    )
    plan = make_record_plan(settings)
    if plan is None:
        raise ValueError("these settings have no DP-SGD to audit: write privacy=dp_sgd")
    from fl_dp.app.workload import data_of_unit
    from fl_dp.lab.games.records import AuditedRecords, audit_records

    data = data_of_unit(settings, 0, {"partition-id": 0})
    if data is None or data[0].form.vocabulary_size is not None:
        raise ValueError(f"task={settings.task.name} has no records of numbers to hide canaries in")
    dataset, rows = data
    import torch

    records = AuditedRecords(
        features=torch.as_tensor(dataset.features(rows)),
        labels=torch.as_tensor(dataset.labels(rows)),
        num_classes=dataset.form.num_classes,
        canaries=_MOST_CANARIES if canaries is None else canaries,
        seed=settings.seed,
    )
    with _counted(f"{plan.steps} steps of DP-SGD", plan.participations) as done:
        return audit_records(records, plan, alpha=alpha, on_participation=done)


def _of_scores(
    path: Path, *, claim: float | None, delta: float | None, alpha: float
) -> AuditReport:
    import numpy as np

    from fl_dp.lab.audit.black_box import report_of_scores

    if claim is None or delta is None:
        raise ValueError("scores alone claim nothing: give --claim EPSILON and --delta DELTA")
    with np.load(path, allow_pickle=False) as stored:
        missing = {"out", "there"} - set(stored.files)
        if missing:
            raise ValueError(f"{path} has no array '{sorted(missing)[0]}'")
        arrays = {name: stored[name].astype(np.float64) for name in ("out", "there")}
    return report_of_scores(
        arrays["out"], arrays["there"], claim=claim, delta=delta, alpha=alpha, subject=path.name
    )


def _by_clients(
    overrides: Sequence[str],
    *,
    canaries: int | None,
    alpha: float,
    keep_model: bool,
    data_is_public: bool,
) -> AuditReport:
    """Train with canaries in the chosen engine, and judge what its releases tell of them."""
    from fl_dp.app.workload import initial_arrays_of
    from fl_dp.commands.jobs import find_jobs, prepare
    from fl_dp.lab.games.canary_run import CanaryRun, require_auditable, takes_places
    from fl_dp.updates import VectorLayout

    for key in ("run_name", "output_dir", "resume"):
        if not keep_model and any(each.startswith(f"{key}=") for each in overrides):
            raise ValueError(
                f"{key}= is for models that are used, and canaries move this one: leave it out, or "
                "say --keep-model"
            )
    if any(each.startswith("resume=") for each in overrides):
        raise ValueError("canaries take part from the first round on: leave resume= out")
    asked = [*overrides, *_room_for_canaries(overrides)]
    if not keep_model:
        asked.append(f"output_dir={_FOLDER}")
    (job,) = find_jobs(asked, multirun=False).each
    require_auditable(job.settings)
    # With the noise of a round and its model, everybody has the exact sum of the others' updates.
    require_public(
        job.settings, stated=data_is_public, because="an audit writes down the noise of each round"
    )
    job = prepare(job)
    size = VectorLayout.of(initial_arrays_of(job.settings)).size
    in_place = takes_places(job.settings)
    if canaries is None:
        canaries = min(_MOST_CANARIES, size // 2)
        if in_place:
            each = job.settings.simulation.units_at_node
            canaries = min(canaries, job.settings.task.num_clients // 2) // each * each or each
    run = CanaryRun(count=canaries, seed=job.settings.seed, in_place=in_place)
    run.canaries(size)  # refuses more than fit, before anything starts
    run.require_places(job.settings)
    report = _audited(job, run, alpha=alpha, keep_model=keep_model)
    text = json.dumps({"audits": [_finite(report)]}, indent=2) + "\n"
    write_text(job.path / "audit.json", text, public=True)
    note(f"Everything is in {job.path}")
    return report


def _room_for_canaries(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that make room: beyond the clients, or on nodes in their places."""
    from fl_dp.app.compose import compose_settings
    from fl_dp.lab.games.canary_run import takes_places, units_on_nodes

    settings = compose_settings(overrides)
    if not takes_places(settings):
        return ["roster_may_grow=true"]
    if isinstance(settings.simulation.units_per_node, int):
        return []
    return [f"simulation.units_per_node={units_on_nodes(settings.task.num_clients)}"]


def _finite(report: AuditReport) -> object:
    """Return a report for JSON, which has no infinity."""
    return json.loads(json.dumps(report.to_dict()), parse_constant=lambda _: None)


def _audited(job: Job, run: CanaryRun, *, alpha: float, keep_model: bool) -> AuditReport:
    from fl_dp.app.local.engines import engine
    from fl_dp.app.local.launch import App, LaunchError, run_and_follow
    from fl_dp.commands.terminal.progress import progress_line
    from fl_dp.lab.games.canary_run import RUN_KEY

    app = App(
        server="fl_dp.lab.games.canary_server",
        client="fl_dp.lab.games.canary_client",
        config={RUN_KEY: run.to_json()},
    )
    clients = job.settings.task.num_clients
    joined = (
        f"take the places of as many of the {clients}"
        if run.in_place
        else (f"join the {clients}: they take places in cohorts")
    )
    note(f"{run.count} canary clients {joined} and move the model, which is not for use")
    title = f"auditing {job.settings.task.name}"
    try:
        with (
            engine(
                job.settings.simulation.engine, app, more_nodes=run.more_nodes(job.settings)
            ) as started,
            progress_line(err, title, rounds=job.settings.rounds, budget=job.budget) as on_round,
        ):
            run_and_follow(started, job.settings, job.sent, job.folder, on_round)
    except LaunchError as error:
        fail(str(error), status=1)
    finally:
        if not keep_model:
            for file in (job.folder.model, job.folder.checkpoint):
                file.unlink(missing_ok=True)
    return _judged(job.settings, job, run, alpha=alpha)


def _claimed_curve(job: Job) -> TradeOff | None:
    """Return the trade-off curve of what the ledger was charged, None if it has none."""
    from fl_dp.accounting.loss_distributions import NoDistribution
    from fl_dp.accounting.trade_off import trade_off

    with job.folder.read_ledger() as ledger:
        history, relation = ledger.history, ledger.plan.neighboring_relation
    try:
        return trade_off(history, neighboring_relation=relation)
    except NoDistribution:
        return None


def _known_of_cohorts(turn: WhoseTurn | None) -> str:
    if turn is None:
        return ", but not who was drawn"
    if turn.asked is not None:
        return ", and who was asked in each round"
    return ", and everybody's group, but not who was drawn of it"


def _judged(settings: Settings, job: Job, run: CanaryRun, *, alpha: float) -> AuditReport:
    from fl_dp.lab.audit.verdict import AuditReport
    from fl_dp.lab.audit.whole_run import finding_of_run, one_shot_epsilon
    from fl_dp.lab.games.canary_run import CANARIES_FILE
    from fl_dp.lab.games.canary_server import read_seen
    from fl_dp.lab.games.judged_run import findings_of, rate_of_coins

    seen = read_seen(job.path / CANARIES_FILE)
    rounds = seen.rounds
    statement = job.folder.read_statement()
    claimed = float(statement["epsilon"].get(statement["quoted"], math.inf))
    delta = float(statement["delta"])
    if len(rounds) < settings.rounds:
        warn(f"{len(rounds)} of {settings.rounds} rounds were released; the claim is of all")
    curve, sampling = _claimed_curve(job), job.folder.read_plan().sampling
    canaries = run.canaries(seen.moved.size)
    findings = findings_of(
        seen, canaries, sampling, claim=claimed, delta=delta, alpha=alpha, curve=curve
    )
    surely = finding_of_run(
        canaries,
        seen.looks(),
        sampling_rate=rate_of_coins(sampling),
        claim=claimed,
        delta=delta,
        alpha=0.05,
        curve=curve,
    )
    return AuditReport(
        subject=f"{settings.task.name}, {len(rounds)} rounds",
        findings=findings,
        estimates={
            "lower bound at confidence 0.95, on which no verdict rests": surely.bound or 0.0,
            "one-shot estimate from the last model alone, which is no bound": one_shot_epsilon(
                canaries, seen.moved, delta=delta
            ),
        },
        notes=(
            f"at delta {delta:.3g}; the adversary sees every released model and knows what all "
            f"others sent{_known_of_cohorts(seen.turn)}",
            "the bound by Gaussian DP supposes a trade-off curve near a Gaussian's, that by "
            "Clopper-Pearson nothing; the verdict goes by the claimed curve itself",
        ),
    )
