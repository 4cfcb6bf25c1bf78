"""Fewer bytes at equal budget: accuracy against a message's bytes, as a table.

    python benchmarks/compression.py --runs runs/compression

trains each encoding through `fl-dp run` (about a minute a run), or reads its run. Nothing is tuned
to an encoding. The comparison is of accuracy and bytes, not of time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

SHARED = ("rounds=50", "privacy.epsilon=8")
LOCAL = (
    "privacy=local",
    "selection=public",
    "selection.participation_cap=13",
    "server_optimizer.learning_rate=0.3",  # as measured
)
MODES = {
    "central": (),
    "local, gaussian": LOCAL,
    "local, exponential": (*LOCAL, "privacy.scheme=exponential"),
}
ENCODINGS = {
    "none": (),
    "float16": ("compression.up=float16",),
    "float16, down too": ("compression.up=float16", "compression.down=float16"),
    **{
        f"quantize, {bits} bit{'s' if bits > 1 else ''}": (
            "compression.up=quantize",
            f"compression.bits={bits}",
        )
        for bits in (8, 4, 2, 1)
    },
    "top_k, 10 %": ("compression.up=top_k",),
}
# The exponential scheme differs only where the encoding decides how many points it draws from.
OF_EXPONENTIAL = ("none", "quantize, 4 bits", "quantize, 2 bits", "quantize, 1 bit")


def outcome_of(mode: str, encoding: str, runs: Path, seeds: int) -> dict[str, Any]:
    """Train what is missing and read the results."""
    accuracies, line = [], {}
    for seed in range(seeds):
        name = f"{mode}-{encoding}-{seed}".replace(" ", "").replace(",", "-").replace("%", "")
        folder = runs / name
        if not (folder / "privacy.json").is_file():
            print(f"training {mode}, {encoding}, seed {seed}", file=sys.stderr)
            subprocess.run(
                [
                    str(Path(sys.executable).parent / "fl-dp"),
                    "run",
                    *SHARED,
                    *MODES[mode],
                    *ENCODINGS[encoding],
                    f"seed={seed}",
                    f"output_dir={runs.resolve()}",
                    f"run_name={name}",
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        line = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        accuracies.append(line["test_accuracy"])
    return {
        "bytes_down": line["bytes_down"],
        "bytes_up": line["bytes_up"],
        "epsilon": line["epsilon"],
        "accuracies": accuracies,
    }


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/compression"), help="their folder")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each encoding")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args()
    rows = {
        encoding: {
            mode: outcome_of(mode, encoding, chosen.runs, chosen.seeds)
            for mode in MODES
            if mode != "local, exponential" or encoding in OF_EXPONENTIAL
        }
        for encoding in ENCODINGS
    }
    if chosen.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"| update | bytes down | bytes up | {' | '.join(MODES)} |")
    print(f"|---|---|---|{'---|' * len(MODES)}")
    for encoding, modes in rows.items():
        first = next(iter(modes.values()))
        means = {mode: statistics.fmean(results["accuracies"]) for mode, results in modes.items()}
        cells = " | ".join(f"{means[mode]:.3f}" if mode in means else "-" for mode in MODES)
        print(f"| {encoding} | {first['bytes_down']:,} | {first['bytes_up']:,} | {cells} |")


if __name__ == "__main__":
    main()
