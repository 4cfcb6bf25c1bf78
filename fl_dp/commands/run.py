"""`fl-dp run`: train through Flower's simulation engine."""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from .console import AsJson, Overrides, err, fail, out, print_json, warn, warnings_shown

if TYPE_CHECKING:
    from fl_dp.launch import LocalSuperLink
    from fl_dp.report.summary import RunSummary
    from fl_dp.run_folder import RunFolder
    from fl_dp.settings import Settings


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
    from fl_dp.accounting import LedgerCorrupted
    from fl_dp.config import ConfigError
    from fl_dp.launch import LaunchError, LocalSuperLink
    from fl_dp.report.summary import summary_json

    try:
        jobs = _prepare_all(overrides or [], multirun=multirun)
        _check_devices(jobs)
    except LedgerCorrupted as error:
        fail(str(error), status=1)
    except (ConfigError, ValueError, OSError) as error:
        fail(str(error), status=2)
    console = err if as_json else out
    runs: list[RunSummary] = []
    # As Ctrl-C: otherwise what Flower has started would train on, and spend on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with LocalSuperLink() as link:
            for job in jobs:
                runs.append(_run_one(link, job, console))
    except LaunchError as error:
        _leave_valid(jobs[len(runs)])
        fail(str(error), status=1)
    except KeyboardInterrupt:
        _leave_valid(jobs[len(runs)])
        folder = jobs[len(runs)].folder.path
        fail(
            f"stopped; what was reserved stays spent. `fl-dp run resume={folder}` goes on",
            status=130,
        )
    _conclude(runs, jobs, console, multirun=multirun)
    if as_json:
        print_json(summary_json(runs))


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
    from fl_dp.run_folder import RunFolder
    from fl_dp.workload import initial_arrays_of, parts_of

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
    from fl_dp.run_folder import RunFolder
    from fl_dp.workload import parts_of

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
    from fl_dp.devices import Machine, check_devices

    machine = Machine.here()
    warnings_of = [check_devices(job.settings, machine) for job in jobs]
    for text in dict.fromkeys(filter(None, warnings_of)):
        warn(text)


def _budget_of(settings: Settings) -> float:
    """Return the epsilon that a run may spend: infinite without privacy."""
    from fl_dp.planning import make_example_plan, make_plan

    with warnings_shown():
        examples = make_example_plan(settings)
        if settings.privacy.mode not in ("none", "example"):
            return make_plan(settings).budget.epsilon
    return math.inf if examples is None else examples.budget.epsilon


def _leave_valid(job: _Job) -> None:
    """Write the statement of a run that could not do so itself."""
    from fl_dp.accounting import LedgerCorrupted

    try:
        job.folder.write_statement_of_ledger()
    except (OSError, ValueError, LedgerCorrupted) as error:
        warn(f"no privacy statement could be written: {error}")


def _prepare_all(overrides: list[str], *, multirun: bool) -> list[_Job]:
    from fl_dp.config import compose_settings, expand_sweep

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
    from fl_dp.launch import run_through_flower
    from fl_dp.report.progress import progress_line
    from fl_dp.report.summary import RunSummary

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
    from fl_dp.report.curves import plot_curves
    from fl_dp.report.summary import summary_json, summary_table

    folder = jobs[0].folder.path.parent if multirun else jobs[0].folder.path
    curves: dict[str, list[list[dict[str, Any]]]] = {}
    for job in jobs:
        curves.setdefault(job.variant or "default", []).append(job.folder.read_metrics())
    picture = folder / "accuracy.png"
    unit = " or ".join(dict.fromkeys(run.unit for run in runs))
    drawn = plot_curves(curves, picture, unit=unit, deltas=[run.delta for run in runs])
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


def _quoted(key: str, value: str) -> str:
    """Return a Hydra override whose value may hold any character."""
    # Hydra reads a backslash literally unless quotes follow, and would interpolate a dollar sign.
    escaped = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ('\\"' if m[2] else ""), value)
    escaped = escaped.replace("${", "\\${")
    return f'{key}="{escaped}"'
