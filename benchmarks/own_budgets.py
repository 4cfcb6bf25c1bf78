"""Budgets of one's own beside one budget for all: accuracy, also on each group's own data.

    python benchmarks/own_budgets.py --json

A thousand clients of Fashion-MNIST (scattering features) and of Adult, softmax regression. Half of
them allow epsilon 1, three in ten 3 and two in ten 8. Rows are dealt evenly or skewed. Skewed,
four rows in five go to the group that they are typical of, by label (Fashion-MNIST: classes 0-4,
5-7, 8 and 9) or by years of education (Adult: the lower half, the next three tenths, the rest). A
group's accuracy is that of its mixture of test rows.

Each row's server learning rate and sampling rate are chosen on MNIST, dealt evenly. Adult has no
such neighbour, and takes one setting for all rows.
Rates and noise multipliers are the plan's; coins and noise come from NumPy: this measures accuracy
and protects nobody.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting import OwnRatesSampling, PoissonSampling, PrivacyBudget
from fl_dp.app.compose import compose_settings
from fl_dp.app.workload import dataset_of
from fl_dp.mechanisms import FixedClipping
from fl_dp.option_errors import OptionError
from fl_dp.plan import CentralPlan, GroupedPlan

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

BUDGETS, SHARES, CLIENTS, DELTA = (1.0, 3.0, 8.0), (0.5, 0.3, 0.2), 1000, 5e-4
OWN_ROWS, MOMENTUM, SEEDS = 0.8, 0.9, (0, 1, 2)
LEARNING_RATES, RATES = (1.25, 2.5, 5.0, 10.0), (0.2, 0.5)  # that are tried on MNIST
EDUCATION = 11  # column of Adult


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Who trains, and at which epsilon.

    Attributes:
        epsilon: Of all that train; None: each group has its own.
        groups: Those that train.
    """

    name: str
    epsilon: float | None = None
    groups: tuple[int, ...] = (0, 1, 2)


ARMS = (
    Arm(name="each at its own epsilon"),
    Arm(name="everybody at 1", epsilon=1.0),
    Arm(name="those that allow 3 or more, at 3", epsilon=3.0, groups=(1, 2)),
    Arm(name="those that allow 8", epsilon=8.0, groups=(2,)),
    Arm(name="everybody at 8, which most do not allow", epsilon=8.0),
)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Clients' steps and the server's rounds.

    Attributes:
        steps: Local steps, each on all of a client's rows, at learning rate 1.
        norm: L2 bound on an update.
        rows: Rows of a client.
        chosen_on: Data by which rates are chosen; None: they are `rates`.
        rates: Server learning rate and sampling rate where nothing is chosen.
    """

    rounds: int
    steps: int
    norm: float
    rows: int
    chosen_on: str | None = None
    rates: tuple[float, float] = (0.3, 0.2)


TRAININGS = {
    "fashion_mnist": Training(rounds=60, steps=1, norm=0.1, rows=50, chosen_on="mnist"),
    "adult": Training(rounds=40, steps=5, norm=0.5, rows=32),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Data:
    """Rows with a one for the constant, labels, and the group that each row is typical of."""

    x: Floats
    y: Rows
    kind: Rows
    test_x: Floats
    test_y: Rows
    test_kind: Rows


@cache
def data_of(task: str) -> Data:
    """A task's rows."""
    scattering = [
        "features=scattering",
        "features.public=10000",
        "features.project=200",
        "features.shrink=100",
    ]
    dataset = dataset_of(
        compose_settings([f"task={task}", *(scattering if task != "adult" else [])])
    )

    def part(name: str) -> tuple[Floats, Rows]:
        features = np.asarray(dataset.features(slice(None), name), dtype=np.float32)
        features = features.reshape(len(features), -1)
        ones = np.ones((len(features), 1), dtype=np.float32)
        return np.hstack([features, ones]), np.asarray(dataset.labels(slice(None), name))

    (x, y), (test_x, test_y) = part("train"), part("test")
    score, test_score, cuts = y.astype(float), test_y.astype(float), np.array([5.0, 8.0])
    if task == "adult":
        # Ties, of which there are many, are broken at random.
        rng = np.random.default_rng(0)
        score = x[:, EDUCATION] + rng.uniform(0, 1e-3, len(x))
        test_score = test_x[:, EDUCATION] + rng.uniform(0, 1e-3, len(test_x))
        cuts = np.quantile(score, np.cumsum(SHARES)[:-1])
    return Data(
        x=x,
        y=y,
        kind=np.searchsorted(cuts, score, side="right"),
        test_x=test_x,
        test_y=test_y,
        test_kind=np.searchsorted(cuts, test_score, side="right"),
    )


