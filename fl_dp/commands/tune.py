"""`fl-dp tune`: hyper-parameters chosen among a few, and paid for, then trained with."""

from __future__ import annotations

import math
import shutil
import signal
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from fl_dp.guarantee import Guarantee

from .console import (
    AsJson,
    Overrides,
    doing,
    err,
    exit_on_errors,
    note,
    out,
    print_json,
    print_plainly,
    warn,
)

if TYPE_CHECKING:
    from fl_dp.app.settings import Settings
    from fl_dp.terminal.results import Result

    from .jobs import Job


def tune(overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Choose hyper-parameters among a few, charge for the choice, and train with the winner.

    OVERRIDES are those of `fl-dp run`. A key with several values, `KEY=A,B`, is tuned; two such
    keys make a grid. For example:

    - `fl-dp tune client.learning_rate=0.1,0.5,2 clipping.norm=0.2,1 privacy.epsilon=4`

    - `fl-dp tune client.learning_rate=0.5,2 tune.by=stopping tune.mean_runs=4`

    - `fl-dp tune client.learning_rate=0.5,2 tune.by=public`

    `tune.by` says who chooses, and what it costs:

    - `vote` (the default): each client tries all candidates on its own data and scores them. One is
      drawn by the exponential mechanism, for `tune.share` (0.1) of `privacy.epsilon`, however many
      there are. The rest of the budget trains.

    - `stopping`: whole trainings with candidates drawn at random, `tune.mean_runs` (5) expected.
      The best is kept; one charge within `privacy.epsilon` covers all. Others are deleted.

    - `public`: the server tries the candidates on its public test part, at no charge.

    These keys can be tuned: `client.learning_rate`, `.epochs`, `.batch_size`, `clipping.norm`,
    `model.name`, `model.hidden`, and every key of `server_optimizer`.

    Writes `runs/NAME/` as `fl-dp run` does. Its privacy statement covers the choice
    as well as the training, and says how the choice was made.
    """
    # As Ctrl-C: otherwise the trainings would go on and spend.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with exit_on_errors():
        from fl_dp.app.cautions import cautions

        from .jobs import Jobs, find_jobs, prepare
        from .run import conclude

        (job,) = find_jobs(with_candidates(overrides or []), multirun=False).trainings
        job.settings.require_training()
        _check(job.settings)
        prepare(job)
        for text in cautions(job.settings):
            warn(text)
        console = err if as_json else out
        if job.settings.tune.by == "stopping":
            summary = _best_of_many(job, console)
        else:
            summary = _chosen_and_trained(job, console)
        conclude([summary], Jobs(trainings=(job,)), console)
        _say(job, console)
    if as_json:
        from fl_dp.terminal.summary import summary_json

        print_json(summary_json([summary]) | {"chosen": job.folder.read_settings().tune.chosen})


def with_candidates(overrides: Sequence[str]) -> list[str]:
    """Return overrides in which keys of several values have become `tune.candidates`.

    Raises:
        ValueError: If no key has several values, or one can't be tuned.
    """
    from fl_dp.app.compose import expand_sweep
    from fl_dp.app.overrides import parsed, quoted
    from fl_dp.app.tuning.candidates import require_tunable

    if any(text.startswith("resume=") for text in overrides):
        raise ValueError("write `fl-dp run resume=FOLDER`: it continues a tuned run, too")
    swept = [text for text in overrides if parsed(text).is_sweep_override()]
    if not swept:
        raise ValueError(
            "nothing is to be tuned: write several values, for example "
            "`fl-dp tune client.learning_rate=0.5,1,2`"
        )
    for text in swept:
        require_tunable(text.partition("=")[0])
    candidates = [" ".join(texts) for texts in expand_sweep(swept)]
    listed = ",".join(map(quoted, candidates))
    fixed = [text for text in overrides if text not in swept]
    return [*fixed, f"tune.candidates=[{listed}]"]


def _check(settings: Settings) -> None:
    """Check every candidate, before anything is started."""
    from fl_dp.app.charged_choice import require_choosable
    from fl_dp.app.tuning.candidates import candidates_of
    from fl_dp.app.workload import check_model

    require_choosable(settings)
    with doing("checking the candidates"):
        for candidate in candidates_of(settings):
            check_model(candidate)


def _chosen_and_trained(job: Job, console: Console) -> Result:
    """Let the run choose and then train, both in the run's own ledger."""
    from .jobs import Jobs
    from .queue import Queue

    tune = job.settings.tune
    count = len(tune.candidates or ())
    if tune.by == "vote":
        note(f"before the first round, each client tries {count} candidates and votes")
    else:
        note(f"before the first round, the server tries {count} candidates on its public rows")
    [summary] = Queue(Jobs(trainings=(job,)), console).work_off()
    return summary


def _best_of_many(job: Job, console: Console) -> Result:
    """Train a secret random number of times, and keep only the best training."""
    from fl_dp.app.accounts import SUFFIX
    from fl_dp.app.tuning.choice import TRIALS
    from fl_dp.app.tuning.stopping import Stopped

    from .jobs import Job as OneJob
    from .outcomes import result_of

    with doing("calibrating the noise of each training"):
        stopped = Stopped.begun(job.folder, job.settings)
    note(
        "a random number of trainings follows, each with a candidate drawn at random and within "
        f"{stopped.promise_of_one}; how many there were, and what lost, has to stay with you: keep "
        "these lines, and how long they took, to yourself"
    )
    trials = job.path / TRIALS
    with closing(stopped):
        try:
            shared = _without_choice(job.overrides)
            trainings = tuple(
                OneJob(
                    variant="",
                    overrides=(*shared, *overrides),
                    settings=settings,
                    path=trials / f"{number}",
                    account=str(trials / f"{number}{SUFFIX}"),  # the choice's entry covers it
                )
                for number, (overrides, settings) in enumerate(stopped.runs)
            )
            scores = [_score(training, console) for training in trainings]
            stopped.keep([training.folder for training in trainings], scores)
        finally:
            # The losers and their number stay secret.
            shutil.rmtree(trials, ignore_errors=True)
    return replace(result_of(job, None), rounds=job.settings.rounds)


def _score(job: Job, console: Console) -> float:
    """Train once and return the score: a failed training counts, and is the worst."""
    from .jobs import Jobs
    from .queue import Queue

    try:
        [summary] = Queue(Jobs(trainings=(job,)), console).work_off()
    except typer.Exit as ended:
        if ended.exit_code != 1:  # Ctrl-C, which stops all trainings
            raise
        note("this training failed, and takes the last place; the others go on")
        return -math.inf
    return summary.score.rank


def _without_choice(overrides: Sequence[str]) -> list[str]:
    return [text for text in overrides if not text.startswith(("tune.", "run_name=", "report="))]


def _say(job: Job, console: Console) -> None:
    """Report the choice, its cost, and the command that trains with it again."""
    statement = job.folder.read_statement()
    chosen = job.folder.read_settings().tune.chosen
    rest = " ".join(_without_choice(job.overrides))
    print_plainly(
        console,
        f"Chosen: {chosen}",
        f"Choice and training together: {Guarantee.stated(statement)}, "
        f"in one ledger; {statement['hyper_parameters']}",
        f"Again with it, at the price of another training: fl-dp run {rest} {chosen}",
    )
