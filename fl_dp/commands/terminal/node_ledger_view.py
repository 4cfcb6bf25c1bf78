"""A node's ledger as its owner reads it: what the node's data have spent, over all runs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fl_dp.accounting import PrivacyBudget
from fl_dp.accounting.events import event_to_dict
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Reliance, Spending, Use
from fl_dp.promise import brief_epsilon, delta_rounded_up, rounded_up
from fl_dp.statement.sentences import ACCOUNTANTS
from fl_dp.statement.words import describe_event

from .sheets import sheet

_WHOLE_HASH = re.compile(r"@([0-9a-f]{12})[0-9a-f]{52}$")
_PURPOSES = {
    "train": "training",
    "evaluate": "evaluation",
    "query.fl_dp_statistic": "a statistic",
}


def node_ledger_json(ledger: NodeLedger) -> dict[str, Any]:
    """Return what every account has spent, as plain JSON values."""
    return {
        "location": ledger.location,
        "verified": True,
        "last_hash": ledger.anchor.hash,
        "revoked": ledger.revoked,
        "accounts": [_account_json(each) for each in ledger.spendings],
    }


def node_ledger_summary(ledgers: Sequence[NodeLedger]) -> list[str]:
    """Return what an owner asks first, a line each: verified, spent of what, revoked."""
    spendings = [each for ledger in ledgers for each in ledger.spendings]
    lines = ["Chains verified" if len(ledgers) > 1 else "Chain verified"]
    least = min(spendings, key=_ends_first, default=None)
    if least is None:
        lines.append("Nothing was spent")
    else:
        bounds = least.epsilon()
        lines.append(
            f"Spent: epsilon {_spent(least)} of {_limit(least)} at delta {_delta(least)}"
            + (f", by {ACCOUNTANTS.get(bounds.best_name)}" if bounds.by_name else "")
            + (f"; of {len(spendings)} accounts the one with least left" * (len(spendings) > 1))
        )
    return lines + [
        f"Every use was revoked on {each.revoked}: nothing is charged any more"
        for each in ledgers
        if each.revoked is not None
    ]


def node_ledger_table(ledgers: Sequence[NodeLedger], title: str) -> Table:
    """Return the accounts of one or more ledgers as a table for the terminal."""
    headings = ("data", "unit", "releases", "epsilon", "of at most", "delta")
    rows = []
    for spending in (each for ledger in ledgers for each in ledger.spendings):
        releases = (f"{n} x {describe_event(event)}" for event, n in spending.history)
        rows.append(
            (
                ", ".join(sorted(spending.sources)),
                spending.unit,
                "\n".join(releases),
                _spent(spending),
                "no cap" if spending.budget is None else brief_epsilon(spending.budget.epsilon),
                _delta(spending),
            )
        )
    return sheet(title, headings, rows)


def node_uses_json(ledger: NodeLedger, cap: PrivacyBudget | None = None) -> dict[str, Any]:
    """Return by whom and for what a node's data were used, as plain JSON values.

    Args:
        ledger: The node's.
        cap: What its owner allows in all; None: what each account was admitted under.
    """
    return {
        "location": ledger.location,
        "verified": True,
        "revoked": ledger.revoked,
        "uses": [
            {
                "run": None if each.use is None else each.use.run,
                "app": None if each.use is None else each.use.app,
                "enforcement": None if each.use is None else each.use.enforcement,
                "purpose": None if each.use is None else each.use.purpose,
                "unit": each.unit,
                "data": each.source,
                "first_day": each.first_day,
                "last_day": each.last_day,
                "answers": each.charges,
                "releases": [{**event_to_dict(event), "count": n} for event, n in each.history],
            }
            for each in ledger.uses
        ],
        "relied_upon_the_server": [
            {
                "run": reliance.use.run,
                "app": reliance.use.app,
                "purpose": reliance.use.purpose,
                "data": reliance.source,
                "clipping_norm": reliance.clipping_norm,
                "first_day": reliance.first_day,
                "last_day": reliance.last_day,
                "answers": reliance.answers,
            }
            for reliance in ledger.reliances
        ],
        "accounts": [_account_json(each) | {"left": _left(each, cap)} for each in ledger.spendings],
    }


def node_uses_tables(ledger: NodeLedger, cap: PrivacyBudget | None = None) -> list[Table]:
    """Return the same as tables for the terminal: the uses, and what is left.

    Where answers left without noise, one more says so.
    """
    uses = []
    for each in ledger.uses:
        run = "not written down" if each.use is None else str(each.use.run)
        app = "not known" if each.use is None else _app(each.use)
        purpose = "" if each.use is None else _PURPOSES.get(each.use.purpose, each.use.purpose)
        days = sorted({each.first_day, each.last_day})
        row = (run, app, purpose, each.source, each.unit, " to ".join(days), str(each.charges))
        uses.append(row)
    left = []
    for spending in ledger.spendings:
        of = spending.budget if cap is None else cap
        rest = _left(spending, cap)
        left.append(
            (
                ", ".join(sorted(spending.sources)),
                spending.unit,
                _spent(spending),
                "no cap" if rest is None else f"{math.floor(rest * 1e4) / 1e4:.4f}",
                "no cap" if of is None else brief_epsilon(of.epsilon),
                _delta(spending),
            )
        )
    tables = [
        sheet("Uses of the data", ("run", "app", "for", "data", "unit", "days", "answers"), uses),
        sheet("Epsilon", ("data", "unit", "spent", "left", "of", "delta"), left),
    ]
    if ledger.reliances:
        tables.append(_reliances_table(ledger.reliances))
    return tables


def _app(use: Use) -> str:
    """Return which app asked, and what kept it to the charge where that was a gate.

    Of a bundle's hash the first digits: all 64 would fill the column, and `--json` has them.
    """
    app = _WHOLE_HASH.sub(r"@\1...", use.app or "not known")
    return app if use.enforcement is None else f"{app} ({use.enforcement})"


def _reliances_table(reliances: Sequence[Reliance]) -> Table:
    """Return the answers that were clipped alone, as a table."""
    headings = ("run", "app", "for", "data", "days", "clipped to", "answers")
    rows = []
    for reliance in reliances:
        use = reliance.use
        days = sorted({reliance.first_day, reliance.last_day})
        rows.append(
            (
                str(use.run),
                _app(use),
                _PURPOSES.get(use.purpose, use.purpose),
                reliance.source,
                " to ".join(days),
                f"{reliance.clipping_norm:g}",
                str(reliance.answers),
            )
        )
    return sheet("Relied upon the server's noise, no epsilon of this site's own", headings, rows)


def _left(spending: Spending, cap: PrivacyBudget | None) -> float | None:
    """Return the epsilon that is left; 0 where no bound of what was spent is known.

    None where nothing limits all runs together.
    """
    budget = spending.budget if cap is None else cap
    if budget is None:
        return None
    bounds = spending.epsilon()
    return max(budget.epsilon - bounds.best, 0.0) if bounds.by_name else 0.0


def _limit(spending: Spending) -> str:
    if spending.budget is None:
        return "runs that no cap limits together,"
    return f"at most {brief_epsilon(spending.budget.epsilon)}"


def _delta(spending: Spending) -> str:
    assert spending.first_limit is not None  # each charge brings one
    return delta_rounded_up(spending.first_limit.delta)


def _ends_first(spending: Spending) -> float:
    left = _left(spending, None)
    return math.inf if left is None else left


def _spent(spending: Spending) -> str:
    bounds = spending.epsilon()
    return rounded_up(bounds.best) if bounds.by_name else "no bound known"


def _account_json(spending: Spending) -> dict[str, Any]:
    assert spending.first_limit is not None  # each charge brings one
    bounds = spending.epsilon()
    return {
        "unit": spending.unit,
        "sources": sorted(spending.sources),
        "fingerprints": sorted(spending.fingerprints),
        "charges": spending.charges,
        "releases": [{**event_to_dict(event), "count": n} for event, n in spending.history],
        "epsilon": bounds.by_name,
        "quoted": bounds.best_name,
        "budget": None if spending.budget is None else spending.budget.epsilon,
        "delta": spending.first_limit.delta,
    }
