"""Opacus' published MNIST results, by Opacus alone and in federations of one process.

    python benchmarks/opacus_reference.py --row 1.16 --silos 1 10

Opacus' example `mnist.py` trains a small convolutional network by DP-SGD; its README gives three
settings with the accuracy of ten runs each. `opacus` runs them by Opacus alone. `silos-1` is one
`OpacusClient` that holds all 60,000 images: a round is an epoch, and the server hands the model
on. With ten silos each holds 6,000 images. It takes a tenth as many steps an epoch, of the same
expected batch, with noise of its own; the server averages the models of an epoch.

With Opacus' noise our accountant finds less epsilon than the README of that time; `--calibrate`
takes the noise that spends the README's. A run takes about ten seconds an epoch on a processor.
MNIST must be there: `fl-dp data mnist`.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp.strategy import FedAvg
from opacus import PrivacyEngine
from opacus.accountants import create_accountant
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_dp.accounting import PoissonSampling, calibrate_noise_multiplier
from fl_dp.app.in_process import InProcessGrid
from fl_dp.clients import (
    DPSGD,
    OpacusClient,
    RecordWise,
    exchanged_arrays,
    numpy_client_app,
)
from fl_dp.ledger.node import Account
from fl_dp.model_arrays import set_arrays
from fl_dp.plan import RecordPlan
from fl_dp.strategies import LawSelection, UnprotectedFedAvg
from fl_dp.tasks.datasets import load_dataset
from fl_dp.tasks.training import evaluate


@dataclass(frozen=True)
class Row:
    """One row of Opacus' table: its settings and its accuracy, of ten runs."""

    epochs: int
    learning_rate: float
    noise_multiplier: float
    clipping_norm: float
    published_mean: float
    published_std: float


ROWS = {
    "6.86": Row(45, 0.25, 0.7, 1.5, 0.9709, 0.0017),
    "2.91": Row(60, 0.15, 1.1, 1.0, 0.9678, 0.0021),
    "1.16": Row(15, 0.25, 1.3, 1.5, 0.9463, 0.0034),
}
SAMPLING_RATE, STEPS, BATCH = 0.004, 250, 240


class Network(nn.Module):
    """The network of Opacus' example: two convolutions and two linear layers, 26,010 weights."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 8, stride=2, padding=3),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(n, 10)` of images `(n, 1, 28, 28)`."""
        logits: Tensor = self.layers(images)
        return logits


class Images(TensorDataset):
    """MNIST's training images, handed out batch by batch."""

    record_wise = True

    @classmethod
    def of_rows(cls, rows: slice) -> Images:
        """Some of the images, scaled by the constants of Opacus' example."""
        mnist = load_dataset("mnist")
        return cls(torch.from_numpy(mnist.features(rows)), torch.from_numpy(mnist.labels(rows)))

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, ...]:
        """Return a batch."""
        return tuple(tensor[rows] for tensor in self.tensors)


def run_opacus(row: Row, noise_multiplier: float, seed: int, epochs: int) -> dict[str, float]:
    """Train once by Opacus alone, as its example; return accuracy and what was spent."""
    began = time.perf_counter()
    torch.manual_seed(seed)
    mnist = load_dataset("mnist")
    engine = PrivacyEngine()
    network = Network()
    model, optimizer, loader = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=row.learning_rate),
        data_loader=DataLoader(Images.of_rows(slice(None)), BATCH, collate_fn=lambda batch: batch),
        noise_multiplier=noise_multiplier,
        max_grad_norm=row.clipping_norm,
    )
    criterion: nn.Module = nn.CrossEntropyLoss()
    for epoch in range(1, epochs + 1):
        for images, labels in loader:
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
        _, accuracy = evaluate(
            network, mnist.features(slice(None), "test"), mnist.labels(slice(None), "test")
        )
        print(f"epoch {epoch} of {epochs}: {accuracy:.4f}", flush=True)
    spent = {}
    for name in ("prv", "rdp"):
        accountant = create_accountant(name)
        accountant.history = engine.accountant.history
        spent[f"epsilon_{name}"] = accountant.get_epsilon(1e-5)
    return {
        "accuracy": accuracy,
        "noise_multiplier": noise_multiplier,
        **spent,
        "seconds": time.perf_counter() - began,
    }