def dealt(data: Data, size: int, *, skewed: bool, seed: int) -> tuple[Rows, Rows]:
    """Each client's rows, `(clients, size)`, and its group."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(SHARES)), [round(share * CLIENTS) for share in SHARES])
    order = rng.permutation(len(data.y))
    if not skewed:
        return order[: CLIENTS * size].reshape(CLIENTS, size), group
    own = round(OWN_ROWS * size)
    rows = np.empty((CLIENTS, size), dtype=np.int64)
    used = np.zeros(len(data.y), dtype=bool)
    for number in range(len(SHARES)):
        members = group == number
        typical = order[data.kind[order] == number][: members.sum() * own]
        rows[members, :own] = typical.reshape(members.sum(), own)
        used[typical] = True
    rest = order[~used[order]][: CLIENTS * (size - own)]
    rows[:, own:] = rest.reshape(CLIENTS, size - own)
    return rows, group


@cache
def plan_of(arm: Arm, rounds: int, rate: float) -> CentralPlan | GroupedPlan:
    """A row's plan, at clipping norm 1."""
    clients = sum(round(SHARES[group] * CLIENTS) for group in arm.groups)
    if arm.epsilon is not None:
        return CentralPlan(
            budget=PrivacyBudget(epsilon=arm.epsilon, delta=DELTA),
            rounds=rounds,
            num_clients=clients,
            sampling=PoissonSampling(sampling_rate=rate),
            clipping=FixedClipping(norm=1.0),
        ).calibrated()
    return GroupedPlan(
        budget=PrivacyBudget(epsilon=BUDGETS[-1], delta=DELTA),
        rounds=rounds,
        num_clients=clients,
        sampling=OwnRatesSampling.at(rate, budgets=BUDGETS, shares=SHARES),
        clipping=FixedClipping(norm=1.0),
    ).calibrated()


def trained(
    data: Data, training: Training, arm: Arm, rates: tuple[float, float], seed: int, skewed: bool
) -> Floats:
    """The model after all rounds."""
    learning_rate, rate = rates
    plan = plan_of(arm, training.rounds, rate)
    law = plan.sampling
    of_group = law.rates if isinstance(law, OwnRatesSampling) else (rate,) * len(SHARES)
    rows, group = dealt(data, training.rows, skewed=skewed, seed=seed)
    coin = np.where(np.isin(group, arm.groups), np.array(of_group)[group], 0.0)
    noise = training.norm * plan.bundle(plan.noise_multiplier).updates.noise_multiplier
    classes = int(data.y.max()) + 1
    rng = np.random.default_rng(1_000 + seed)
    model = np.zeros((data.x.shape[1], classes), dtype=np.float32)
    step = np.zeros_like(model)
    hot = np.eye(classes, dtype=np.float32)
    for _ in range(training.rounds):
        drawn = np.flatnonzero(rng.random(CLIENTS) < coin)
        x, y = data.x[rows[drawn]], hot[data.y[rows[drawn]]]
        models = np.repeat(model[None], len(drawn), axis=0)
        for _ in range(training.steps):
            models -= x.transpose(0, 2, 1) @ (_softmax(x @ models) - y) / training.rows
        updates = models - model
        lengths = np.sqrt(np.square(updates).sum(axis=(1, 2)))
        factors = np.minimum(1.0, training.norm / np.maximum(lengths, 1e-12))
        total = np.einsum("i,ijk->jk", factors, updates)
        total += rng.normal(0.0, noise, model.shape).astype(np.float32)
        step = MOMENTUM * step + total / plan.denominator
        model = model + learning_rate * step
    return model


def _softmax(scores: Floats) -> Floats:
    raised: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return shares


def accuracies(data: Data, model: Floats, *, skewed: bool) -> list[float]:
    """Accuracy on all test rows, and on each group's mixture of them."""
    right = (data.test_x @ model).argmax(axis=1) == data.test_y
    everywhere = float(right.mean())
    kinds = [float(right[data.test_kind == kind].mean()) for kind in range(len(SHARES))]
    own = OWN_ROWS if skewed else 0.0
    return [everywhere, *(own * kind + (1.0 - own) * everywhere for kind in kinds)]


@cache
def chosen(task: str, arm: Arm) -> tuple[float, float]:
    """A row's server learning rate and sampling rate, as chosen elsewhere."""
    training = TRAININGS[task]
    if training.chosen_on is None:
        return training.rates
    data = data_of(training.chosen_on)

    def reached(rates: tuple[float, float]) -> float:
        try:
            model = trained(data, training, arm, rates, 0, False)
        except OptionError:  # the last group would take part in every round and spend less
            return 0.0
        return accuracies(data, model, skewed=False)[0]

    return max(product(LEARNING_RATES, RATES), key=reached)


def table(task: str, *, skewed: bool, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Train each row with each seed; return means and deviations."""
    data, lines = data_of(task), []
    for arm in ARMS:
        rates = chosen(task, arm)
        models = [trained(data, TRAININGS[task], arm, rates, seed, skewed) for seed in seeds]
        rows = [accuracies(data, model, skewed=skewed) for model in models]
        plan = plan_of(arm, TRAININGS[task].rounds, rates[1])
        lines.append(
            {
                "task": task,
                "skewed": skewed,
                "arm": arm.name,
                "learning_rate": rates[0],
                "sampling_rate": rates[1],
                "noise_multiplier": plan.noise_multiplier,
                "accuracy": statistics.fmean(row[0] for row in rows),
                "deviation": statistics.stdev(row[0] for row in rows),
                "by_group": np.mean(rows, axis=0)[1:].round(4).tolist(),
            }
        )
    return lines


def main() -> None:
    """Train and print all rows on both sets, dealt evenly and skewed."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--json", action="store_true", help="print one JSON document")
    given = asked.parse_args()
    rows = [
        row
        for task, skewed in product(TRAININGS, (False, True))
        for row in table(task, skewed=skewed, seeds=SEEDS)
    ]
    if given.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    for row in rows:
        groups = ", ".join(f"{accuracy:.3f}" for accuracy in row["by_group"])
        print(
            f"{row['task']}, {'skewed' if row['skewed'] else 'even'}, {row['arm']}: "
            f"{row['accuracy']:.4f} +- {row['deviation']:.4f}; by group {groups}; "
            f"rates {row['learning_rate']:g}, {row['sampling_rate']:g}"
        )


if __name__ == "__main__":
    main()
