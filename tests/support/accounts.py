"""Accounts of several trainings: plans that fit, a training's whole spending, forged entries."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from flat_plans import calibrated_plan

from fl_dp import Plan, PrivacyBudget, PrivacyLedger
from fl_dp.accounting import PrivacyBudgetExhausted
from fl_dp.ledger.entries import next_entry
from fl_dp.plan import RecordPlan

CAP = PrivacyBudget(epsilon=8.0, delta=1e-3)
RECORDS = RecordPlan(
    budget=PrivacyBudget(epsilon=2.0, delta=1e-4),
    noise_multiplier=4.0,
    sampling_rate=0.1,
    steps=3,
    participations=2,
    clipping_norm=1.0,
    training="of the records",
)


def plan_of(epsilon: float, *, delta: float = 2.5e-4, rounds: int = 3, **changes: Any) -> Plan:
    """A plan for 200 clients, a quarter of them a round."""
    budget = PrivacyBudget(epsilon=epsilon, delta=delta)
    sizes: dict[str, Any] = {"num_clients": 200, "clipping_norm": 1.0, "sampling_rate": 0.25}
    return calibrated_plan(budget, rounds=rounds, **sizes | changes)


def spend(file: Path, plan: Plan, name: str, **options: Any) -> int:
    """Train until the plan's rounds or its budget end; return the rounds that were paid."""
    with PrivacyLedger.open(file, plan, name=name, **options) as ledger:
        for number in range(1, 100):
            try:
                ledger.commit(ledger.reserve(round=number))
            except (PrivacyBudgetExhausted, ValueError):
                return number - 1
    raise AssertionError("it never ended")


def forged(file: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Write a ledger's entries anew with right hashes, as whoever can write the file can."""
    with closing(sqlite3.connect(file)) as table:
        rows = table.execute("SELECT payload FROM entries ORDER BY sequence").fetchall()
        payloads = [json.loads(payload) for (payload,) in rows]
        change(payloads)
        entry = None
        for payload in payloads:
            entry = next_entry(entry, payload)
            table.execute(
                "UPDATE entries SET payload = ?, hash = ? WHERE sequence = ?",
                (entry.payload, entry.hash, entry.sequence),
            )
        table.commit()