def run_row(
    row: Row, noise_multiplier: float, seed: int, epochs: int, silos: int
) -> dict[str, float]:
    """Train once in a federation; return accuracy and what was spent."""
    plan = RecordPlan.from_noise_multiplier(
        noise_multiplier,
        delta=1e-5,
        sampling_rate=SAMPLING_RATE * silos,
        steps=STEPS // silos,
        participations=epochs,
        clipping_norm=row.clipping_norm,
    )
    accuracies: list[float] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:

        def client_fn(context: Context) -> OpacusClient:
            partition = int(context.node_config["partition-id"])
            images = Images.of_rows(slice(partition, None, silos))
            return OpacusClient(
                Network(),
                DataLoader(images, collate_fn=RecordWise(lambda batch: batch)),
                plan=plan,
                ledger=Path(folder) / f"ledger-{partition}.db",
                account=Account(unit="record", source="mnist"),
                dp_sgd=DPSGD(
                    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=row.learning_rate),
                    expected_batch_size=BATCH,
                ),
            )

        torch.manual_seed(seed)
        model = Network()
        mnist = load_dataset("mnist")
        test_x, test_y = mnist.features(slice(None), "test"), mnist.labels(slice(None), "test")

        def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            set_arrays(model, arrays.to_numpy_ndarrays())
            loss, accuracy = evaluate(model, test_x, test_y)
            accuracies.append(accuracy)
            print(f"epoch {server_round} of {epochs}: {accuracy:.4f}", flush=True)
            return MetricRecord({"loss": loss, "accuracy": accuracy})

        nodes = [{"partition-id": partition, "num-partitions": silos} for partition in range(silos)]
        strategy = UnprotectedFedAvg(
            FedAvg(), selection=LawSelection(PoissonSampling(sampling_rate=1.0)), record_plan=plan
        )
        strategy.start(
            InProcessGrid(numpy_client_app(client_fn), nodes),
            exchanged_arrays(model),
            num_rounds=epochs,
            evaluate_fn=measure,
        )
    return {
        "accuracy": accuracies[-1],
        "noise_multiplier": noise_multiplier,
        "epsilon_pld": plan.epsilon(epochs).pld,
        "epsilon_rdp": plan.epsilon(epochs).rdp,
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    """Run one row and print it beside Opacus' own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--row", choices=ROWS, default="2.91", help="by Opacus' epsilon")
    parser.add_argument("--seeds", type=int, default=1, help="runs, with seeds from 0")
    parser.add_argument(
        "--silos", type=int, nargs="*", default=[1], help="federations of so many clients"
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="the noise that spends the row's epsilon"
    )
    parser.add_argument("--epochs", type=int, help="fewer than Opacus', to try it out")
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    row = ROWS[arguments.row]
    epochs = arguments.epochs or row.epochs
    noise = row.noise_multiplier
    if arguments.calibrate:
        noise = calibrate_noise_multiplier(
            float(arguments.row), 1e-5, sampling_rate=SAMPLING_RATE, rounds=STEPS * epochs
        )
    runs: list[dict[str, Any]] = []
    for seed in range(arguments.seeds):
        runs.append({"by": "opacus", **run_opacus(row, noise, seed, epochs)})
        for silos in arguments.silos:
            runs.append({"by": f"silos-{silos}", **run_row(row, noise, seed, epochs, silos)})
    if arguments.json:
        published = {"mean": row.published_mean, "std": row.published_std}
        print(json.dumps({arguments.row: {"runs": runs, "published": published}}, indent=2))
        return
    print(f"Opacus' README: {row.published_mean:.4f} +- {row.published_std} at {arguments.row}")
    for run in runs:
        print(
            ", ".join(f"{key} {value:.4g}" if key != "by" else value for key, value in run.items())
        )


if __name__ == "__main__":
    main()
