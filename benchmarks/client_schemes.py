"""Noise at the client: accuracy of the three schemes against epsilon, as a table and a picture.

    python benchmarks/client_schemes.py --runs runs/schemes --picture docs/images/schemes.png

trains each scheme at each budget with three seeds through `fl-dp run -m`; what is there already is
read. The comparison is of accuracy, not of time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

SHARED = (
    "privacy=local",
    "selection=public",
    "selection.participation_cap=8",
    "rounds=30",
    "server_optimizer.learning_rate=0.1",
)
# Laplace noise is for updates that are clipped in L1, which is longer: both norms were tried out.
SCHEMES = {"gaussian": "0.5", "exponential": "0.5", "laplace": "4"}
EPSILONS = (8, 32, 128)
SEEDS = (0, 1, 2)
COLOURS = dict(zip(SCHEMES, ("#1b6ca8", "#3c8d5a", "#c98b2b"), strict=True))


def train_missing(scheme: str, runs: Path) -> None:
    """Train every budget and seed of one scheme, in one sweep."""
    folder = runs / scheme
    if (folder / "summary.json").is_file():
        return
    print(f"training {scheme}", file=sys.stderr)
    subprocess.run(
        [
            *(str(Path(sys.executable).parent / "fl-dp"), "run", "-m", *SHARED),
            *(f"privacy.scheme={scheme}", f"clipping.norm={SCHEMES[scheme]}"),
            f"privacy.epsilon={','.join(map(str, EPSILONS))}",
            f"seed={','.join(map(str, SEEDS))}",
            *(f"output_dir={runs.resolve()}", f"run_name={scheme}"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def outcomes(runs: Path) -> dict[str, dict[str, Any]]:
    """Return, for each scheme, the rows of its sweep's summary by epsilon."""
    found: dict[str, dict[str, Any]] = {}
    for scheme in SCHEMES:
        summary = json.loads((runs / scheme / "summary.json").read_text(encoding="utf-8"))
        found[scheme] = {
            row["variant"].partition("=")[2]: {
                "accuracy_mean": row["test_accuracy_mean"],
                "accuracy_std": row["test_accuracy_std"],
                "epsilon": row["epsilon"],
                "runs": row["runs"],
            }
            for row in summary["variants"]
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
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
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
    axes.axhline(0.1, color="#5b6770", linewidth=1, linestyle=":")  # ten classes: a guess
    axes.set(xlabel="epsilon of each client, against the server", ylabel="public test accuracy")
    axes.set_xscale("log", base=2)
    axes.set_xticks(EPSILONS, [str(epsilon) for epsilon in EPSILONS])
    axes.set_ylim(0, 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(target, dpi=150)


def main() -> None:
    """Train what is missing; print and draw what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/schemes"), help="folder of runs")
    parser.add_argument("--picture", type=Path, help="draw accuracy over epsilon here, PNG")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    for scheme in SCHEMES:
        train_missing(scheme, arguments.runs)
    found = outcomes(arguments.runs)
    if arguments.picture is not None:
        draw(found, arguments.picture)
    print(json.dumps(found, indent=2) if arguments.json else table(found))


if __name__ == "__main__":
    main()
