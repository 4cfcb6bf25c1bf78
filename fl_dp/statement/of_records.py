"""Privacy statement of DP-SGD inside clients: the largest epsilon of any client's records."""

from __future__ import annotations

from typing import Any

from fl_dp.accounting import EpsilonBounds, History, NeighboringRelation
from fl_dp.accounting.second_figure import second_figure
from fl_dp.ledger.training import library_versions
from fl_dp.plan import RecordPlan
from fl_dp.promise import Enforcement

from .sentences import (
    MEAN_OF_A_PERSON,
    NEIGHBOURS,
    NOT_COVERED_OF_RECORDS,
    NUMBER_IS_PUBLIC,
    PROMISE_TO_RECORDS,
    TRUSTED_NAMED_APP,
    UNITS,
)
from .several_records import epsilon_at_several_clients, epsilon_of_several
from .stated_promise import RecordStatement
from .words import figure_of, not_covered_of


def record_statement(
    plan: RecordPlan,
    *,
    participations: int | None,
    num_clients: int,
    secure_randomness: bool = True,
    declared_gradients: str | None = None,
    enforcement: Enforcement | None = None,
) -> RecordStatement:
    """Return a plan's statement.

    Its epsilon is the maximum over clients, and no client reports its own. Each client's ledger
    refuses to exceed the budget, and the server knows how often it asked each.

    Args:
        plan: The clients' plan.
        participations: Most rounds that any client was asked for in this run; None: unknown, and
            the budget bounds it.
        num_clients: Clients of the roster.
        secure_randomness: Whether noise and coins came from the operating system's randomness.
        declared_gradients: `hooks` or `ghost` where a run asks for them; see `RecordStatement`.
        enforcement: What all nodes that may have been asked reported; None: unknown.
    """
    at_budget = EpsilonBounds(filter=plan.budget.epsilon)
    promised = spent = at_budget
    most = None  # if it is unknown, the ledgers bound one record, and no group of them
    if participations is not None:
        # An earlier stop may depend on releases, so the planned rounds are quoted. Where they cost
        # more than the budget, the ledgers stop them.
        budget, most = plan.budget.epsilon, max(participations, plan.participations)
        promised = plan.epsilon(most).within(budget)
        spent = EpsilonBounds(naive=0.0)
        if participations:
            spent = plan.epsilon(participations).within(budget)
    history: History | None = None if most is None else {plan.event: most * plan.steps}
    second = second_figure(
        history or {},
        plan.budget.delta,
        ours=promised,
        neighboring_relation=plan.neighboring_relation,
    )
    named = enforcement is Enforcement.NAMED_APP
    holds = {
        "app": not named,
        "generator": not secure_randomness,
        "rows": declared_gradients is not None,
        "rows of an app": declared_gradients is None,
        "figure": second.above_ours,
    }
    units = {"unit": plan.unit, "units": f"{plan.unit}s"}
    slots = {"rows": declared_gradients, "figure": figure_of(second)} | units
    not_covered = not_covered_of(NOT_COVERED_OF_RECORDS, holds, **slots)
    promise: dict[str, Any] = {
        name: text.format(steps=plan.steps, **units) for name, text in PROMISE_TO_RECORDS.items()
    }
    of_persons = plan.unit == "person"
    if of_persons:
        promise["mechanism"] += MEAN_OF_A_PERSON
    neighbours = NEIGHBOURS[plan.unit][plan.neighboring_relation]
    if plan.neighboring_relation is NeighboringRelation.ZERO_OUT:
        neighbours += NUMBER_IS_PUBLIC.format(**units)
    several = epsilon_at_several_clients if of_persons else epsilon_of_several
    if named:
        promise["trusted"] = TRUSTED_NAMED_APP
    return RecordStatement(
        delta=plan.budget.delta,
        epsilon=promised.by_name,
        quoted=promised.best_name,
        epsilon_so_far=spent.by_name,
        budget=plan.budget,
        neighboring_relation=plan.neighboring_relation,
        against=plan.against,
        unit=UNITS[plan.unit],
        neighbours=neighbours,
        noise_multiplier=plan.noise_multiplier,
        sampling_rate=plan.sampling_rate,
        clipping_norm=plan.clipping_norm,
        steps=plan.steps,
        participations=participations,
        participations_planned=plan.participations,
        num_clients=num_clients,
        declared_gradients=declared_gradients,
        epsilon_of_several=several(history, plan.budget.delta, plan.neighboring_relation),
        second_figure=second,
        enforcement=enforcement if named else None,
        insecure=not secure_randomness,
        not_covered=tuple(not_covered),
        versions=library_versions(),
        **promise,
    )
