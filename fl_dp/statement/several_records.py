"""Epsilon of several units that are one person: records, or their shares at several clients."""

from __future__ import annotations

import math

from fl_dp.accounting import History, NeighboringRelation, epsilon, freeze
from fl_dp.accounting.groups import epsilon_of_group
from fl_dp.ledger import SpentLedger

RECORDS_OF_ONE_PERSON = (2, 5, 10)


def epsilon_of_several(
    history: History | None, delta: float, relation: NeighboringRelation, *, slack: float = 0.0
) -> dict[str, float | None]:
    """Return epsilon by the number of one person's records; None where no bound is known.

    Without a history no bound is. See `epsilon_of_group` for `slack`.
    """
    epsilons: dict[str, float | None] = {}
    for size in RECORDS_OF_ONE_PERSON:
        bound = math.inf
        if history is not None:
            bound = epsilon_of_group(
                history, delta, size, neighboring_relation=relation, slack=slack
            )
        epsilons[str(size)] = bound if math.isfinite(bound) else None
    return epsilons


def epsilon_at_several_clients(
    history: History | None, delta: float, relation: NeighboringRelation
) -> dict[str, float | None]:
    """Return epsilon by the number of clients that have records of one person.

    Each releases as much, by coins and noise of its own: their releases compose.
    """
    epsilons: dict[str, float | None] = {}
    for clients in RECORDS_OF_ONE_PERSON:
        bound = math.inf
        if history is not None:
            together = [(event, clients * count) for event, count in freeze(history)]
            bound = epsilon(together, delta, neighboring_relation=relation).best
        epsilons[str(clients)] = bound if math.isfinite(bound) else None
    return epsilons


def several_records_of(ledger: SpentLedger) -> dict[str, float | None]:
    """Return the same for a training of records or persons.

    A person at several nodes is several units. An update is clipped as a whole: many changed
    records of one client move it no more than one does. Records of sums each move the sum.
    """
    plan = ledger.plan
    if not plan.hosting.of_records:
        best = ledger.promise().best
        at_one_client = best if math.isfinite(best) else None
        return {str(size): at_one_client for size in RECORDS_OF_ONE_PERSON}
    return epsilon_of_several(
        ledger.promised_history,
        plan.budget.delta,
        plan.neighboring_relation,
        slack=plan.slack,
    )
