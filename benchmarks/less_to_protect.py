"""Fine-tuning of a small network at one epsilon: all of it, LoRA, or its head alone.

    python benchmarks/less_to_protect.py --json

A network trained on public digits 0 to 4 learns all ten on private ones. Once a client is the unit
(clipped updates of a cohort, noise on their sum), once a record (DP-SGD on all private records).
Step sizes are chosen on a public validation part with seed 0; the test part is not looked at
before. Clients' noise comes from NumPy: this measures accuracy and protects nobody.

Then clients differ (Dirichlet over labels), each with held-out rows of its own: one model for all
against each client's own head. Both step sizes are shown there, so nothing was chosen.
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
from fl_dp.clients import DPSGD
from fl_dp.clients.per_record.dp_sgd import train_with_dp_sgd
from fl_dp.mechanisms import clip_by_norm
from fl_dp.plan import RecordPlan
from fl_dp.tasks.datasets import load_dataset
from fl_dp.tasks.datasets.partitions import partition
from fl_dp.tasks.models import add_low_rank, build_model
from fl_dp.tasks.training import evaluate, train_locally

ARMS = ("full", "lora both", "lora b", "head")
UNITS = ("client", "record")
DELTA, RANK, BATCH = 1e-4, 4, 100
CLIENTS, ROUNDS, RATE, NORM = 200, 20, 0.25, 0.5
STEPS, RECORD_NORM = 100, 1.0
GRID = {"client": (0.1, 0.5), "record": (0.5, 2.0)}
OWN_CLIENTS, ALPHA, HELD_OUT, OWN_EPOCHS = 100, 0.3, 0.3, 15


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Features `(n, 1, 8, 8)` and labels `(n,)`."""

    x: NDArray[Any]
    y: NDArray[np.int64]

    def at(self, rows: NDArray[Any]) -> Rows:
        """Return some of them."""
        return Rows(x=self.x[rows], y=self.y[rows])


def parts() -> dict[str, Rows]:
    """The public part, its validation part, the private part and the test part."""
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
    """A network trained on the public digits."""
    model = build_model("mlp", input_shape=public.x.shape[1:], num_classes=10, hidden=64, seed=seed)
    train_locally(model, public.x, public.y, learning_rate=0.5, epochs=30, batch_size=32, seed=seed)
    return model


def prepared(model: nn.Module, arm: str, seed: int) -> nn.Module:
    """Copy a network, and freeze what an arm does not train."""
    model = copy.deepcopy(model)
    if arm.startswith("lora"):
        return add_low_rank(model, rank=RANK, seed=seed, train=arm.split()[1])
    if arm == "head":
        model.requires_grad_(False)
        [*_, last] = model.children()
        last.requires_grad_(True)
    return model


def vector(model: nn.Module) -> NDArray[np.float64]:
    """What is trained, flat."""
    return flat([parameter for parameter in model.parameters() if parameter.requires_grad])


def write(model: nn.Module, values: NDArray[np.float64]) -> None:
    """Write what is trained."""
    put(values, [parameter for parameter in model.parameters() if parameter.requires_grad])


def by_clients(model: nn.Module, private: Rows, noise: float, rate: float, seed: int) -> None:
    """Train a network in place by private federated averaging."""
    draws = np.random.default_rng([seed, 1])
    dealt = np.array_split(draws.permutation(len(private.y)), CLIENTS)
    data = [private.at(rows) for rows in dealt]
    for _ in range(ROUNDS):
        origin = vector(model)
        total = noise * NORM * draws.standard_normal(len(origin))
        for client in np.flatnonzero(draws.random(CLIENTS) < RATE):
            write(model, origin)
            x, y = data[client].x, data[client].y
            train_locally(model, x, y, learning_rate=rate, epochs=3, batch_size=BATCH, seed=seed)
            total += clip_by_norm(vector(model) - origin, NORM)
        write(model, origin + total / (RATE * CLIENTS))


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A client's own rows, trained on and held out."""

    train: Rows
    held_out: Rows


def owners(rows: Rows, seed: int) -> list[Owner]:
    """Clients that differ in their labels; with fewer than two rows none is held out."""
    draws = np.random.default_rng([seed, 2])
    dealt = partition(rows.y, num_clients=OWN_CLIENTS, kind="dirichlet", seed=seed, alpha=ALPHA)
    clients = []
    for own in dealt:
        mixed = draws.permutation(own)
        out = max(1, round(HELD_OUT * len(mixed))) if len(mixed) > 1 else 0
        clients.append(Owner(train=rows.at(mixed[out:]), held_out=rows.at(mixed[:out])))
    return clients


