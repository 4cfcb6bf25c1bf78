"""What an owner's cap has room for, in plain words, before a node is started."""

from __future__ import annotations

import math
from pathlib import Path

from fl_dp.accounting import PrivacyBudget
from fl_dp.clients.node_config import NodeConfig
from fl_dp.ledger import LedgerCorrupted, LedgerUnavailable, NodeLedger
from fl_dp.ledger.node import Spending
from fl_dp.promise import brief_epsilon, rounded_up
from fl_dp.statement.words import describe_event

_KINDS = 3  # of releases that are told one by one, those that were made most often


def words_of_budget(owner: NodeConfig) -> list[str]:
    """Return what was spent of an owner's cap and what still fits, a sentence an account.

    A ledger that can't be read has its own sentence elsewhere.
    """
    cap = owner.cap
    if owner.ledger_path is None or cap is None:
        return []
    if "://" not in owner.ledger_path and not Path(owner.ledger_path).is_file():
        return [f"Nothing was spent: all of epsilon {brief_epsilon(cap.epsilon)} is there"]
    try:
        with NodeLedger.read(owner.ledger_path) as ledger:
            spendings = ledger.spendings
    except (LedgerCorrupted, LedgerUnavailable):
        return []
    return [_of_account(each, cap) for each in spendings]


def _of_account(spending: Spending, cap: PrivacyBudget) -> str:
    bounds, room = spending.epsilon(), spending.room(cap)
    spent = rounded_up(bounds.best) if bounds.by_name else "of no known bound"
    relation = max(spending.neighboring_relations, key=lambda each: each.distance)
    often = sorted(spending.releases.items(), key=lambda pair: -pair[1])[:_KINDS]
    room = math.floor(1e4 * room) / 1e4  # what is left is rounded down
    fits = [f"a run of Gaussian noise of up to epsilon {room:g} by itself"] if room else []
    for event, _ in often:
        most = spending.most(event, budget=cap, neighboring_relation=relation)
        if most:
            fits.append(f"{most:,} more times {describe_event(event)}")
    names = ", ".join(f"'{name}'" for name in sorted(spending.sources))
    return (
        f"Of epsilon {brief_epsilon(cap.epsilon)}, {names} has spent epsilon {spent} for each "
        f"{'record' if spending.unit == 'record' else 'client as a whole'}; what still fits is "
        f"{', or '.join(fits) or 'nothing'}"
    )
