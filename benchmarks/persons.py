"""Accuracy of DP-SGD for people with several rows: persons as units, or rows and a group bound.

    python benchmarks/persons.py

A made-up table: 500 persons with 1 to 3 visits, of whom one in twenty has 40, 20 columns, two
classes. Each training promises epsilon 2 at delta 1e-5 to a person. With rows as units the noise is
so large that 40 rows keep it together; with persons each has one coin and one clipped gradient.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fl_dp import PrivacyBudget
from fl_dp.accounting.groups import epsilon_of_group
from fl_dp.clients import DPSGD, Persons
from fl_dp.clients.per_record.dp_sgd import train_with_dp_sgd
from fl_dp.plan import RecordPlan

BUDGET = PrivacyBudget(epsilon=2.0, delta=1e-5)
PERSONS, MOST, COLUMNS, STEPS, RATE = 500, 40, 20, 60, 0.1
SEEDS = 3


def table(persons: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, labels, and each row's person; a person's rows differ and share a tendency."""
    generator = torch.Generator().manual_seed(seed)
    visits = 1 + torch.arange(persons) % 3
    visits[::20] = MOST
    owner = torch.arange(persons).repeat_interleave(visits)
    middle = torch.randn(persons, COLUMNS, generator=generator)
    x = middle[owner] + torch.randn(len(owner), COLUMNS, generator=generator)
    weights = torch.randn(COLUMNS, generator=torch.Generator().manual_seed(0))
    noise = 2.0 * torch.randn(len(owner), generator=generator)
    return x, (x @ weights + noise > 0.0).long(), owner


def plan_of(noise_multiplier: float, unit: str) -> RecordPlan:
    """Return a plan of `record` or `person` with its own noise."""
    return RecordPlan.from_noise_multiplier(
        noise_multiplier,
        delta=BUDGET.delta,
        sampling_rate=RATE,
        steps=STEPS,
        participations=1,
        clipping_norm=1.0,
        unit=unit,
    )


def plan_of_rows() -> RecordPlan:
    """Return the plan of rows with the least noise that keeps the promise to a person."""
    low, high = 0.5, 200.0
    while high / low > 1.03:
        middle = (low * high) ** 0.5
        plan = plan_of(middle, "record")
        together = epsilon_of_group(
            {plan.event: STEPS},
            BUDGET.delta,
            MOST,
            neighboring_relation=plan.neighboring_relation,
        )
        low, high = (middle, high) if together > BUDGET.epsilon else (low, middle)
    return plan_of(high, "record")


def accuracy(plan: RecordPlan, *, seed: int) -> float:
    """Train a linear model on a table, and measure it on rows of other persons."""
    x, y, owner = table(PERSONS, seed=seed)
    rows = TensorDataset(x, y)
    units = rows if plan.unit == "record" else Persons(rows, owner)
    model = nn.Linear(COLUMNS, 2)
    nn.init.zeros_(model.weight)
    how = DPSGD(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        expected_batch_size=RATE * len(units),
    )
    train_with_dp_sgd(model, units, plan=plan, how=how)
    test_x, test_y, _ = table(PERSONS, seed=1000 + seed)
    with torch.no_grad():
        return float((model(test_x).argmax(1) == test_y).double().mean())


def main() -> None:
    """Print each plan's noise, and mean, least and largest accuracy."""
    of_persons = RecordPlan.calibrate(
        BUDGET, sampling_rate=RATE, steps=STEPS, participations=1, clipping_norm=1.0, unit="person"
    )
    plans = {
        "persons": of_persons,
        "rows, 40 together": plan_of_rows(),
        "rows, no promise to persons": plan_of(of_persons.noise_multiplier, "record"),
        "persons, hardly any noise": plan_of(0.01, "person"),
    }
    for name, plan in plans.items():
        scores = [accuracy(plan, seed=seed) for seed in range(SEEDS)]
        mean, least, most = statistics.mean(scores), min(scores), max(scores)
        print(
            f"{name}: noise {plan.noise_multiplier:.3g}, {mean:.3f} ({least:.3f} to {most:.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