def split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters of the body and of the head."""
    [*_, last] = model.children()
    head = list(last.parameters())
    return [
        parameter for parameter in model.parameters() if all(parameter is not own for own in head)
    ], head


def flat(parameters: list[nn.Parameter]) -> NDArray[np.float64]:
    """Return parameters as one vector."""
    return nn.utils.parameters_to_vector(parameters).detach().numpy().astype(np.float64)


def put(values: NDArray[np.float64], parameters: list[nn.Parameter]) -> None:
    """Write one vector into parameters."""
    with torch.no_grad():
        nn.utils.vector_to_parameters(torch.from_numpy(values.astype(np.float32)), parameters)


def of_their_own(
    model: nn.Module, clients: list[Owner], noise: float, rate: float, seed: int, *, personal: bool
) -> list[NDArray[np.float64]]:
    """Train in place what is shared, all or the body; return each client's head.

    As `PersonalClient` does: what stays is trained with the rest, and takes part in no clipping.
    """
    draws = np.random.default_rng([seed, 3])
    body, head = split(model)
    shared = body if personal else [*body, *head]
    heads = [flat(head) for _ in clients]
    for _ in range(ROUNDS):
        origin = flat(shared)
        total = noise * NORM * draws.standard_normal(len(origin))
        for index in np.flatnonzero(draws.random(len(clients)) < RATE):
            put(origin, shared)
            if personal:
                put(heads[index], head)
            own = clients[index].train
            train_locally(
                model, own.x, own.y, learning_rate=rate, epochs=3, batch_size=BATCH, seed=seed
            )
            heads[index] = flat(head)
            total += clip_by_norm(flat(shared) - origin, NORM)
        put(origin + total / (RATE * len(clients)), shared)
    return heads if personal else [flat(head) for _ in clients]


def own_accuracy(
    model: nn.Module, clients: list[Owner], heads: list[NDArray[np.float64]], fit: str, rate: float
) -> float:
    """Share of all held-out rows that their own client's model gets right.

    The model is the shared part, or each client's start by itself; each client has a head. Before
    it is measured, each client fits `nothing`, its `head` or `all` to its rows, at step size
    `rate`.
    """
    right = total = 0.0
    for client, own_head in zip(clients, heads, strict=True):
        mine = copy.deepcopy(model)
        body, head = split(mine)
        put(own_head, head)
        if fit != "nothing":
            for parameter in body:
                parameter.requires_grad_(fit == "all")
            x, y = client.train.x, client.train.y
            train_locally(
                mine, x, y, learning_rate=rate, epochs=OWN_EPOCHS, batch_size=BATCH, seed=0
            )
        count = len(client.held_out.y)
        if count:
            right += count * evaluate(mine, client.held_out.x, client.held_out.y)[1]
            total += count
    return right / total


def personal_arms(
    starts: list[nn.Module], rows: Rows, noise: float, rate: float
) -> list[dict[str, Any]]:
    """A line per arm at one step size, with the same clients, seeds and cohorts."""
    accuracies: dict[str, list[float]] = {}
    for seed, start in enumerate(starts):
        clients = owners(rows, seed + 1)
        first = [flat(split(start)[1]) for _ in clients]
        for fit in ("nothing", "head", "all"):
            accuracies.setdefault(f"alone, fits {fit}", []).append(
                own_accuracy(start, clients, first, fit, rate)
            )
        for arm in ("everything", "own head"):
            model = copy.deepcopy(start)
            heads = of_their_own(model, clients, noise, rate, seed + 1, personal=arm == "own head")
            for fit in ("nothing", "head"):
                accuracies.setdefault(f"{arm}, then fits {fit}", []).append(
                    own_accuracy(model, clients, heads, fit, rate)
                )
    return [
        {"arm": arm, "rate": rate, "accuracy": values, "mean": statistics.mean(values)}
        for arm, values in accuracies.items()
    ]


def by_records(model: nn.Module, private: Rows, plan: RecordPlan, rate: float) -> None:
    """Train a network in place by DP-SGD on all private records."""
    data = TensorDataset(torch.from_numpy(private.x), torch.from_numpy(private.y))
    how = DPSGD(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
        expected_batch_size=plan.sampling_rate * len(private.y),
        grad_sample_mode="ghost",
        example=(torch.zeros_like(data.tensors[0][:4]), torch.arange(4)),
    )
    train_with_dp_sgd(model, DataLoader(data), plan=plan, how=how)


def main() -> None:
    """Print a line per arm."""
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
    before = [evaluate(start, part["test"].x, part["test"].y)[1] for start in starts]
    lines: list[dict[str, Any]] = [{"arm": "before", "accuracy": before}]
    for unit in UNITS:
        for arm in ARMS:
            tried = {
                rate: accuracy(starts[0], unit, arm, rate, 0, "validation") for rate in GRID[unit]
            }
            rate = max(tried, key=tried.__getitem__)
            accuracies = [
                accuracy(start, unit, arm, rate, seed + 1, "test")
                for seed, start in enumerate(starts)
            ]
            lines.append(
                {
                    "unit": unit,
                    "arm": arm,
                    "trained": len(vector(prepared(starts[0], arm, 0))),
                    "rate": rate,
                    "accuracy": accuracies,
                    "mean": statistics.mean(accuracies),
                }
            )
            if not asked.json:
                print(lines[-1], flush=True)
    both = Rows(
        x=np.concatenate([part["private"].x, part["test"].x]),
        y=np.concatenate([part["private"].y, part["test"].y]),
    )
    personal = [
        line for rate in GRID["client"] for line in personal_arms(starts, both, noise, rate)
    ]
    if not asked.json:
        print(*personal, sep="\n", flush=True)
    result = {
        "epsilon": asked.epsilon,
        "delta": DELTA,
        "noise_multipliers": {"client": noise, "record": plan.noise_multiplier},
        "private_records": len(part["private"].y),
        "seconds": time.perf_counter() - began,
        "arms": lines,
        "personal": personal,
    }
    print(json.dumps(result) if asked.json else result)


if __name__ == "__main__":
    main()
