"""The PLD epsilon of a ledger's trainings, from its file and dp-accounting alone, without fl-dp.

    python recompute_epsilon.py ledger.db

With several trainings it prints each one's epsilon, a sweep's as one, what their budgets add up to,
and the epsilon of the account's Renyi odometer; the smaller of the two is the total.

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
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
)
from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
    from_laplace_mechanism,
    from_truncated_subsampled_gaussian_mechanism,
    identity,
)
from dp_accounting.rdp import RdpAccountant

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
Releases = Counter[tuple[Any, ...]]  # by the values of FIELDS


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
    slack = math.fsum(plan.get("slack", 0) for plan in plans)
    counts = Counter(values_of(row) for row in releases)
    return composed_epsilon(counts, delta * math.exp(-slack)) + 2 * slack


def values_of(release: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells one release from others."""
    return tuple(release.get(name) for name in FIELDS)


def composed_epsilon(counts: Releases, delta: float) -> float:
    """Return the PLD epsilon of releases."""
    step = 1e-4 if len(counts) <= 8 else 1e-3
    total = identity(step)
    for values, count in counts.items():
        release = dict(zip(FIELDS, values, strict=True))
        total = total.compose(distribution(release, step).self_compose(count))
    return float(total.get_epsilon_for_delta(delta))


def admitted(training: list[dict[str, Any]]) -> Releases | None:
    """Return all that a training's budget pays for; None where its rounds differ, or none began."""
    plan, counts = training[0]["plan"], Counter[tuple[Any, ...]]()
    for release in plan["other_releases"]:
        counts[values_of(release)] += release["count"]
    if not plan["rounds"]:
        return counts
    rounds = {values_of(entry) for entry in training if "round" in entry}
    if len(rounds) != 1 or plan.get("schedule", {"name": "constant"})["name"] != "constant":
        return None
    (one,), cap = rounds, plan["sampling"].get("participation_cap") or math.inf

    def fits(count: int) -> bool:
        epsilon = composed_epsilon(counts + Counter({one: count}), plan["budget"]["delta"])
        return count <= cap and epsilon <= plan["budget"]["epsilon"]

    repeated, step = int(min(plan["rounds"], cap)), 1
    while fits(repeated + step):
        repeated, step = repeated + step, 2 * step
    while step := step // 2:
        repeated += step if fits(repeated + step) else 0
    return counts + Counter({one: repeated})


def odometer_of(trainings: list[list[dict[str, Any]]], shares: list[dict[str, float]]) -> float:
    """Return the epsilon by Renyi DP at fixed orders, each with its share of delta.

    It holds at every moment, whatever chose the plans: Feldman and Zrnic 2021, Lecuyer 2021. The
    conversion is proposition 12 of Canonne, Kamath and Steinke 2020.
    """
    if any(training[0]["plan"].get("slack") for training in trainings) or not shares:
        return math.inf
    orders = [share["order"] for share in shares]
    accountant = RdpAccountant(orders, NeighboringRelation.ADD_OR_REMOVE_ONE)
    for training in trainings:
        releases = admitted(training)
        if releases is None:
            return math.inf
        for values, count in releases.items():
            event = renyi_event(dict(zip(FIELDS, values, strict=True)))
            if event is None:
                return math.inf
            accountant.compose(event, count)
    return min(
        float(divergence)
        + math.log1p(-1 / share["order"])
        - math.log(share["order"] * share["delta"]) / (share["order"] - 1)
        for divergence, share in zip(accountant.rdp, shares, strict=True)
    )


def renyi_event(release: dict[str, Any]) -> DpEvent | None:
    """Return a release as dp-accounting's Renyi DP knows it; None: it knows no bound."""
    kind, multiplier = release["event"], release["noise_multiplier"]
    if kind == "gaussian":
        return GaussianDpEvent(multiplier)
    if kind == "poisson-gaussian":
        return PoissonSampledDpEvent(release["sampling_rate"], GaussianDpEvent(multiplier))
    return LaplaceDpEvent(multiplier) if kind == "laplace" else None


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
    epsilon = math.fsum(budget["epsilon"] for budget in budgets)
    delta = math.fsum(budget["delta"] for budget in budgets)
    account = entries[0]["account"]
    shares = account.get("odometer", [])  # older accounts have none
    of_plans = account["delta"] - math.fsum(share["delta"] for share in shares)
    print(f"sum: {epsilon} at delta {delta} of {of_plans}")
    total = epsilon if delta <= of_plans * (1 + 1e-12) else math.inf
    if shares:
        odometer = odometer_of(trainings, shares)
        print(f"odometer: {odometer} at delta {account['delta'] - of_plans}")
        total = min(total, odometer)
    print(f"total: {total} at delta {account['delta']}, cap {account['cap']}")
    if math.isinf(total):
        sys.exit("the account's delta is exceeded")
    if account["cap"] is not None and total > account["cap"] * (1 + 1e-12):
        sys.exit("the account's cap is exceeded")


if __name__ == "__main__":
    main(*sys.argv[1:])
