"""Drift correction on heterogeneous clients under one charge: FedProx, or less training.

    python benchmarks/drift_correction.py --json

A thousand clients of Fashion-MNIST, Dirichlet 0.1 over labels, a tenth of them drawn per round,
softmax regression on images of 14x14, clipped updates and one noise on their sum. Each arm changes
what a client does, and nothing that is released: `prox` pulls towards the round's model. Nothing
was chosen: one clipping norm for all.
Noise comes from NumPy: this measures accuracy and protects nobody.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fl_dp.accounting import PoissonSampling, PrivacyBudget
from fl_dp.mechanisms import FixedClipping
from fl_dp.plan import CentralPlan
from fl_dp.tasks.datasets import Dataset, load_dataset
from fl_dp.tasks.datasets.partitions import partition

CLIENTS, ROUNDS, RATE, DELTA, ALPHA = 1000, 20, 0.1, 1e-4, 0.1
MOST, PIXELS = 60, 196  # images of a client, so that padding stays small; their pixels
SHORT, LONG = 4, 20
LEARNING_RATE = 0.1
NORM, SEEDS = 0.5, (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What a client does in a round.

    Attributes:
        steps: Local steps, each on all of a client's images.
        proximal: Weight of the squared distance to the round's model.
    """

    name: str
    steps: int = LONG
    proximal: float = 0.0


ARMS = (
    Arm(name="4 steps", steps=SHORT),
    Arm(name="20 steps"),
    Arm(name="20 steps, prox 0.1", proximal=0.1),
    Arm(name="20 steps, prox 1", proximal=1.0),
)


class Federation:
    """Clients' images, padded to the largest client's number."""

    def __init__(self, data: Dataset, seed: int) -> None:
        """Deal the images out."""
        parts = partition(
            data.train_y, num_clients=CLIENTS, kind="dirichlet", alpha=ALPHA, seed=seed
        )
        self.x = torch.zeros(CLIENTS, MOST, PIXELS)
        self.y = torch.zeros(CLIENTS, MOST, 10)
        self.weight = torch.zeros(CLIENTS, MOST, 1)
        rng = np.random.default_rng(seed)
        for client, every in enumerate(parts):
            rows = rng.permutation(every)[:MOST]
            self.x[client, : len(rows)] = halved(data.features(rows))
            self.y[client, torch.arange(len(rows)), torch.from_numpy(data.labels(rows))] = 1.0
            self.weight[client, : len(rows)] = 1.0 / max(1, len(rows))

    def gradients(self, clients: Tensor, models: Tensor) -> Tensor:
        """Each client's gradient at its model, `(k, 197, 10)`, the last row the bias."""
        x = self.x[clients]
        wrong = (x @ models[:, :PIXELS] + models[:, PIXELS:]).softmax(2) - self.y[clients]
        wrong = wrong * self.weight[clients]
        return torch.cat([x.transpose(1, 2) @ wrong, wrong.sum(1, keepdim=True)], dim=1)


def halved(images: NDArray[Any]) -> Tensor:
    """Images of half the sides, `(n, 196)`."""
    return functional.avg_pool2d(torch.from_numpy(images), 2).flatten(1)


def trained(federation: Federation, arm: Arm, norm: float, noise: float, seed: int) -> Tensor:
    """The model after all rounds, `(197, 10)`.

    `norm` is the L2 bound on an update, infinite for none; `noise` the multiplier on the sum, 0
    for none. `seed` is that of coins and noise.
    """
    rng = np.random.default_rng(seed)
    model = torch.zeros(PIXELS + 1, 10)
    for _ in range(ROUNDS):
        drawn = torch.from_numpy(np.flatnonzero(rng.random(CLIENTS) < RATE))
        models = model.expand(len(drawn), -1, -1).clone()
        for _ in range(arm.steps):
            step = federation.gradients(drawn, models) + arm.proximal * (models - model)
            models -= LEARNING_RATE * step
        updates = models - model
        lengths = updates.flatten(1).norm(dim=1)
        factors = (norm / lengths.clamp(min=1e-12)).clamp(max=1.0)
        total = (updates * factors[:, None, None]).sum(0)
        if noise:
            drawn_noise = rng.normal(0.0, noise * norm, total.shape)
            total += torch.from_numpy(drawn_noise.astype(np.float32))
        model = model + total / (RATE * CLIENTS)
    return model


def accuracy(data: Dataset, model: Tensor) -> float:
    """Share of the test part that is right."""
    x = halved(data.features(slice(None), "test"))
    right = (x @ model[:PIXELS] + model[PIXELS]).argmax(1).numpy() == data.labels(
        slice(None), "test"
    )
    return float(right.mean())


def noise_for(epsilon: float) -> float:
    """The noise multiplier of a budget; 0 for infinity."""
    if epsilon == float("inf"):
        return 0.0
    plan = CentralPlan(
        budget=PrivacyBudget(epsilon=epsilon, delta=DELTA),
        rounds=ROUNDS,
        num_clients=CLIENTS,
        sampling=PoissonSampling(sampling_rate=RATE),
        clipping=FixedClipping(norm=1.0),
        contribution_check=False,
    )
    return plan.calibrated().noise_multiplier


def main() -> None:
    """Train each arm with each seed, and report the test part."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--json", action="store_true", help="print one JSON document")
    asked.add_argument("--epsilon", type=float, nargs="+", default=[float("inf"), 8.0])
    given = asked.parse_args()
    data = load_dataset("fashion_mnist")
    noises = {epsilon: noise_for(epsilon) for epsilon in given.epsilon}
    accuracies: dict[tuple[float, str], list[float]] = {}
    for seed in SEEDS:
        federation = Federation(data, seed)
        for epsilon, noise in noises.items():
            for arm in ARMS:
                norm = NORM if noise else float("inf")
                model = trained(federation, arm, norm, noise, seed)
                accuracies.setdefault((epsilon, arm.name), []).append(accuracy(data, model))
    rows = [
        {
            "epsilon": None if epsilon == float("inf") else epsilon,
            "arm": arm,
            "accuracy": statistics.fmean(values),
            "deviation": statistics.stdev(values),
        }
        for (epsilon, arm), values in accuracies.items()
    ]
    if given.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    for row in rows:
        print(f"{row['epsilon']} {row['arm']}: {row['accuracy']:.3f} +- {row['deviation']:.3f}")


if __name__ == "__main__":
    main()
