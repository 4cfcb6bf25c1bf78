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
from .sentences import UNITS
from .stated_promise import PrivacyStatement, RecordStatement

_TOLERANCE = 1e-6  # relative: more than other versions of numpy and scipy round differently
# Versions depend on the machine that computes, and no ledger knows a model's parameters and inputs.
_OF_ANY_STATEMENT = frozenset({"versions", "shared_parameters", "public_inputs", "failure"})
_NOT_COMPARED = _OF_ANY_STATEMENT | {"ledger", "records"}  # the file's name may have changed
_SHORT = reprlib.Repr()
_SHORT.maxstring = 60


def entries_behind_statement(ledger: SpentLedger, statement: Mapping[str, Any]) -> int:
    """Check that a ledger holds a statement's entries, and count the later ones.

    Returns:
        Number of entries added since: of a run that goes on, or was stopped.

    Raises:
        LedgerCorrupted: The ledger's end was cut off, or it is another one.
        ValueError: The statement has no anchor.
    """
    anchor = LedgerAnchor.from_statement(statement)
    if anchor is None:
        raise ValueError("the privacy statement was computed from no ledger")
    ledger.require_holds(anchor, of="the privacy statement")
    return len(ledger.entries) - anchor.entries


def statement_differences(ledger: SpentLedger | None, statement: Mapping[str, Any]) -> list[str]:
    """Recompute a statement and name each field that differs.

    The server's ledger does not record how often a client was asked (`records`, with DP-SGD inside
    clients). That number is taken from the statement, and what follows from it is compared.

    Returns:
        One line per difference; empty if all agree.

    Raises:
        LedgerCorrupted: The ledger does not hold the anchor.
        ValueError: The statement has no anchor, or can't be read.
    """
    try:
        if ledger is None:
            return list(_differences(statement, _recomputed_record_statement(statement)))
        behind = entries_behind_statement(ledger, statement)
        # Rounds since then have spent more, which is no fault of the statement.
        training = statement["account"]["training"]
        earlier = ledger.as_of(len(ledger.entries) - behind, training=training)
        differences = list(_differences(statement, privacy_statement(earlier).to_dict()))
        if "records" in statement:
            records = statement["records"]
            recomputed = _recomputed_record_statement(records)
            differences += _differences(records, recomputed, "records.")
        return differences
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the privacy statement can't be read: {error!r}") from error


def statement_page(statement: Mapping[str, Any]) -> str:
    """Return a statement's page, as Markdown.

    Raises:
        ValueError: It can't be read.
    """
    has_ledger = LedgerAnchor.from_statement(statement) is not None
    kind = PrivacyStatement if has_ledger else RecordStatement
    with document("privacy statement"):
        return statement_markdown(kind.from_dict(statement))


def read_statement(file: str | Path) -> dict[str, Any]:
    """Read a privacy statement as plain JSON values, for a comparison.

    Raises:
        OSError: It can't be read.
        ValueError: It is no JSON object.
    """
    return read_json_object(file, "privacy statement")


def _recomputed_record_statement(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Recompute a statement of records from its parameters."""
    plan = RecordPlan(
        budget=PrivacyBudget(**stated["budget"]),
        noise_multiplier=stated["noise_multiplier"],
        sampling_rate=stated["sampling_rate"],
        steps=stated["steps"],
        participations=stated["participations_planned"],
        clipping_norm=stated["clipping_norm"],
        neighboring_relation=NeighboringRelation(stated["neighboring_relation"]),
        unit="person" if stated["unit"] == UNITS["person"] else "record",
    )
    recomputed = record_statement(
        plan,
        participations=stated["participations"],
        num_clients=stated["num_clients"],
        secure_randomness=not stated["insecure"],
        declared_gradients=stated.get("declared_gradients"),
        enforcement=_enforcement(stated.get("enforcement")),
    )
    return replace(recomputed, rounds=stated.get("rounds")).to_dict()


def _enforcement(name: str | None) -> Enforcement | None:
    return None if name is None else Enforcement(name)


def _differences(stated: Any, recomputed: Any, path: str = "") -> Iterator[str]:
    if isinstance(stated, Mapping) and isinstance(recomputed, Mapping):
        ignored = _OF_ANY_STATEMENT if path else _NOT_COMPARED
        for key in sorted({*stated, *recomputed} - ignored):
            if key not in stated:
                yield f"{path}{key} is missing"
            elif key not in recomputed:
                yield f"{path}{key} does not belong there"
            else:
                yield from _differences(stated[key], recomputed[key], f"{path}{key}.")
        return
    if not _same(stated, recomputed):
        yield f"{path[:-1]} is {_SHORT.repr(stated)} and should be {_SHORT.repr(recomputed)}"


def _same(stated: Any, recomputed: Any) -> bool:
    if isinstance(stated, list | tuple) and isinstance(recomputed, list | tuple):
        return len(stated) == len(recomputed) and all(map(_same, stated, recomputed))
    if isinstance(stated, Mapping) and isinstance(recomputed, Mapping):
        return not any(_differences(stated, recomputed, "."))
    if type(stated) in (int, float) and type(recomputed) in (int, float):
        try:
            return math.isclose(stated, recomputed, rel_tol=_TOLERANCE)
        except OverflowError:  # an integer beyond all floats
            return False
    return bool(stated == recomputed and type(stated) is type(recomputed))
