"""A privacy statement against its ledger: the anchor, then every number and sentence anew."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from fl_dp.accounting import NeighboringRelation, PrivacyBudget
from fl_dp.ledger import LedgerAnchor, PrivacyLedger
from fl_dp.plan import RecordPlan

from .of_clients import privacy_statement, statement_markdown
from .of_records import record_statement, record_statement_markdown

_TOLERANCE = 1e-6  # relative: more than other versions of numpy and scipy round differently
# The file's name may have changed, and versions are those of whoever computes.
_NOT_COMPARED = frozenset({"ledger", "versions", "records"})
_SHORT = reprlib.Repr()
_SHORT.maxstring = 60


def records_behind_statement(ledger: PrivacyLedger, statement: Mapping[str, Any]) -> int:
    """Check that a ledger holds what a statement was computed from, and count what came after.

    Args:
        ledger: As read now.
        statement: As `privacy_statement` returned it, from JSON.

    Returns:
        Records that were added since: of a run that is going on, or was stopped.

    Raises:
        LedgerCorrupted: If the ledger's end was cut off, or it is another one.
        ValueError: If the statement has no anchor.
    """
    anchor = LedgerAnchor.of_statement(statement)
    if anchor is None:
        raise ValueError("the privacy statement was computed from no ledger")
    ledger.require_holds(anchor, of="the privacy statement")
    return len(ledger.records) - anchor.records


def statement_differences(ledger: PrivacyLedger | None, statement: Mapping[str, Any]) -> list[str]:
    """Compute a statement anew and name each field in which it differs.

    How often a client was asked (`records`, with DP-SGD inside clients) stands in no ledger of the
    server: the numbers that follow from it are compared, it is taken as stated itself.

    Args:
        ledger: The training's, which holds the statement's anchor; None under DP-SGD alone.
        statement: From JSON.

    Returns:
        One line each; none if all agree.

    Raises:
        LedgerCorrupted: If the ledger does not hold the anchor.
        ValueError: If the statement has no anchor.
    """
    try:
        if ledger is None:
            return list(_differences(statement, _record_statement_anew(statement)))
        behind = records_behind_statement(ledger, statement)
        earlier = ledger.as_of(len(ledger.records) - behind)
        found = list(_differences(statement, privacy_statement(earlier)))
        if "records" in statement:
            records = statement["records"]
            found += _differences(records, _record_statement_anew(records), "records.")
        return found
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the privacy statement can't be read: {error!r}") from error


def statement_page(statement: Mapping[str, Any]) -> str:
    """Return the page that says what a statement says, with that of records where there is one."""
    stated = dict(statement)
    if "ledger_hash" not in stated:
        return record_statement_markdown(stated)
    page = statement_markdown(stated)
    if "records" in stated:
        page += "\n" + record_statement_markdown(stated["records"])
    return page


def _record_statement_anew(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statement of records that follows from the parameters that one states."""
    plan = RecordPlan(
        budget=PrivacyBudget(**stated["budget"]),
        noise_multiplier=stated["noise_multiplier"],
        sampling_rate=stated["sampling_rate"],
        steps=stated["steps"],
        participations=stated["participations_planned"],
        clipping_norm=stated["clipping_norm"],
        neighboring_relation=NeighboringRelation(stated["neighboring_relation"]),
    )
    anew = record_statement(
        plan,
        participations=stated["participations"],
        num_clients=stated["num_clients"],
        secure_randomness=not stated["insecure"],
    )
    return anew | ({"rounds": stated["rounds"]} if "rounds" in stated else {})


def _differences(stated: Any, anew: Any, where: str = "") -> Iterator[str]:
    if isinstance(stated, Mapping) and isinstance(anew, Mapping):
        for key in sorted({*stated, *anew} - (_NOT_COMPARED if not where else {"versions"})):
            if key not in stated:
                yield f"{where}{key} is missing"
            elif key not in anew:
                yield f"{where}{key} does not belong there"
            else:
                yield from _differences(stated[key], anew[key], f"{where}{key}.")
        return
    if not _same(stated, anew):
        yield f"{where[:-1]} is {_SHORT.repr(stated)} and should be {_SHORT.repr(anew)}"


def _same(stated: Any, anew: Any) -> bool:
    if isinstance(stated, list | tuple) and isinstance(anew, list | tuple):
        return len(stated) == len(anew) and all(map(_same, stated, anew))
    if isinstance(stated, Mapping) and isinstance(anew, Mapping):
        return not any(_differences(stated, anew, "."))
    if type(stated) in (int, float) and type(anew) in (int, float):
        return math.isclose(stated, anew, rel_tol=_TOLERANCE)
    return bool(stated == anew and type(stated) is type(anew))
