"""Noise at the client: accuracy of the three schemes against epsilon, as a table and a picture.

    python benchmarks/client_schemes.py --runs runs/schemes --picture docs/images/schemes.png

trains each scheme at each budget with three seeds, the app's own server and clients on a grid in
this process (a few seconds a run); runs that are there already are read. The comparison is of
accuracy, not of time.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from stock_flower import LocalGrid

from fl_dp.app.compose import compose_settings
from fl_dp.app.pictures import PALE, new_picture, save_picture
from fl_dp.app.run_folder import RunFolder
from fl_dp.app.server import train
from fl_dp.app.task_client import app

SHARED = (
    "privacy=local",
    "selection=public",
    "selection.participation_cap=8",
    "rounds=30",
    "server_optimizer.learning_rate=0.1",
)
# Laplace noise is for updates that are clipped in L1, which is longer: both norms were tried out.
SCHEMES = {"gaussian": "0.5", "exponential": "0.5", "laplace": "4"}
EPSILONS = (2, 8, 32, 128)
SEEDS = (0, 1, 2)
COLOURS = dict(zip(SCHEMES, ("#1b6ca8", "#3c8d5a", "#c98b2b"), strict=True))


def accuracy_of(scheme: str, epsilon: int, seed: int, runs: Path) -> float:
    """Train if that was not done, and return the accuracy of the last model."""
    name = f"{scheme}-{epsilon}-{seed}"
    folder = RunFolder(runs.resolve() / name)
    if not folder.statement.is_file():
        print(f"training {name}", file=sys.stderr)
        settings = compose_settings(
            [
                *SHARED,
                f"privacy.scheme={scheme}",
                f"clipping.norm={SCHEMES[scheme]}",
                f"privacy.epsilon={epsilon}",
                f"seed={seed}",
                f"output_dir={runs.resolve()}",
                f"run_name={name}",
            ]
        )
        grid = LocalGrid(answer, settings.task.num_clients, runs_an_app=True)
        train(grid, settings, run_id=name)
    accuracy: float = folder.read_metrics()[-1]["test_accuracy"]
    return accuracy


def answer(message: Message, node: int) -> Message:
    """Let a node's app answer."""
    return app(message, Context(1, node, {"partition-id": node}, RecordDict(), {}))


def outcomes(runs: Path) -> dict[str, dict[str, Any]]:
    """Return mean and spread of the seeds, for each scheme by epsilon."""
    found: dict[str, dict[str, Any]] = {}
    for scheme in SCHEMES:
        found[scheme] = {}
        for epsilon in EPSILONS:
            accuracies = [accuracy_of(scheme, epsilon, seed, runs) for seed in SEEDS]
            found[scheme][str(epsilon)] = {
                "accuracy_mean": statistics.fmean(accuracies),
                "accuracy_std": statistics.stdev(accuracies),
            }
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the outcomes as Markdown."""
    head = ["scheme", *(f"epsilon {epsilon}" for epsilon in EPSILONS)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for scheme, rows in found.items():
        cells = [
            f"{rows[str(epsilon)]['accuracy_mean']:.3f} ± {rows[str(epsilon)]['accuracy_std']:.3f}"
            for epsilon in EPSILONS
        ]
        lines.append(f"| {' | '.join([scheme, *cells])} |")
    return "\n".join(lines)


def draw(found: dict[str, dict[str, Any]], target: Path) -> None:
    """Draw accuracy against epsilon, with the spread of the seeds."""
    made = new_picture(size=(6.4, 3.6))
    if made is None:
        raise SystemExit("no picture without matplotlib: pip install 'fl-dp[viewer]' brings it")
    figure, (axes,) = made
    for scheme, rows in found.items():
        means = [rows[str(epsilon)]["accuracy_mean"] for epsilon in EPSILONS]
        spreads = [rows[str(epsilon)]["accuracy_std"] for epsilon in EPSILONS]
        axes.errorbar(
            EPSILONS,
            means,
            yerr=spreads,
            marker="o",
            capsize=3,
            label=scheme,
            color=COLOURS[scheme],
        )
    axes.axhline(0.1, color=PALE, linewidth=1, linestyle=":", label="a guess (ten classes)")
    axes.set(
        xlabel="epsilon of one client, against the server",
        ylabel="public test accuracy",
        title="Noise at the clients, delta 0.0029, mean and spread of the seeds",
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(EPSILONS, [str(epsilon) for epsilon in EPSILONS])
    axes.set_ylim(0, 1)
    save_picture(figure, target)


def main() -> None:
    """Train what is missing; print and draw what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/schemes"), help="folder of runs")
    parser.add_argument("--picture", type=Path, help="draw accuracy over epsilon here, PNG")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    found = outcomes(arguments.runs)
    if arguments.picture is not None:
        draw(found, arguments.picture)
    print(json.dumps(found, indent=2) if arguments.json else table(found))


if __name__ == "__main__":
    main()
