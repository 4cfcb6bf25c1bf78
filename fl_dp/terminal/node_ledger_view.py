"""A node's ledger for its owner: what the node's data have spent, over all runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from fl_dp.accounting import PrivacyBudget, PrivacyEvent
from fl_dp.accounting.events import event_to_dict
from fl_dp.guarantee import Against, Guarantee
from fl_dp.ledger import NodeLedger
from fl_dp.ledger.node import Reliance, Spending, Use, UseOfData
from fl_dp.promise import brief_epsilon, delta_rounded_up, rounded_up
from fl_dp.statement.sentences import ACCOUNTANTS
from fl_dp.statement.words import describe_event

from .bounds_table import bounds_json
from .sheets import sheet

_WHOLE_HASH = re.compile(r"@([0-9a-f]{12})[0-9a-f]{52}$")
_PURPOSES = {
    "train": "training",
    "evaluate": "evaluation",
    "query.fl_dp_statistic": "a statistic",
}


def guarantee_at_node(spending: Spending) -> Guarantee:
    """Return what an account of a node has spent of its cap."""
    assert spending.first_limit is not None  # each charge brings one
    bounds = spending.epsilon()
    relations = sorted(spending.neighboring_relations, key=lambda relation: relation.distance)
    together = Guarantee.together(
        None, spending.first_limit.delta, unit=spending.unit, neighbours=relations[-1]
    )
    return replace(
        together,
        spent=bounds.best if bounds.by_name else None,
        budget=None if spending.budget is None else spending.budget.epsilon,
    )


def node_ledger_json(ledger: NodeLedger) -> dict[str, Any]:
    """Return what every account has spent, as plain JSON values."""
    return {
        "location": ledger.location,
        "verified": True,
        "last_hash": ledger.anchor.hash,
        "revoked": ledger.revoked,
        "accounts": [_account_json(spending) for spending in ledger.spendings],
    }


def node_ledger_summary(ledgers: Sequence[NodeLedger]) -> list[str]:
    """Return what an owner asks first, one line each: verified, spent of what, revoked."""
    spendings = [spending for ledger in ledgers for spending in ledger.spendings]
    lines = ["Chains verified" if len(ledgers) > 1 else "Chain verified"]
    least = min(spendings, key=_remaining, default=None)
    if least is None:
        lines.append("Nothing was spent")
    else:
        bounds = least.epsilon()
        terms = guarantee_at_node(least).terms
        line = f"Spent: epsilon {_spent(least)} of {_limit(least)} {terms}"
        if bounds.by_name:
            line += f", by {ACCOUNTANTS.get(bounds.best_name)}"
        if len(spendings) > 1:
            line += f"; of {len(spendings)} accounts the one with least left"
        lines.append(line)
    for ledger in ledgers:
        if ledger.revoked is not None:
            lines.append(f"Every use was revoked on {ledger.revoked}: nothing is charged any more")
    return lines


def node_ledger_table(ledgers: Sequence[NodeLedger], title: str) -> Table:
    """Return the accounts of one or more ledgers as a table for the terminal."""
    headings = ("data", "unit, neighbours", "releases", "epsilon", "of at most", "delta")
    rows = []
    for spending in [spending for ledger in ledgers for spending in ledger.spendings]:
        releases = (f"{n} x {describe_event(event)}" for event, n in spending.history)
        cap = "no cap"
        if spending.budget is not None:
            cap = brief_epsilon(spending.budget.epsilon)
        sources = ", ".join(sorted(spending.sources))
        epsilon, delta = _spent(spending), _delta(spending)
        rows.append((sources, _units(spending), "\n".join(releases), epsilon, cap, delta))
    return sheet(f"{title}: epsilon, against {Against.OF_EACH_RUN}", headings, rows)


def node_uses_json(ledger: NodeLedger, cap: PrivacyBudget | None = None) -> dict[str, Any]:
    """Return by whom and for what a node's data were used, as plain JSON values.

    Without a cap of the owner's, the budget of each account counts.
    """
    uses = []
    for use in ledger.uses:
        unknown = dict.fromkeys(("run", "app", "enforcement", "purpose"))
        origin = unknown if use.use is None else _origin(use.use)
        uses.append(
            {
                **origin,
                "unit": use.unit,
                "declared_gradients": use.declared_gradients,
                **_data_json(use, use.charges),
                "releases": _releases_json(use.history),
            }
        )
    reliances = [
        {
            "run": reliance.use.run,
            "app": reliance.use.app,
            "purpose": reliance.use.purpose,
            "clipping_norm": reliance.clipping_norm,
            **_data_json(reliance, reliance.answers),
        }
        for reliance in ledger.reliances
    ]
    accounts = []
    for spending in ledger.spendings:
        accounts.append(_account_json(spending) | {"left": _left(spending, cap)})
    return {
        "location": ledger.location,
        "verified": True,
        "revoked": ledger.revoked,
        "uses": uses,
        "relied_upon_the_server": reliances,
        "accounts": accounts,
    }


def _origin(use: Use) -> dict[str, Any]:
    return {
        "run": use.run,
        "app": use.app,
        "enforcement": use.enforcement,
        "purpose": use.purpose,
    }


def node_uses_tables(ledger: NodeLedger, cap: PrivacyBudget | None = None) -> list[Table]:
    """Return the same as tables for the terminal: the uses, and the remaining epsilon.

    One more table lists answers that left without noise, if there are any.
    """
    uses = []
    for use in ledger.uses:
        run, app, purpose = "not written down", "not known", ""
        if use.use is not None:
            run, app, purpose = _origin_words(use.use)
        if use.declared_gradients is not None:
            purpose += f" ({use.declared_gradients}: its author declares that rows are records)"
        uses.append((run, app, purpose, use.source, use.unit, _days(use), str(use.charges)))
    accounts = []
    for spending in ledger.spendings:
        budget = spending.budget if cap is None else cap
        remaining = _left(spending, cap)
        left = "no cap" if remaining is None else f"{math.floor(remaining * 1e4) / 1e4:.4f}"
        of = "no cap" if budget is None else brief_epsilon(budget.epsilon)
        sources = ", ".join(sorted(spending.sources))
        spent, delta = _spent(spending), _delta(spending)
        accounts.append((sources, _units(spending), spent, left, of, delta))
    tables = [
        sheet("Uses of the data", ("run", "app", "for", "data", "unit", "days", "answers"), uses),
        sheet(
            f"Epsilon, against {Against.OF_EACH_RUN}",
            ("data", "unit, neighbours", "spent", "left", "of", "delta"),
            accounts,
        ),
    ]
    if ledger.reliances:
        tables.append(_reliances_table(ledger.reliances))
    return tables


def _origin_words(use: Use) -> tuple[str, str, str]:
    """Return run, app and purpose for a table."""
    return str(use.run), _app(use), _PURPOSES.get(use.purpose, use.purpose)


def _days(used: UseOfData | Reliance) -> str:
    return " to ".join(sorted({used.first_day, used.last_day}))


def _data_json(used: UseOfData | Reliance, answers: int) -> dict[str, Any]:
    return {
        "data": used.source,
        "first_day": used.first_day,
        "last_day": used.last_day,
        "answers": answers,
    }


def _releases_json(history: Iterable[tuple[PrivacyEvent, int]]) -> list[dict[str, Any]]:
    return [{**event_to_dict(event), "count": count} for event, count in history]


def _app(use: Use) -> str:
    """Return the app that asked, and how the charge was enforced if a gate did so.

    Only the first digits of a bundle's hash are shown, as all 64 would fill the column; `--json`
    has them.
    """
    app = _WHOLE_HASH.sub(r"@\1...", use.app or "not known")
    if use.enforcement is None:
        return app
    return f"{app} ({use.enforcement})"


def _reliances_table(reliances: Sequence[Reliance]) -> Table:
    headings = ("run", "app", "for", "data", "days", "clipped to", "answers")
    rows = []
    for reliance in reliances:
        norm, answers = f"{reliance.clipping_norm:g}", str(reliance.answers)
        origin = _origin_words(reliance.use)
        rows.append((*origin, reliance.source, _days(reliance), norm, answers))
    return sheet("Relied upon the server's noise, no epsilon of this site's own", headings, rows)


def _left(spending: Spending, cap: PrivacyBudget | None) -> float | None:
    """Return the remaining epsilon; 0 if no bound of what was spent is known.

    None if nothing limits all runs together.
    """
    budget = spending.budget if cap is None else cap
    if budget is None:
        return None
    bounds = spending.epsilon()
    if not bounds.by_name:
        return 0.0
    return max(budget.epsilon - bounds.best, 0.0)


def _limit(spending: Spending) -> str:
    if spending.budget is None:
        return "runs that no cap limits together,"
    return f"at most {brief_epsilon(spending.budget.epsilon)}"


def _delta(spending: Spending) -> str:
    assert spending.first_limit is not None  # each charge brings one
    return delta_rounded_up(spending.first_limit.delta)


def _remaining(spending: Spending) -> float:
    left = _left(spending, None)
    return math.inf if left is None else left


def _units(spending: Spending) -> str:
    return f"{spending.unit}, {guarantee_at_node(spending).neighbours}"


def _spent(spending: Spending) -> str:
    bounds = spending.epsilon()
    if bounds.by_name:
        return rounded_up(bounds.best)
    return "no bound known"


def _account_json(spending: Spending) -> dict[str, Any]:
    assert spending.first_limit is not None  # each charge brings one
    budget = None if spending.budget is None else spending.budget.epsilon
    return {
        "unit": spending.unit,
        "sources": sorted(spending.sources),
        "fingerprints": sorted(spending.fingerprints),
        "charges": spending.charges,
        "releases": _releases_json(spending.history),
        "budget": budget,
        **bounds_json(spending.epsilon(), spending.first_limit.delta),
    }
