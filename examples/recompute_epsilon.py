"""The PLD epsilon of a ledger's trainings, from its file and dp-accounting alone, without fl-dp.

    python recompute_epsilon.py ledger.db

With several trainings it prints each one's epsilon, a sweep's as one, and what their budgets add up
to.

For zero-out and add-or-remove neighbours. It stops where it would be wrong: under replace-one, and
for a sample of fixed size under add-or-remove, where another unit takes the place of one that left.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from collections import Counter
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
    from_laplace_mechanism,
    from_truncated_subsampled_gaussian_mechanism,
    identity,
)

FIELDS = (
    "event",
    "noise_multiplier",
    "sampling_rate",
    "num_units",
    "max_cohort",
    "epsilon",
    "draws",
)
GAUSSIANS = {"gaussian", "poisson-gaussian", "fixed-size-gaussian"}


def entries_of(file: str) -> list[dict[str, Any]]:
    """Return a ledger's entries."""
    table = sqlite3.connect(file).execute("SELECT payload FROM entries ORDER BY sequence")
    return [json.loads(payload) for (payload,) in table]


def groups_of(entries: list[dict[str, Any]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return each charge of the account: the entries of its trainings, whose first is the plan.

    A sweep is one charge of several trainings.
    """
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    trainings: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        name, kind = entry["training"], entry["kind"]
        if kind == "unprotected":
            sys.exit(f"no total: {name} has no promise ({entry['what']})")
        if kind == "records":
            sys.exit(f"no total: {name} is of records, whose releases clients' own ledgers have")
        plans = {name: entry["plan"]} if kind == "plan" else entry.get("plans", {})
        if plans:  # of a plan without releases another can take the place
            groups.pop(name, None)
            groups[name] = {one: [{"plan": plan, "charge": entry}] for one, plan in plans.items()}
            trainings |= groups[name]
        if kind not in ("plan", "sweep"):
            trainings[name].append(entry)
    return groups


def budget_of(group: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Return what a training, or all of a sweep together, may spend."""
    charge = next(iter(group.values()))[0]["charge"]
    budget: dict[str, float] = (charge if charge["kind"] == "sweep" else charge["plan"])["budget"]
    return budget


def releases_of(training: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of a training that charge one unit."""
    rounds = [entry for entry in training if "round" in entry]
    cap = training[0]["plan"]["sampling"].get("participation_cap")
    if cap and rounds:  # a client is charged for the cap, at the least noise of any round
        rounds = [min(rounds, key=lambda row: row["noise_multiplier"])] * min(cap, len(rounds))
    return rounds + [entry for entry in training if "what" in entry]


def distribution(release: dict[str, Any], step: float) -> PrivacyLossDistribution:
    """Return the privacy-loss distribution of one release, at an interval of losses."""
    kind, multiplier = release["event"], release.get("noise_multiplier")
    rate = release.get("sampling_rate") or 1.0
    if kind == "exponential":
        one = worst_of_bounded_range(release["epsilon"], step)
        return one.self_compose(release["draws"])
    if kind == "truncated-poisson-gaussian":
        return from_truncated_subsampled_gaussian_mechanism(
            release["num_units"],
            rate,
            release["max_cohort"],
            multiplier,
            step,
            neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
        )
    if kind == "laplace":
        return from_laplace_mechanism(multiplier, value_discretization_interval=step)
    if kind not in GAUSSIANS:
        sys.exit(f"a {kind} release has no privacy-loss distribution")
    return from_gaussian_mechanism(
        multiplier, sampling_prob=rate, value_discretization_interval=step
    )


def worst_of_bounded_range(epsilon: float, step: float) -> PrivacyLossDistribution:
    """Return the distribution of the worst mechanism whose losses have a range of epsilon."""
    steps = math.ceil(epsilon / step)
    below = np.minimum(step * np.arange(1 - steps, steps + 1) - epsilon, 0.0)
    deltas = np.r_[-math.expm1(-steps * step), np.expm1(below / 2) ** 2 / -math.expm1(-epsilon)]
    return PrivacyLossDistribution(
        create_pmf_pessimistic_connect_dots_fixed_gap(step, -steps, steps, deltas)
    )


def epsilon_of(trainings: list[list[dict[str, Any]]], delta: float) -> float:
    """Return the epsilon of all releases of some trainings together, at a delta."""
    plans = [training[0]["plan"] for training in trainings]
    (relation,) = {plan["neighboring_relation"] for plan in plans}
    releases = [row for training in trainings for row in releases_of(training)]
    if relation == "replace-one":
        sys.exit("no epsilon under replace-one neighbours")
    if relation != "zero-out" and any(row["event"] == "fixed-size-gaussian" for row in releases):
        sys.exit(f"no epsilon for samples of fixed size under {relation} neighbours")
    counts = Counter(tuple(row.get(name) for name in FIELDS) for row in releases)
    step = 1e-4 if len(counts) <= 8 else 1e-3
    total = identity(step)
    for values, count in counts.items():
        release = dict(zip(FIELDS, values, strict=True))
        total = total.compose(distribution(release, step).self_compose(count))
    slack = math.fsum(plan.get("slack", 0) for plan in plans)
    return float(total.get_epsilon_for_delta(delta * math.exp(-slack))) + 2 * slack


def main(file: str) -> None:
    """Print each charge's epsilon, and the sum of several charges' budgets."""
    entries = entries_of(file)
    groups = groups_of(entries)
    trainings = [training for group in groups.values() for training in group.values()]
    if len(trainings) == 1:
        print(epsilon_of(trainings, trainings[0][0]["plan"]["budget"]["delta"]))
        return
    for name, group in groups.items():
        budget = budget_of(group)
        epsilon = epsilon_of(list(group.values()), budget["delta"])
        print(f"{name}: {epsilon} of {budget['epsilon']} at delta {budget['delta']}")
        if epsilon > 1.01 * budget["epsilon"]:  # discretisation
            sys.exit(f"{name} has spent more than its budget")
    # What a training may spend is spent, so budgets add up: basic composition.
    units = {entry["unit"] for entry in entries if entry["kind"] == "run"}
    relations = {training[0]["plan"]["neighboring_relation"] for training in trainings}
    if len(units) > 1 or len(relations) > 1:
        sys.exit("no sum: these trainings are of different units or neighbours")
    budgets = [budget_of(group) for group in groups.values()]
    total = math.fsum(budget["epsilon"] for budget in budgets)
    delta = math.fsum(budget["delta"] for budget in budgets)
    account = entries[0]["account"]
    print(f"sum: {total} at delta {delta} of {account['delta']}, cap {account['cap']}")
    if delta > account["delta"] * (1 + 1e-12):
        sys.exit("the account's delta is exceeded")
    if account["cap"] is not None and total > account["cap"] * (1 + 1e-12):
        sys.exit("the account's cap is exceeded")


if __name__ == "__main__":
    main(*sys.argv[1:])
