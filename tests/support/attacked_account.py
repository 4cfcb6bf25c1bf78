"""A process that tries to release as much as it can from an account, and tells all that it may."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from accounts import CAP, plan_of

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import NeighboringRelation, PrivacyBudgetExhausted
from fl_dp.ledger import LedgerCorrupted, enter_sweep, witness_at

_STEPS = 8
_MOST = 8  # releases of one opening
_RELATIONS = [NeighboringRelation.ZERO_OUT] * 3 + [NeighboringRelation.REPLACE_ONE]


def tell(**fields: Any) -> None:
    """Print one line, and wait: whoever is killed in the middle has told all that it did."""
    print(json.dumps(fields), flush=True)
    sys.stdin.readline()


def release(
    file: Path, name: str, plan: Plan, group: str, budget: PrivacyBudget, **ways: Any
) -> None:
    """Reserve rounds, repeated ones among them, until the ledger refuses."""
    with PrivacyLedger.open(file, plan, name=name, **ways) as ledger:
        for _ in range(_MOST):
            try:
                reservation = ledger.reserve(round=random.randint(1, plan.rounds))
            except PrivacyBudgetExhausted:
                return
            tell(
                group=group,
                epsilon=budget.epsilon,
                delta=budget.delta,
                noise=reservation.noise_multiplier,
                distance=plan.neighboring_relation.distance,
            )
            if random.random() < 0.5:  # an answer got lost, or the process did
                ledger.commit(reservation)


def plan_by_chance() -> Plan:
    """A plan that its attacker chose by whatever it has seen."""
    return plan_of(
        random.choice([0.9, 1.7, 2.5, 4.0]),
        delta=random.choice([1e-5, 5e-5, 2e-4]),
        rounds=random.randint(1, 4),
        sampling_rate=1.0,
        neighboring_relation=random.choice(_RELATIONS),
    )


def attack(file: Path, heads: Path | None, *, who: str, seed: int, capped: bool) -> None:
    """Try new trainings, known ones, known ones with other plans, and sweeps."""
    random.seed(seed)
    ways: dict[str, Any] = {"cap": CAP} if capped else {}
    if heads is not None:
        ways["witness"] = witness_at(str(heads))
    plans: dict[str, Plan] = {}
    for step in range(_STEPS):
        plan, name = plan_by_chance(), f"{who}/{step}"
        try:
            way = random.choice(["new", "new", "again", "other", "sweep"])
            if way == "again" and plans:
                name = random.choice(list(plans))
                plan = plans[name]
            elif way == "other" and plans:
                name = random.choice(list(plans))
            elif way == "sweep":
                cells = {f"{name}-{number}": plan for number in range(3)}
                wanted = {key: ways[key] for key in ("witness", "cap") if key in ways}
                joint = enter_sweep(file, name, cells, **wanted)
                for cell in cells:
                    release(file, cell, plan, name, joint, **ways)
                continue
            release(file, name, plan, name, plan.budget, **ways)
            plans[name] = plan
        except LedgerCorrupted:
            tell(refused="corrupted")
            return
        except (PrivacyBudgetExhausted, ValueError):
            continue
