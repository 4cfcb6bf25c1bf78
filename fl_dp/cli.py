"""The command line: `fl-dp run`, `fl-dp plan`, `fl-dp ledger`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from fl_dp import __version__

if TYPE_CHECKING:
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
    from .config import ConfigError, compose_settings, expand_sweep
    from .launch import LaunchError, LocalSuperLink

    try:
        jobs = expand_sweep(overrides or []) if multirun else [overrides or []]
        prepared = [_prepare(job, compose_settings(job)) for job in jobs]
        _place(prepared, multirun=multirun)
    except (ConfigError, ValueError, FileNotFoundError, FileExistsError) as error:
        _fail(str(error), status=2)

    console = _err if as_json else _out
    try:
        with LocalSuperLink() as link:
            runs = [_run_one(link, job, console, multirun=multirun) for job in prepared]
    except LaunchError as error:
        _fail(str(error), status=1)
    except KeyboardInterrupt:
        _fail("stopped; what was reserved stays spent", status=130)
    _conclude(runs, prepared, console, as_json=as_json, multirun=multirun)


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
                "path": str(opened.path),
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
    table = Table(title=f"{opened.path}")
    for heading in ("record", "kind", "what", "hash"):
        table.add_column(heading)
    for record in opened.records:
        table.add_row(
            str(record.sequence), record.kind, _describe(record.fields), record.hash[:12]
        )
    _out.print(table)
    lost = opened.rounds_spent - opened.rounds_committed
    _out.print(
        f"Chain verified. {opened.rounds_spent} rounds spent"
        + (f", {lost} of them without a known release" if lost else "")
        + f": epsilon {spent.pld:.4f} of {of.epsilon:g} at delta {of.delta:.3g}"
    )


class _Job:
    """One training that was checked and has a place to go."""

    def __init__(self, overrides: Sequence[str], settings: Settings, budget: float) -> None:
        self.overrides = list(overrides)
        self.settings = settings
        self.budget = budget
        self.folder: RunFolder

    @property
    def variant(self) -> str:
        return " ".join(one for one in self.overrides if not one.startswith("seed="))


def _prepare(overrides: Sequence[str], settings: Settings) -> _Job:
    """Check everything that can be checked before Flower starts."""
    from .planning import make_plan
    from .training import check_data

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        budget = make_plan(settings).budget.epsilon
    for warning in caught:
        _warn(str(warning.message))
    check_data(settings)
    return _Job(overrides, settings, budget)


def _place(jobs: Sequence[_Job], *, multirun: bool) -> None:
    """Give each job its folder and the overrides that tell the ServerApp of it."""
    from .run_folder import RunFolder

    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for index, job in enumerate(jobs):
        settings = job.settings
        root = Path(settings.output_dir or "runs").expanduser().resolve()
        name = settings.run_name or f"{stamp}-{settings.task.name}"
        if multirun:
            root, name = root / name, f"run-{index}"
        job.folder = RunFolder(root / name)
        if job.folder.path.exists():
            raise FileExistsError(
                f"{job.folder.path} exists already: choose another run_name, or leave it out"
            )
        job.overrides_sent = [*job.overrides, _quoted("output_dir", root), _quoted("run_name", name)]
        if settings.task.data_dir is not None:
            data_dir = Path(settings.task.data_dir).expanduser().resolve()
            job.overrides_sent.append(_quoted("task.data_dir", data_dir))
