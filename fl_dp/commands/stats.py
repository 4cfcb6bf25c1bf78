"""`fl-dp stats`: one private statistic over a task's federation."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fl_dp.guarantee import Guarantee

from .console import (
    AsJson,
    doing,
    exit_on_errors,
    fail,
    out,
    print_json,
    tell,
    warn,
    warnings_shown,
    written_once,
)

if TYPE_CHECKING:
    from .jobs import Job

_SHOWN = 40  # rows of a table; all of them are in the folder


def stats(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="count, sum, mean, histogram, quantiles or top.")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUES] [OVERRIDES]...", show_default=False, callback=written_once
        ),
    ] = None,
    price: Annotated[
        bool, typer.Option("--price", help="Show what it would cost, and how exact it would be.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer one private statistic over a task's federation of simulated nodes.

    Small tasks answer in one process, others in Flower's simulation engine.

    QUERY is one of `count` (records), `sum` and `mean` (with the standard deviation), `histogram`,
    `quantiles`, and `top` (the most frequent labels or categories).

    VALUES are `labels` (the default), `records` (each feature of them), `records.3` (the fourth
    feature alone), `records.age` (a column of your table's schema), or `missing` (the share of
    cells without a value, of each such column).

    OVERRIDES are settings, KEY=VALUE, as for `fl-dp run` and the group `statistic`. For example:

    - `fl-dp stats histogram labels task=digits privacy.epsilon=1`

    - `fl-dp stats mean records.20 statistic.low=-2 statistic.high=2 privacy=distributed`

    - `fl-dp stats quantiles records.20 statistic.low=-2 statistic.high=2 statistic.bins=50`

    - `fl-dp stats histogram records.sex task=csv task.data_dir=data privacy.epsilon=0.5`

    - `fl-dp stats count task.num_clients=50 statistic.max_records=100`

    Ranges, edges and classes are public: never read them off the data. The answer costs
    `privacy.epsilon` (8 unless given) at `privacy.delta`, for one client with all its records, and
    comes by a secure sum with `privacy=distributed`. Budgets of runs on the same clients add up, as
    `fl-dp budgets` shows.

    Writes `runs/NAME/`: `statistic.json` (the answer, its errors and its price), `ledger.db`,
    `privacy.json`, `privacy.md`, `config.yaml`, `run.log`.
    """
    with exit_on_errors(as_json=as_json):
        from .jobs import find_jobs

        overrides = _overrides(query, words or [])
        (job,) = find_jobs(overrides, multirun=False).trainings
        if not price:
            _caution(job)
        with doing("loading the data and choosing the noise"), warnings_shown():
            from fl_dp.app.statistics import price as price_of
            from fl_dp.app.statistics import statistic_plan

            document = price_of(job.settings, *statistic_plan(job.settings))
        if not price:
            document = _answered(job)
    if as_json:
        print_json(document)
        return
    if price:
        tell(f"It would cost {_cost(document)}")
        tell(f"Noise: {document['noise']}")
        return
    _show(document, job.path)


def _overrides(query: str, words: list[str]) -> list[str]:
    """Return Hydra's overrides for the words of the command line."""
    overrides = [word for word in words if "=" in word]
    values = [word for word in words if "=" not in word]
    if len(values) > 1:
        raise ValueError(
            f"one statistic is of one kind of values, got {' and '.join(values)}: write labels, "
            "records or records.3, then KEY=VALUE"
        )
    if any(word.startswith("resume=") for word in overrides):
        raise ValueError("a statistic is asked once and can't be resumed: leave resume out")
    asked = [f"statistic.query={query}", *(f"statistic.values={name}" for name in values)]
    return [*asked, *overrides]


def _caution(job: Job) -> None:
    """Print what to consider before relying on a promise to clients."""
    from fl_dp.app.cautions import cautions

    for text in cautions(job.settings):
        warn(text)


def _answered(job: Job) -> dict[str, Any]:
    """Ask the federation and return the written answer."""
    from fl_dp.app.local.engines import engine
    from fl_dp.app.local.launch import LaunchError

    try:
        with ExitStack() as stack:
            with doing("starting Flower"):
                link = stack.enter_context(engine(job.settings.simulation.engine))
            with doing(f"asking {job.settings.task.num_clients} clients", plainly=True):
                status = link.run(job.settings, job.sent, lambda: None)
    except LaunchError as error:
        fail(str(error), status=1)
    if not status.succeeded:
        spent = "; what was reserved stays spent" if job.folder.has_ledger else ""
        fail(f"the run ended as '{status.status}': {status.details}{spent}", status=1)
    document: dict[str, Any] = json.loads(job.folder.statistic.read_text(encoding="utf-8"))
    return document | {"path": str(job.path)}


def _show(document: dict[str, Any], path: Path) -> None:
    """Print the answer as a table, its price, and the folder."""
    from fl_dp.terminal.sheets import sheet

    rows = document["rows"]
    first = next(iter(document["answer"]["estimates"].values()))
    shown = [(name, f"{value:.6g}", f"{error:.3g}") for name, value, error in rows[:_SHOWN]]
    title = f"{document['query']['kind']} of {document['values']}"
    headings = ("", "private value", "error")
    out.print(sheet(title, headings, shown, numbers=headings[1:]))
    hidden = len(rows) - _SHOWN
    if hidden > 0:
        tell(f"{hidden} more rows are in {path / 'statistic.json'}")
    lines = [
        f"Error: {first['error_is']}",
        f"Cost: {_cost(document)}",
        f"Noise: {document['answer']['explanation']}",
        f"Everything is in {path}; `fl-dp ledger {path}` verifies what was spent",
    ]
    for line in lines:
        tell(line)


def _cost(document: dict[str, Any]) -> str:
    trusted = "trusting the server" if document["mode"] == "central" else "by a secure sum"
    return f"{Guarantee.read(document['guarantee'])}, for {document['unit']}, {trusted}"
