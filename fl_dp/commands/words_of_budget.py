"""What an owner's cap still allows, in plain words, before a node is started."""

from __future__ import annotations

import math

from fl_dp.accounting import PrivacyBudget
from fl_dp.clients.owner.node_config import NodeConfig
from fl_dp.clients.owner.policy_description import cap_in_words
from fl_dp.ledger import LedgerCorrupted, LedgerUnavailable, NodeLedger
from fl_dp.ledger.node import Spending
from fl_dp.promise import brief_epsilon, rounded_up
from fl_dp.statement.words import describe_event
from fl_dp.terminal.node_ledger_view import guarantee_at_node

_KINDS = 3  # kinds of releases that are listed: those that were made most often


def words_of_budget(owner: NodeConfig) -> list[str]:
    """Return what was spent of an owner's cap and what still fits, one sentence per account.

    Another sentence elsewhere reports a ledger that can't be read.
    """
    cap = owner.cap
    if owner.ledger_path is None or cap is None:
        return []
    try:
        with NodeLedger.read(owner.ledger_path) as ledger:
            spendings = ledger.spendings
    except FileNotFoundError:
        return [f"Nothing was spent: all of the cap is there, {cap_in_words(cap)}"]
    except (LedgerCorrupted, LedgerUnavailable):
        return []
    return [_of_account(spending, cap) for spending in spendings]


def _of_account(spending: Spending, cap: PrivacyBudget) -> str:
    bounds, room = spending.epsilon(), spending.room(cap)
    spent = rounded_up(bounds.best) if bounds.by_name else "of no known bound"
    relations = spending.neighboring_relations
    relation = max(relations, key=lambda relation: relation.distance)
    most_often = sorted(spending.releases.items(), key=lambda pair: -pair[1])[:_KINDS]
    room = math.floor(1e4 * room) / 1e4  # the remaining epsilon is rounded down
    fits = []
    if room:
        fits.append(f"a run of Gaussian noise of up to epsilon {room:g} by itself")
    for event, _ in most_often:
        most = spending.most(event, budget=cap, neighboring_relation=relation)
        if most:
            fits.append(f"{most:,} more times {describe_event(event)}")
    names = ", ".join(f"'{name}'" for name in sorted(spending.sources))
    unit = "client as a whole" if spending.unit == "client" else spending.unit
    return (
        f"Of epsilon {brief_epsilon(cap.epsilon)}, {names} has spent epsilon {spent} for each "
        f"{unit} ({guarantee_at_node(spending).terms}); what still fits is "
        f"{', or '.join(fits) or 'nothing'}"
    )
