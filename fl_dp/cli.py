"""The command line: `fl-dp run`, `fl-dp plan`, `fl-dp ledger`."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from fl_dp import __version__

if TYPE_CHECKING:
    from .launch import LocalSuperLink
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

_OVERRIDES_HELP = (
    "Hydra overrides, for example `privacy.epsilon=4 task=fashion_mnist rounds=100 "
    "task.num_clients=500 selection.sampling_rate=0.1 clipping.norm=0.5`."
)
Overrides = Annotated[list[str] | None, typer.Argument(help=_OVERRIDES_HELP, show_default=False)]
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

    Writes `runs/NAME/`: `config.yaml`, `metrics.jsonl` (a line a round), `ledger.db`,
    `privacy.json`, `model.safetensors`, `run.log`. Ends with status 0 only if Flower's run did.
    """
    from .config import ConfigError
    from .launch import LaunchError, LocalSuperLink
    from .report.summary import summary_json

    try:
        jobs = _prepare_all(overrides or [], multirun=multirun)
    except (ConfigError, ValueError, FileNotFoundError, FileExistsError) as error:
        _fail(str(error), status=2)
    console = _err if as_json else _out
    try:
        with LocalSuperLink() as link:
            runs = [_run_one(link, job, console) for job in jobs]
    except LaunchError as error:
        _fail(str(error), status=1)
    except KeyboardInterrupt:
        _fail("stopped; what was reserved stays spent", status=130)
    _conclude(runs, jobs, console, multirun=multirun)
    if as_json:
        _print_json(summary_json(runs))


