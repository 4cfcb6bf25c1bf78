"""Check of a privacy statement against its ledger: the anchor, then every number and sentence."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fl_dp.accounting import NeighboringRelation, PrivacyBudget
from fl_dp.documents import document
from fl_dp.files import read_json_object
from fl_dp.ledger import LedgerAnchor, SpentLedger
from fl_dp.plan import RecordPlan
from fl_dp.promise import Enforcement

from .markdown import statement_markdown
from .of_clients import privacy_statement
from .of_records import record_statement
from .promise import PrivacyStatement, RecordStatement

_TOLERANCE = 1e-6  # relative: more than other versions of numpy and scipy round differently
# Versions are those of whoever computes, and no ledger knows what a model is made of.
_OF_ANY_STATEMENT = frozenset({"versions", "shared_parameters", "public_inputs", "failure"})
_NOT_COMPARED = _OF_ANY_STATEMENT | {"ledger", "records"}  # the file's name may have changed
_SHORT = reprlib.Repr()
_SHORT.maxstring = 60


def entries_behind_statement(ledger: SpentLedger, statement: Mapping[str, Any]) -> int:
    """Check that a ledger holds what a statement was computed from, and count what came after.

    Args:
        ledger: As read now.
        statement: From JSON.

    Returns:
        Entries that were added since: of a run that is going on, or was stopped.

    Raises:
        LedgerCorrupted: If the ledger's end was cut off, or it is another one.
        ValueError: If the statement has no anchor.
    """
    anchor = LedgerAnchor.stated_in(statement)
    if anchor is None:
        raise ValueError("the privacy statement was computed from no ledger")
    ledger.require_holds(anchor, of="the privacy statement")
    return len(ledger.entries) - anchor.entries


def statement_differences(ledger: SpentLedger | None, statement: Mapping[str, Any]) -> list[str]:
    """Recompute a statement and name each field in which it differs.

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
        behind = entries_behind_statement(ledger, statement)
        # Rounds since then have spent more, which is no fault of the statement.
        earlier = ledger.as_of(len(ledger.entries) - behind)
        found = list(_differences(statement, privacy_statement(earlier).to_dict()))
        if "records" in statement:
            records = statement["records"]
            found += _differences(records, _record_statement_anew(records), "records.")
        return found
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the privacy statement can't be read: {error!r}") from error


def statement_page(statement: Mapping[str, Any]) -> str:
    """Return the page that says what a statement says.

    Args:
        statement: From JSON.

    Raises:
        ValueError: If it can't be read.
    """
    of_clients = LedgerAnchor.stated_in(statement) is not None
    kind = PrivacyStatement if of_clients else RecordStatement
    with document("privacy statement"):
        return statement_markdown(kind.from_dict(statement))


def read_statement(file: str | Path) -> dict[str, Any]:
    """Read a privacy statement, to be compared as it is.

    Raises:
        OSError: If it can't be read.
        ValueError: If it is no JSON object.
    """
    return read_json_object(file, "privacy statement")


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
        declared_gradients=stated.get("declared_gradients"),
        enforcement=_enforcement(stated.get("enforcement")),
    )
    return replace(anew, rounds=stated.get("rounds")).to_dict()


def _enforcement(said: str | None) -> Enforcement | None:
    return None if said is None else Enforcement(said)


def _differences(stated: Any, anew: Any, where: str = "") -> Iterator[str]:
    if isinstance(stated, Mapping) and isinstance(anew, Mapping):
        for key in sorted({*stated, *anew} - (_OF_ANY_STATEMENT if where else _NOT_COMPARED)):
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
        try:
            return math.isclose(stated, anew, rel_tol=_TOLERANCE)
        except OverflowError:  # an integer beyond all floats
            return False
    return bool(stated == anew and type(stated) is type(anew))
