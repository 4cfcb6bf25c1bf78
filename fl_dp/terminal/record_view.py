"""Spending of DP-SGD inside clients, shown before anything is trained."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from fl_dp.guarantee import Guarantee
from fl_dp.plan import RecordPlan
from fl_dp.statement import record_statement

from .bounds_table import bound_rows, bounds_json
from .numbers import numbers_table


def record_plan_json(plan: RecordPlan) -> dict[str, Any]:
    """Return the plan and what a client spends by it as plain JSON values."""
    return {
        **bounds_json(plan.epsilon(), plan.budget.delta),
        "guarantee": Guarantee.of(plan, plan.epsilon().best).to_dict(),
        "noise_multiplier": plan.noise_multiplier,
        "sampling_rate": plan.sampling_rate,
        "steps": plan.steps,
        "participations": plan.participations,
        "clipping_norm": plan.clipping_norm,
        "neighboring_relation": str(plan.neighboring_relation),
        "budget": plan.budget.epsilon,
    }


def record_plan_table(plan: RecordPlan) -> Table:
    """Return the numbers as a table for the terminal."""
    return numbers_table(
        f"{plan.unit.capitalize()}s of each client: {plan.participations} rounds of {plan.steps} "
        f"steps, Poisson samples at rate {plan.sampling_rate:g}; epsilon "
        f"{Guarantee.of(plan).terms}",
        [
            (
                "noise multiplier (noise std on a step's sum / clipping norm)",
                f"{plan.noise_multiplier:.5f}",
            ),
            (f"clipping norm of one {plan.unit}'s gradient", f"{plan.clipping_norm:g}"),
            *bound_rows(plan.epsilon()),
        ],
    )


def promise_to_records(plan: RecordPlan) -> dict[str, str]:
    """Return the promise to records, in words."""
    statement = record_statement(plan, participations=None, num_clients=1)
    return {
        name: getattr(statement, name) for name in ("unit", "neighbours", "adversary", "trusted")
    }
