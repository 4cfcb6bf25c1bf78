"""How far a tuned run ends from the best of its grid, at equal epsilon for choice and training.

    python benchmarks/tuning.py --seeds 0 1 2

Trains every candidate of a grid at the whole budget, which no honest statement covers, and then
`fl-dp tune` at the same budget, a tenth of which pays for the vote. Prints accuracies in points,
and the difference for each seed; `--json` prints one document.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GRID = ("client.learning_rate=0.03,0.3,2", "clipping.norm=0.5,2")


def main() -> None:
    """Train, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--by", choices=("vote", "stopping", "public"), default="vote")
    parser.add_argument("--trial-rounds", type=int, help="of tune.rounds (default: the app's)")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [_of_seed(asked, seed, Path(folder)) for seed in asked.seeds]
    if asked.json:
        print(json.dumps({"grid": GRID, "seeds": results}, indent=2))
        return
    for result in results:
        print(
            f"seed {result['seed']}: best of grid {result['best']:.1f} ({result['best_is']}), "
            f"tuned {result['tuned']:.1f} ({result['chosen']}), behind by {result['behind']:.1f} "
            "points"
        )


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Keeps the docstring's lines."""


def _of_seed(asked: argparse.Namespace, seed: int, folder: Path) -> dict[str, Any]:
    common = [
        "task=digits",
        f"task.num_clients={asked.clients}",
        f"privacy.epsilon={asked.epsilon}",
        f"rounds={asked.rounds}",
        f"seed={seed}",
        f"output_dir={folder}",
        "report=none",
        "simulation.engine=in_process",
    ]
    _call("run", "-m", *GRID, *common, f"run_name=grid-{seed}", "sweep.side_by_side=1")
    grid = json.loads((folder / f"grid-{seed}" / "summary.json").read_text(encoding="utf-8"))
    best = max(grid["runs"], key=lambda run: run["test_accuracy"])
    trial = [] if asked.trial_rounds is None else [f"tune.rounds={asked.trial_rounds}"]
    _call("tune", *GRID, *common, *trial, f"tune.by={asked.by}", f"run_name=tuned-{seed}")
    lines = (folder / f"tuned-{seed}" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    statement = json.loads((folder / f"tuned-{seed}" / "privacy.json").read_text(encoding="utf-8"))
    tuned = json.loads(lines[-1])["test_accuracy"]
    return {
        "seed": seed,
        "grid": {run["variant"]: 100.0 * run["test_accuracy"] for run in grid["runs"]},
        "best": 100.0 * best["test_accuracy"],
        "best_is": best["variant"],
        "tuned": 100.0 * tuned,
        "chosen": statement["hyper_parameters"],
        "epsilon": min(statement["epsilon"].values()),
        "behind": 100.0 * (best["test_accuracy"] - tuned),
    }


def _call(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "fl_dp", *words], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
