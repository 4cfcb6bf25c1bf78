"""`fl-dp price`: what each part of privacy costs in accuracy."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fl_dp.commands.console import (
    AsJson,
    Overrides,
    err,
    fail,
    failures_told,
    out,
    print_json,
    print_plainly,
    warn,
)
from fl_dp.files import write_text

from .experiments import DataIsPublic, require_public

if TYPE_CHECKING:
    from rich.table import Table

    from fl_dp.commands.jobs import Job, Jobs
    from fl_dp.lab.price_steps import Price, Step

_LABEL = (
    "experiments without privacy: only the last step is private, and to compare it with the others "
    "on data of people would release what it protects. Public or simulated data only"
)
_FILE = "price.json"
_ONE_PROCESS = "simulation.engine=in_process"  # Flower's own takes five times as long to start


def price(
    overrides: Overrides = None,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Trainings per step; seeds count up from `seed`.")
    ] = 3,
    data_is_public: DataIsPublic = False,
    as_json: AsJson = False,
) -> None:
    """Measure what each part of privacy costs in accuracy: cohorts, clipping, noise.

    OVERRIDES are settings, KEY=VALUE, as for `fl-dp run`. For example:

    - `fl-dp price privacy.epsilon=4 rounds=60`

    - `fl-dp price --seeds 5 clipping.norm=0.2 selection.sampling_rate=0.1`

    Trains the same task with the same seeds in four steps: everybody, unclipped and without noise;
    with sampled cohorts; clipped, and divided by the public denominator; and with the noise, as
    asked for. A step's price is the drop in accuracy
    on the public test part, for the same seed.

    Each training has one process, as with `simulation.engine=in_process`, and as many train at a
    time as there are processors: some minutes with the defaults, most of them for the first step,
    where each client is trained by itself. Write `simulation.engine=flower` for Flower's own
    engine.

    These are experiments without privacy. Run them on public or simulated data only: what they
    print is not covered by any promise.

    Writes `runs/NAME/`: `price.json`, and a folder for each training. After an interruption
    `fl-dp price resume=runs/NAME` does what is missing.
    """
    # As Ctrl-C: otherwise what Flower has started would train on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with failures_told():
        from fl_dp.commands.queue import Queue

        warn(_LABEL)
        given = overrides or []
        resumed = any(each.startswith("resume=") for each in given)
        jobs = _resumed(given) if resumed else _jobs(given, seeds, data_is_public=data_is_public)
        jobs = _prepared(jobs)
        runs = Queue(jobs, err if as_json else out, command="price").work_off()
        from fl_dp.lab.price_steps import prices

        accuracies: dict[str, list[float]] = {}
        for job, run in zip(jobs.each, runs, strict=True):
            accuracies.setdefault(job.variant, []).append(run.score.rank)
        found = prices(accuracies)
        document = _document(jobs, found, epsilon=runs[-1].epsilon, delta=runs[-1].delta)
        text = json.dumps(document, indent=2) + "\n"
        write_text(jobs.path / _FILE, text, public=True)
    if as_json:
        print_json(document)
        return
    print_plainly(
        out,
        _table(found),
        f"Accuracy on the public test part; prices in percentage points, mean and standard "
        f"deviation over {len(found[0].accuracies)} seeds",
        f"The last step promises epsilon {document['epsilon']:.4g} at delta "
        f"{document['delta']:.3g} to one client; the others promise nothing",
        f"Everything is in {jobs.path}",
    )


def _jobs(given: Sequence[str], seeds: int, *, data_is_public: bool) -> Jobs:
    """Return one training for each step and seed, after the checks that cost next to nothing.

    Raises:
        ValueError: If settings are wrong, or their price can't be taken apart.
    """
    from fl_dp.app.settings import SweepSettings
    from fl_dp.commands.jobs import Jobs, at_once, find_jobs
    from fl_dp.commands.stats import refuse_statistics
    from fl_dp.lab.price_steps import steps_to

    if seeds < 1:
        fail(f"--seeds is {seeds}; write at least 1", status=2)
    if not any(each.lstrip("+").startswith("simulation") for each in given):
        given = (_ONE_PROCESS, *given)
    (asked,) = find_jobs(given, multirun=False).each
    refuse_statistics(asked.settings)
    because = "a price is found by training without privacy"
    require_public(asked.settings, stated=data_is_public, because=because)
    each = [
        _job(asked, step, number, asked.settings.seed + offset)
        for number, step in enumerate(steps_to(asked.settings), 1)
        for offset in range(seeds)
    ]
    # A plain sweep, so that it can be resumed.
    plain = SweepSettings()
    return Jobs(
        each=tuple(each),
        sweep=asked.path,
        experiment=plain,
        side_by_side=at_once(plain, [asked.settings]),
    )


def _job(asked: Job, step: Step, number: int, seed: int) -> Job:
    from fl_dp.app.cells import digest_of
    from fl_dp.app.compose import compose_settings
    from fl_dp.app.local.devices import Machine
    from fl_dp.app.local.hosting import hosted

    overrides = (*step.overrides(asked.overrides), f"seed={seed}")
    settings, _ = hosted(compose_settings(overrides), Machine.here())
    return replace(
        asked,
        variant=step.name,
        digest=digest_of(settings),
        overrides=overrides,
        settings=settings,
        path=asked.path / f"step-{number}-seed-{seed}",
    )


def _prepared(jobs: Jobs) -> Jobs:
    """Check what takes time, before anything is started or written."""
    from fl_dp.commands.jobs import prepare

    many = len(jobs.each)
    # The last ones first: they are what was asked for, and what is wrong is wrong there.
    each = [
        prepare(job, f" of training {number} of {many} ({job.title})")
        for number, job in reversed(list(enumerate(jobs.each, 1)))
    ]
    return replace(jobs, each=tuple(reversed(each)))


def _resumed(given: Sequence[str]) -> Jobs:
    """Return the trainings of an earlier call, of which some may be finished.

    Raises:
        ValueError: If the folder is no price.
    """
    from fl_dp.commands.jobs import find_jobs

    jobs = find_jobs(given, multirun=False)
    if jobs.sweep is None or not all(job.path.name.startswith("step-") for job in jobs.each):
        raise ValueError(
            f"{jobs.path} is not what `fl-dp price` writes: `fl-dp run resume={jobs.path}` "
            "continues other runs"
        )
    return jobs


def _document(
    jobs: Jobs, found: Sequence[Price], *, epsilon: float, delta: float
) -> dict[str, Any]:
    return {
        "label": _LABEL,
        "task": jobs.each[0].settings.task.name,
        "rounds": jobs.each[0].settings.rounds,
        "seeds": list(dict.fromkeys(job.settings.seed for job in jobs.each)),
        "epsilon": epsilon,
        "delta": delta,
        "unit": "one client",
        "steps": [each.to_dict() for each in found],
        "cost_of_all": found[0].accuracy - found[-1].accuracy,
        "path": str(jobs.path),
    }


def _table(found: Sequence[Price]) -> Table:
    from rich.table import Table

    from fl_dp.lab.price_steps import points, spread

    table = Table(title="What privacy costs in accuracy (experiments without privacy)")
    for heading, side in (("training", "left"), ("accuracy", "right"), ("price", "right")):
        table.add_column(heading, justify="left" if side == "left" else "right", overflow="fold")
    for each in found:
        deviation = spread(each.accuracies)
        accuracy = f"{each.accuracy:.3f}"
        table.add_row(
            each.step,
            accuracy if deviation is None else f"{accuracy} ± {deviation:.3f}",
            points(each.cost, spread(each.costs)),
        )
    whole = [a - b for a, b in zip(found[0].accuracies, found[-1].accuracies, strict=True)]
    table.add_section()
    table.add_row("all together", "", points(sum(whole) / len(whole), spread(whole)))
    return table
