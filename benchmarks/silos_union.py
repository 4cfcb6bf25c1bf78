"""Records across silos against DP-SGD on one data set: accuracy at one budget, over three seeds.

    python benchmarks/silos_union.py --json

`fl-dp run privacy=distributed_records` trains ten silos, whose sums nobody sees; DP-SGD in one
process trains on the union of their records, with the same model, steps, sampling rate, clipping
norm, momentum and budget. Runs that are there already are read. Fashion-MNIST has to be there:
`fl-dp data fashion_mnist`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from fl_dp.accounting import PrivacyBudget
from fl_dp.app.compose import compose_settings
from fl_dp.app.private_training import Records
from fl_dp.app.workload import dataset_of, model_of
from fl_dp.clients import DPSGD, RecordWise
from fl_dp.clients.dp_sgd import train_with_dp_sgd
from fl_dp.plan import RecordPlan
from fl_dp.tasks.training import evaluate

SILOS, RECORDS = 10, 60_000
EPSILON, DELTA = 3.0, 1e-5
STEPS, RATE, NORM = 200, 0.03, 1.0
LEARNING_RATE, MOMENTUM = 0.25, 0.9
TASK = ("task=fashion_mnist", "model=mlp")


def across_silos(runs: Path, seed: int) -> dict[str, Any]:
    """Train ten silos through `fl-dp run`, and read what came of it."""
    folder = runs / f"silos-{seed}"
    if not (folder / "privacy.json").is_file():
        subprocess.run(
            [
                sys.executable,
                "-P",
                "-m",
                "fl_dp",
                "run",
                *TASK,
                f"seed={seed}",
                "privacy=distributed_records",
                f"task.num_clients={SILOS}",
                f"rounds={STEPS}",
                f"privacy.epsilon={EPSILON}",
                f"privacy.delta={DELTA}",
                f"selection.sampling_rate={RATE}",
                f"clipping.norm={NORM}",
                "server_optimizer=fedavgm",
                f"server_optimizer.momentum={MOMENTUM}",
                f"server_optimizer.learning_rate={LEARNING_RATE}",
                f"output_dir={runs.resolve()}",
                f"run_name={folder.name}",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    statement = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    return {
        "accuracy": json.loads(lines[-1])["test_accuracy"],
        "noise_multiplier": statement["noise_multipliers"][0],
        "rounds": statement["rounds_committed"],
    }


def on_the_union(runs: Path, seed: int) -> dict[str, Any]:
    """Train on all records by DP-SGD in this process."""
    kept = runs / f"union-{seed}.json"
    if kept.is_file():
        read: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return read
    settings = compose_settings([*TASK, f"seed={seed}"])
    dataset, model = dataset_of(settings), model_of(settings)
    rows = slice(None)
    features, labels = dataset.features(rows), dataset.labels(rows)
    assert len(labels) == RECORDS
    plan = RecordPlan.calibrate(
        PrivacyBudget(epsilon=EPSILON, delta=DELTA),
        sampling_rate=RATE,
        steps=STEPS,
        participations=1,
        clipping_norm=NORM,
    )
    train_with_dp_sgd(
        model,
        DataLoader(
            Records(torch.as_tensor(features), torch.as_tensor(labels)),
            collate_fn=RecordWise(_same),
        ),
        plan=plan,
        how=DPSGD(
            optimizer=lambda each: torch.optim.SGD(each, lr=LEARNING_RATE, momentum=MOMENTUM),
            criterion=nn.CrossEntropyLoss(),
            expected_batch_size=RATE * RECORDS,
            grad_sample_mode="ghost",
            physical_batch_size=256,
        ),
    )
    _, accuracy = evaluate(model, dataset.features(rows, "test"), dataset.labels(rows, "test"))
    found = {"accuracy": accuracy, "noise_multiplier": plan.noise_multiplier}
    kept.write_text(json.dumps(found), encoding="utf-8")
    return found


def _same(batch: Any) -> Any:
    return batch


def main() -> None:
    """Train what is missing, and print both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/silos"), help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    asked = parser.parse_args()
    asked.runs.mkdir(parents=True, exist_ok=True)
    ways = {"on the union": on_the_union, "across silos": across_silos}
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for seed in range(asked.seeds):
        for way, train in ways.items():
            began = time.monotonic()
            found[way].append(train(asked.runs, seed) | {"seed": seed})
            seconds = time.monotonic() - began
            print(f"{way}, seed {seed}: {found[way][-1]}, {seconds:.0f} s", file=sys.stderr)
    means = {way: statistics.fmean(run["accuracy"] for run in runs) for way, runs in found.items()}
    if asked.json:
        print(json.dumps({"runs": found, "mean_accuracy": means}))
        return
    for way, mean in means.items():
        print(f"{way}: accuracy {mean:.4f}, mean of {asked.seeds}")


if __name__ == "__main__":
    main()