@app.command()
def plan(overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Tell what a training would spend, without training.

    Epsilon by privacy-loss distributions (the number to quote), by Renyi DP, and by the naive sum
    over rounds; the noise multiplier, calibrated if `privacy.noise_multiplier` is not given.
    """
    from .accounting import PoissonGaussianEvent, calibrate_noise_multiplier, epsilon
    from .config import ConfigError, compose_settings
    from .planning import target_delta

    try:
        settings = compose_settings(overrides or [])
        delta = target_delta(settings)
        sampling_rate, rounds = settings.selection.sampling_rate, settings.rounds
        multiplier = settings.privacy.noise_multiplier
        if multiplier is None:
            assert settings.privacy.epsilon is not None  # the settings refuse both being null
            multiplier = calibrate_noise_multiplier(
                settings.privacy.epsilon, delta, sampling_rate=sampling_rate, rounds=rounds
            )
        event = PoissonGaussianEvent(noise_multiplier=multiplier, sampling_rate=sampling_rate)
        spent = epsilon({event: rounds}, delta)
    except (ConfigError, ValueError) as error:
        _fail(str(error), status=2)
    num_clients = settings.task.num_clients
    if delta >= 1.0 / num_clients:
        _warn(
            f"delta {delta:.3g} is not below 1/num_clients = {1.0 / num_clients:.3g}: a mechanism "
            "that publishes one client in full would pass"
        )
    budget = settings.privacy.epsilon
    if budget is not None and spent.pld > budget:
        _warn(
            f"these rounds spend epsilon {spent.pld:.4g}, more than the budget of {budget:g}: "
            "`fl-dp run` will refuse; raise privacy.epsilon or leave privacy.noise_multiplier out"
        )
    if as_json:
        _print_json(
            {
                "delta": delta,
                "epsilon": {"pld": spent.pld, "rdp": spent.rdp, "naive": spent.naive},
                "noise_multipliers": [multiplier] * rounds,
                "sampling_rate": sampling_rate,
                "rounds": rounds,
                "budget": budget,
                "clipping_norm": settings.clipping.norm,
                "num_clients": num_clients,
                "expected_cohort": sampling_rate * num_clients,
            }
        )
        return
    table = Table(title=f"{rounds} rounds, {num_clients} clients, each drawn at {sampling_rate:g}")
    table.add_column("what")
    table.add_column("value", justify="right")
    for what, value in (
        ("noise multiplier (noise std on the sum / clipping norm)", f"{multiplier:.5f}"),
        ("noise std on each coordinate of the mean", f"{_mean_noise(settings, multiplier):.3g}"),
        ("expected cohort", f"{sampling_rate * num_clients:g}"),
        ("delta", f"{delta:.4g}"),
        ("epsilon by PLD: the number to quote", f"{spent.pld:.4f}"),
        ("epsilon by Renyi DP", f"{spent.rdp:.4f}"),
        ("epsilon by naive composition", f"{spent.naive:.4g}"),
    ):
        table.add_row(what, value)
    _out.print(table)


@app.command()
def ledger(
    path: Annotated[Path, typer.Argument(help="A `ledger.db`, or the folder of a run.")],
    as_json: AsJson = False,
) -> None:
    """Tell what was spent, record by record, after verifying the chain.

    Epsilon is computed from the records alone. A record that was altered, removed or reordered is
    an error with status 1.
    """
    from .accounting import LedgerCorrupted, PrivacyLedger

    try:
        opened = PrivacyLedger.read(path / "ledger.db" if path.is_dir() else path)
    except FileNotFoundError as error:
        _fail(str(error), status=2)
    except LedgerCorrupted as error:
        _fail(str(error), status=1)
    spent, of = opened.epsilon(), opened.plan.budget
    if as_json:
        _print_json(
            {
                "path": str(opened.location),
                "verified": True,
                "delta": of.delta,
                "epsilon": {"pld": spent.pld, "rdp": spent.rdp, "naive": spent.naive},
                "budget": of.epsilon,
                "rounds_spent": opened.rounds_spent,
                "rounds_committed": opened.rounds_committed,
                "plan": opened.plan.to_dict(),
                "records": [
                    {"sequence": record.sequence, "hash": record.hash, **record.fields}
                    for record in opened.records
                ],
            }
        )
        return
    table = Table(title=f"{opened.location}")
    for heading in ("record", "kind", "what", "hash"):
        table.add_column(heading)
    for record in opened.records:
        table.add_row(str(record.sequence), record.kind, _describe(record.fields), record.hash[:12])
    _out.print(table)
    lost = opened.rounds_spent - opened.rounds_committed
    _out.print(
        f"Chain verified. {opened.rounds_spent} rounds spent"
        + (f", {lost} of them without a known release" if lost else "")
        + f": epsilon {spent.pld:.4f} of {of.epsilon:g} at delta {of.delta:.3g}"
    )


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
    from .planning import make_plan
    from .run_folder import RunFolder
    from .workload import parts_of

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        budget = make_plan(settings).budget.epsilon
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        _warn(text)
    parts_of(settings)  # a data set that is missing or corrupt shows here
    folder = RunFolder(root / name)
    folder.require_new()
    # The ServerApp runs elsewhere: every path it gets is absolute.
    sent = [*overrides, _quoted("output_dir", str(root)), _quoted("run_name", name)]
    if settings.task.data_dir is not None:
        data_dir = Path(settings.task.data_dir).expanduser().resolve()
        sent.append(_quoted("task.data_dir", str(data_dir)))
    return _Job(variant=variant, sent=sent, settings=settings, budget=budget, folder=folder)


def _prepare_all(overrides: list[str], *, multirun: bool) -> list[_Job]:
    from .config import compose_settings, expand_sweep

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
    return RunSummary(
        path=str(job.folder.path),
        variant=job.variant,
        rounds=statement["rounds"],
        test_accuracy=job.folder.read_metrics()[-1]["test_accuracy"],
        epsilon=statement["epsilon"]["pld"],
        delta=statement["delta"],
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


def _mean_noise(settings: Settings, noise_multiplier: float) -> float:
    """Noise standard deviation on each coordinate of the mean update."""
    cohort = settings.selection.sampling_rate * settings.task.num_clients
    return noise_multiplier * settings.clipping.norm / cohort


def _describe(fields: dict[str, Any]) -> str:
    match fields["kind"]:
        case "plan":
            plan = fields["plan"]
            return (
                f"{plan['rounds']} rounds at rate {plan['sampling_rate']:g}, noise multiplier "
                f"{plan['noise_multiplier']:.5g}, budget epsilon {plan['budget']['epsilon']:g}"
            )
        case "run":
            return f"opened by run {fields['run']}"
        case "reserve":
            return f"round {fields['round']}, attempt {fields['attempt']}"
        case _:
            return f"of record {fields['reserved']}"


def _quoted(key: str, value: str) -> str:
    """Return a Hydra override whose value may hold any character."""
    # Hydra reads a backslash literally unless quotes follow, and would interpolate a dollar sign.
    escaped = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ('\\"' if m[2] else ""), value)
    escaped = escaped.replace("${", "\\${")
    return f'{key}="{escaped}"'


def _print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, indent=2))


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
