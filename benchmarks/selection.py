"""Ways to choose clients at equal budget: accuracy over three seeds, as a table and a picture.

    python benchmarks/selection.py --runs runs/selection --picture docs/images/selection.png

trains each way through `fl-dp run` (about a minute a run); runs that are there already are
read. The comparison is of accuracy, not of time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_dp.report.pictures import new_picture, save_picture

SHARED = (
    "task.partition=dirichlet",
    "task.alpha=0.3",
    "rounds=100",
    "privacy.epsilon=8",
    "simulation.units_per_node=25",
)
CAP = "selection.participation_cap=25"
WAYS = {
    "poisson": ("selection=poisson",),
    "truncated_poisson": ("selection=truncated_poisson",),
    "dp_utility": (
        "selection=dp_utility",
        "selection.largest_rate=0.35",
        "selection.refresh_every=50",
    ),
    "public": ("selection=public", CAP),
    "exponential": ("selection=exponential", CAP, "selection.epsilon=0.05"),
    "exponential_strong": ("selection=exponential", CAP, "selection.epsilon=0.1"),
    "fixed": ("selection=fixed",),
    "none": ("privacy=none", "simulation.units_per_node=1"),
}
COLOURS = dict(
    zip(
        WAYS,
        ("#1b6ca8", "#5fa8d3", "#3c8d5a", "#c98b2b", "#d1495b", "#8c2f39", "#8d6cab", "#5b6770"),
        strict=True,
    )
)


@dataclass(frozen=True)
class Outcome:
    """What the seeds of one way came to.

    Attributes:
        curves: Accuracy after each round, one list a seed.
        noise_multiplier: Noise on the sum over the clipping norm.
        epsilon: As the statement quotes it; None without privacy.
    """

    curves: list[list[float]]
    noise_multiplier: float | None
    epsilon: float | None

    @property
    def finals(self) -> list[float]:
        """Accuracy of the last model of each seed."""
        return [curve[-1] for curve in self.curves]


def outcome_of(way: str, runs: Path, seeds: int) -> Outcome:
    """Train what is missing and read what came of it."""
    curves = []
    statement: dict[str, Any] = {}
    for seed in range(seeds):
        folder = runs / f"{way}-{seed}"
        if not (folder / "privacy.json").is_file():
            print(f"training {way}, seed {seed}", file=sys.stderr)
            subprocess.run(
                [
                    *(str(Path(sys.executable).parent / "fl-dp"), "run", *SHARED, *WAYS[way]),
                    *(f"seed={seed}", f"output_dir={runs.resolve()}", f"run_name={folder.name}"),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        curves.append([json.loads(line)["test_accuracy"] for line in lines])
        statement = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    noise = statement.get("noise_multipliers") or [None]
    return Outcome(curves, noise[0], statement["epsilon"].get(statement["quoted"]))


def draw(outcomes: dict[str, Outcome], target: Path) -> None:
    """Draw the mean over the seeds, and every seed's last accuracy."""
    made = new_picture((3.0, 2.0), size=(9.0, 3.6))
    if made is None:
        raise SystemExit("no picture without matplotlib: pip install 'fl-dp[report]' brings it")
    figure, (over_rounds, last) = made
    for place, (way, outcome) in enumerate(outcomes.items()):
        shortest = min(map(len, outcome.curves))
        mean = [statistics.fmean(c[t] for c in outcome.curves) for t in range(shortest)]
        style: dict[str, Any] = {"color": COLOURS[way], "linestyle": "--" if way == "none" else "-"}
        over_rounds.plot(range(shortest), mean, label=way, linewidth=1.6, **style)
        last.plot(outcome.finals, [place] * len(outcome.finals), "o", color=COLOURS[way], alpha=0.7)
        last.plot(statistics.fmean(outcome.finals), place, "|", color=COLOURS[way], markersize=18)
    over_rounds.set(
        xlabel="round",
        ylabel="public test accuracy",
        title="One client: epsilon 8, delta 0.0029; mean of the seeds",
        ylim=(0.5, 1),
    )
    last.set(xlabel="accuracy", title="Last model, a dot a seed", yticks=range(len(outcomes)))
    last.set_yticklabels(outcomes)
    last.invert_yaxis()
    save_picture(figure, target)


def main() -> None:
    """Compare, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/selection"), help="folder of runs")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each way")
    parser.add_argument("--picture", type=Path, help="draw here, PNG")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args()
    outcomes = {way: outcome_of(way, chosen.runs, chosen.seeds) for way in WAYS}
    if chosen.picture is not None:
        draw(outcomes, chosen.picture)
    rows = {
        way: {
            "accuracy": statistics.fmean(outcome.finals),
            "std": statistics.stdev(outcome.finals) if chosen.seeds > 1 else None,
            "noise_multiplier": outcome.noise_multiplier,
            "epsilon": outcome.epsilon,
        }
        for way, outcome in outcomes.items()
    }
    if chosen.json:
        print(json.dumps(rows, indent=2))
        return
    print("| selection | noise multiplier | epsilon | accuracy |\n|---|---|---|---|")
    for way, row in rows.items():
        noise = "-" if row["noise_multiplier"] is None else f"{row['noise_multiplier']:.3f}"
        epsilon = "-" if row["epsilon"] is None else f"{row['epsilon']:.2f}"
        spread = "" if row["std"] is None else f" ± {row['std']:.3f}"
        print(f"| `{way}` | {noise} | {epsilon} | {row['accuracy']:.3f}{spread} |")


if __name__ == "__main__":
    main()
