"""Accuracy of four kinds of noise at one promise, beside the ratios of the model's error.

    python benchmarks/noise_arms.py --tasks digits fashion_mnist --seeds 0 1 2 [--folder FOLDER]

Independent noise under a participation cap, independent noise on Poisson cohorts, spaced and
cyclic noise, each trained by `fl-dp run`, with its ledger. Each arm's server step size is chosen
by itself, with one seed, on a public validation part that nobody trains on. The test part is not
looked at before. Prints a table, or one document with `--json`. With `--folder FOLDER` a stopped
command goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fl_dp.accounting import model_error
from fl_dp.app.compose import compose_settings
from fl_dp.app.planning import make_plan
from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE, column_norm

VALIDATION_SEED = 100
COMMON = ("simulation.engine=in_process", "task.num_clients=1000", "report=none")
# Cohorts of ten; steps of clients as in conf/experiment/, where they were not tuned for noise.
TASKS = {
    "digits": (),
    "fashion_mnist": (
        "client.learning_rate=0.02",
        "client.epochs=2",
        "client.batch_size=20",
    ),
}
ARMS = ("independent, cap", "independent, Poisson", "spaced", "cyclic")


def main() -> None:
    """Choose, train, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--rates", nargs="+", default=["0.03", "0.1", "0.3", "1"], help="server step sizes to try"
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--sampling-rate", type=float, default=0.01)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--groups", type=int, default=32, help="of cyclic noise")
    parser.add_argument("--folder", type=Path, help="keep the runs here, and go on with them")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.folder or Path(temporary)).absolute()
        # All plans first: a data set that is missing shows before hours of training.
        noises = {task: _noises(asked, task) for task in asked.tasks}
        rows = {task: _of_task(asked, task, noises[task], folder) for task in asked.tasks}
    document = {
        "rounds": asked.rounds,
        "epsilon": asked.epsilon,
        "seeds": asked.seeds,
        "rates": [float(rate) for rate in asked.rates],
        "tasks": rows,
    }
    if asked.json:
        print(json.dumps(document, indent=2))
        return
    for task, arms in rows.items():
        Console().print(_table(task, arms))


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Keeps the docstring's lines."""


def _common(asked: argparse.Namespace, task: str) -> tuple[str, ...]:
    """Overrides that all arms of a task have."""
    return (
        f"task={task}",
        *COMMON,
        *TASKS[task],
        f"rounds={asked.rounds}",
        f"privacy.epsilon={asked.epsilon:g}",
        f"selection.sampling_rate={asked.sampling_rate:g}",
    )


def _overrides_of(asked: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Overrides that choose each kind of noise."""
    cap = math.ceil(asked.rounds * asked.sampling_rate - 1e-9)
    visible = ("selection=public", f"selection.participation_cap={cap}")
    return {
        ARMS[0]: visible,
        ARMS[1]: ("selection=poisson",),
        ARMS[2]: (*visible, "privacy=correlated"),
        ARMS[3]: ("selection=poisson", "privacy=correlated", f"privacy.groups={asked.groups}"),
    }


def _noises(asked: argparse.Namespace, task: str) -> dict[str, tuple[float, float]]:
    """Each arm's noise multiplier, and its error over that of Poisson cohorts.

    The error is the root mean square of the noise in a coordinate of the model, over all rounds.
    """
    multipliers, errors = {}, {}
    for name, chosen in _overrides_of(asked).items():
        settings = compose_settings([*_common(asked, task), *chosen])
        plan = make_plan(settings)
        coefficients = plan.coefficients or (COEFFICIENT_ONE,)
        left = model_error(
            coefficients, plan.rounds, settings.server_optimizer.get("momentum") or 0.0
        )
        scale = plan.noise_multiplier * column_norm(coefficients) / plan.denominator
        multipliers[name], errors[name] = plan.noise_multiplier, scale * math.sqrt(left)
    return {name: (multipliers[name], errors[name] / errors[ARMS[1]]) for name in ARMS}


def _of_task(
    asked: argparse.Namespace, task: str, noises: dict[str, tuple[float, float]], folder: Path
) -> list[dict[str, Any]]:
    """A line for each arm of one task."""
    return [
        _of_arm(asked, name, noises[name], task, folder / task / name.replace(", ", "-"))
        for name in asked.arms
    ]


def _of_arm(
    asked: argparse.Namespace,
    name: str,
    noise: tuple[float, float],
    task: str,
    folder: Path,
) -> dict[str, Any]:
    """Choose an arm's step size, and train it with each seed."""
    settings = _overrides_of(asked)[name]
    here = (*_common(asked, task), *settings)
    noise_multiplier, relative_error = noise
    rate_of = "server_optimizer.learning_rate="
    tried = _sweep(
        *here,
        f"{rate_of}{','.join(asked.rates)}",
        f"seed={VALIDATION_SEED}",
        "task.validation=true",
        folder=folder / "validation",
    )
    scores = {
        float(rate): float(run["test_accuracy"])
        for rate, run in zip(asked.rates, tried, strict=True)
    }
    rate = max(scores, key=scores.__getitem__)
    seeds = ",".join(map(str, asked.seeds))
    runs = _sweep(*here, f"{rate_of}{rate:g}", f"seed={seeds}", folder=folder / "test")
    accuracies = [float(run["test_accuracy"]) for run in runs]
    return {
        "arm": name,
        "settings": settings,
        "noise_multiplier": noise_multiplier,
        "error_over_poisson": relative_error,
        "validation": scores,
        "rate": rate,
        "at_edge": rate in (min(scores), max(scores)),
        "epsilons": [run["epsilon"] for run in runs],
        "accuracies": accuracies,
        "mean": statistics.fmean(accuracies),
        "std": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
    }


def _sweep(*overrides: str, folder: Path) -> list[dict[str, Any]]:
    """Train every combination that is missing, and return each run's result."""
    if (folder / "sweep.json").is_file():
        _fl_dp("run", f"resume={folder}")
    else:
        output = (f"output_dir={folder.parent}", f"run_name={folder.name}")
        _fl_dp("run", "-m", *overrides, *output)
    summary: dict[str, list[dict[str, Any]]]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary["runs"]


def _fl_dp(*words: str) -> None:
    """Call fl-dp; its progress goes to standard error."""
    subprocess.run([sys.executable, "-m", "fl_dp", *words], check=True, stdout=sys.stderr)


def _table(task: str, arms: list[dict[str, Any]]) -> Table:
    table = Table(title=f"{task}: four kinds of noise at one promise")
    for heading in ("noise", "multiplier", "error, relative", "server step", "accuracy"):
        table.add_column(heading, justify="left" if heading == "noise" else "right")
    for arm in arms:
        spread = "" if arm["std"] is None else f" ± {arm['std']:.3f}"
        table.add_row(
            arm["arm"],
            f"{arm['noise_multiplier']:.3f}",
            f"{arm['error_over_poisson']:.3g}",
            f"{arm['rate']:g}" + (" (edge)" if arm["at_edge"] else ""),
            f"{arm['mean']:.3f}{spread}",
        )
    return table


if __name__ == "__main__":
    main()
