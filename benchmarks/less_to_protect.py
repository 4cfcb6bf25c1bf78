"""Fine-tuning of a small network at one epsilon: all of it, LoRA, or its head alone.

    python benchmarks/less_to_protect.py --json

A network that was trained on public digits 0 to 4 learns all ten on private ones. Once a client is
the unit (clipped updates of a cohort, noise on their sum), once a record (DP-SGD on all private
records). Step sizes are chosen on a public validation part with seed 0; the test part is not looked
at before. Noise of clients comes from NumPy: this measures accuracy and protects nobody.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_dp.accounting import PrivacyBudget, calibrate_noise_multiplier
from fl_dp.clients import DPSGD, train_with_dp_sgd
from fl_dp.datasets import load_dataset
from fl_dp.mechanisms import clip_by_norm
from fl_dp.models import add_low_rank, build_model
from fl_dp.plan import RecordPlan
from fl_dp.training import evaluate, train_locally

ARMS = ("full", "lora both", "lora b", "head")
UNITS = ("client", "record")
DELTA, RANK, BATCH = 1e-4, 4, 100
CLIENTS, ROUNDS, RATE, NORM = 200, 20, 0.25, 0.5
STEPS, RECORD_NORM = 100, 1.0
GRID = {"client": (0.1, 0.5), "record": (0.5, 2.0)}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Features `(n, 1, 8, 8)` and labels `(n,)`."""

    x: NDArray[Any]
    y: NDArray[np.int64]

    def at(self, rows: NDArray[Any]) -> Rows:
        """Return some of them."""
        return Rows(x=self.x[rows], y=self.y[rows])


def parts() -> dict[str, Rows]:
    """Return the public part, its validation part, the private part and the test part."""
    data = load_dataset("digits")
    train = Rows(x=data.features(slice(None)), y=data.labels(slice(None)))
    order = np.random.default_rng(0).permutation(len(train.y))
    public, private = train.at(order[:400]), train.at(order[400:])
    first, validation = public.at(np.arange(250)), public.at(np.arange(250, 400))
    return {
        "public": first.at(np.flatnonzero(first.y < 5)),
        "validation": validation,
        "private": private,
        "test": Rows(x=data.features(slice(None), "test"), y=data.labels(slice(None), "test")),
    }


def pretrained(public: Rows, seed: int) -> nn.Module:
    """Return a network that was trained on the public digits."""
    model = build_model("mlp", input_shape=public.x.shape[1:], num_classes=10, hidden=64, seed=seed)
    train_locally(model, public.x, public.y, learning_rate=0.5, epochs=30, batch_size=32, seed=seed)
    return model


def prepared(model: nn.Module, arm: str, seed: int) -> nn.Module:
    """Return a copy of a network with what an arm leaves alone frozen."""
    model = copy.deepcopy(model)
    if arm.startswith("lora"):
        return add_low_rank(model, rank=RANK, seed=seed, train=arm.split()[1])
    if arm == "head":
        model.requires_grad_(False)
        [*_, last] = model.children()
        last.requires_grad_(True)
    return model


def vector(model: nn.Module) -> NDArray[np.float64]:
    """Return what is trained, flat."""
    trained = [each for each in model.parameters() if each.requires_grad]
    return nn.utils.parameters_to_vector(trained).detach().numpy().astype(np.float64)


def write(model: nn.Module, flat: NDArray[np.float64]) -> None:
    """Write what is trained."""
    trained = [each for each in model.parameters() if each.requires_grad]
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.from_numpy(flat.astype(np.float32)), trained)


def by_clients(model: nn.Module, private: Rows, noise: float, rate: float, seed: int) -> None:
    """Train a network in place by private federated averaging."""
    draws = np.random.default_rng([seed, 1])
    dealt = np.array_split(draws.permutation(len(private.y)), CLIENTS)
    data = [private.at(rows) for rows in dealt]
    for _ in range(ROUNDS):
        origin = vector(model)
        total = noise * NORM * draws.standard_normal(len(origin))
        for each in np.flatnonzero(draws.random(CLIENTS) < RATE):
            write(model, origin)
            x, y = data[each].x, data[each].y
            train_locally(model, x, y, learning_rate=rate, epochs=3, batch_size=BATCH, seed=seed)
            total += clip_by_norm(vector(model) - origin, NORM)
        write(model, origin + total / (RATE * CLIENTS))


def by_records(model: nn.Module, private: Rows, plan: RecordPlan, rate: float) -> None:
    """Train a network in place by DP-SGD on all private records."""
    data = TensorDataset(torch.from_numpy(private.x), torch.from_numpy(private.y))
    how = DPSGD(
        optimizer=lambda each: torch.optim.SGD(each, lr=rate),
        expected_batch_size=plan.sampling_rate * len(private.y),
        grad_sample_mode="ghost",
    )
    train_with_dp_sgd(model, DataLoader(data), plan=plan, how=how)


def main() -> None:
    """Print a line an arm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    part, began = parts(), time.perf_counter()
    noise = calibrate_noise_multiplier(asked.epsilon, DELTA, sampling_rate=RATE, rounds=ROUNDS)
    plan = RecordPlan.calibrate(
        PrivacyBudget(epsilon=asked.epsilon, delta=DELTA),
        sampling_rate=BATCH / len(part["private"].y),
        steps=STEPS,
        participations=1,
        clipping_norm=RECORD_NORM,
    )

    def accuracy(start: nn.Module, unit: str, arm: str, rate: float, seed: int, on: str) -> float:
        model = prepared(start, arm, seed)
        if unit == "client":
            by_clients(model, part["private"], noise, rate, seed)
        else:
            by_records(model, part["private"], plan, rate)
        return evaluate(model, part[on].x, part[on].y)[1]

    starts = [pretrained(part["public"], seed) for seed in range(asked.seeds)]
    before = [evaluate(each, part["test"].x, part["test"].y)[1] for each in starts]
    lines: list[dict[str, Any]] = [{"arm": "before", "accuracy": before}]
    for unit in UNITS:
        for arm in ARMS:
            tried = {
                rate: accuracy(starts[0], unit, arm, rate, 0, "validation") for rate in GRID[unit]
            }
            rate = max(tried, key=tried.__getitem__)
            found = [
                accuracy(each, unit, arm, rate, seed + 1, "test")
                for seed, each in enumerate(starts)
            ]
            lines.append(
                {
                    "unit": unit,
                    "arm": arm,
                    "trained": len(vector(prepared(starts[0], arm, 0))),
                    "rate": rate,
                    "accuracy": found,
                    "mean": statistics.mean(found),
                }
            )
            if not asked.json:
                print(lines[-1], flush=True)
    result = {
        "epsilon": asked.epsilon,
        "delta": DELTA,
        "noise_multipliers": {"client": noise, "record": plan.noise_multiplier},
        "private_records": len(part["private"].y),
        "seconds": time.perf_counter() - began,
        "arms": lines,
    }
    print(json.dumps(result) if asked.json else result)


if __name__ == "__main__":
    main()
