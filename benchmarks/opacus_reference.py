"""Opacus' published MNIST results, in a federation of one client through Flower's engine.

    python benchmarks/opacus_reference.py --row 2.91

Opacus' example `mnist.py` trains a small convolutional network by DP-SGD; its README gives three
settings with the accuracy of ten runs each. Here one `OpacusClient` holds all 60,000 images, a
round is an epoch, and the server hands the model on. With Opacus' noise our accountant finds less
epsilon than the README of that time; `--calibrate` takes the noise that spends the README's. A row
takes ten minutes or more on a processor. MNIST has to be there: `fl-dp data mnist`.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_dp.accounting import calibrate_noise_multiplier
from fl_dp.clients import (
    DPSGD,
    OpacusClient,
    RecordWise,
    exchanged_arrays,
    numpy_client_app,
)
from fl_dp.ledger.node import Account
from fl_dp.plan import RecordPlan
from fl_dp.strategies import PoissonSelection, UnprotectedFedAvg
from fl_dp.tasks.datasets import load_dataset
from fl_dp.tasks.models import set_arrays
from fl_dp.tasks.training import evaluate


@dataclass(frozen=True)
class Row:
    """One row of Opacus' table: its settings and the accuracy that it reports, of ten runs."""

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
    """MNIST's training images, handed out a batch at a time."""

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, ...]:
        """Return a batch."""
        return tuple(each[rows] for each in self.tensors)


def run_row(row: Row, noise_multiplier: float, seed: int, epochs: int) -> dict[str, float]:
    """Train once; return accuracy and what was spent."""
    plan = RecordPlan.from_noise_multiplier(
        noise_multiplier,
        delta=1e-5,
        sampling_rate=SAMPLING_RATE,
        steps=STEPS,
        participations=epochs,
        clipping_norm=row.clipping_norm,
    )
    accuracies: list[float] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        ledger = str(Path(folder) / "ledger.db")

        def client_fn(context: Context) -> OpacusClient:
            mnist = load_dataset("mnist")
            every = slice(None)
            images = Images(
                torch.from_numpy(mnist.features(every)), torch.from_numpy(mnist.labels(every))
            )
            return OpacusClient(
                Network(),
                DataLoader(images, collate_fn=RecordWise(lambda batch: batch)),
                plan=plan,
                ledger=ledger,
                account=Account(unit="record", source="mnist"),
                dp_sgd=DPSGD(
                    optimizer=lambda each: torch.optim.SGD(each, lr=row.learning_rate),
                    expected_batch_size=BATCH,
                ),
            )

        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            torch.manual_seed(seed)
            model = Network()
            mnist = load_dataset("mnist")
            test_x = mnist.features(slice(None), "test")
            test_y = mnist.labels(slice(None), "test")

            def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord:
                set_arrays(model, arrays.to_numpy_ndarrays())
                loss, accuracy = evaluate(model, test_x, test_y)
                accuracies.append(accuracy)
                print(f"epoch {server_round} of {epochs}: {accuracy:.4f}", flush=True)
                return MetricRecord({"loss": loss, "accuracy": accuracy})

            strategy = UnprotectedFedAvg(
                FedAvg(), selection=PoissonSelection(1.0), record_plan=plan
            )
            strategy.start(
                grid,
                exchanged_arrays(model),
                num_rounds=epochs,
                evaluate_fn=measure,
            )

        run_simulation(
            server_app=server,
            client_app=numpy_client_app(client_fn),
            num_supernodes=1,
            backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 1}},
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
    runs = [run_row(row, noise, seed, epochs) for seed in range(arguments.seeds)]
    if arguments.json:
        published = {"mean": row.published_mean, "std": row.published_std}
        print(json.dumps({arguments.row: {"runs": runs, "published": published}}, indent=2))
        return
    for run in runs:
        print(
            f"noise {run['noise_multiplier']:.3f}: accuracy {run['accuracy']:.4f} at epsilon "
            f"{run['epsilon_pld']:.2f} (Renyi {run['epsilon_rdp']:.2f}); Opacus: "
            f"{row.published_mean:.4f} +- {row.published_std} at {arguments.row}; "
            f"{run['seconds']:.0f} s"
        )


if __name__ == "__main__":
    main()
