"""Entries of an account besides single trainings: on disk before anything of them happens.

    >>> enter_sweep("people.db", "rates", {"rates/0": plan, "rates/1": other})
    >>> enter_unprotected("people.db", "baseline", "a training without noise", delta=1e-5)

The same entry again writes nothing: whoever was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fl_dp.accounting import PrivacyBudget
from fl_dp.codec import encode
from fl_dp.plan import Plan, RecordPlan

from .account import AccountState, AccountTerms, first_entry
from .entered import Entered, EnteredRecords, EnteredSweep, Unprotected
from .entries import require_printable
from .spent import AccountLedger
from .store import LedgerStore
from .witness import Witness


def enter_sweep(
    location: str | Path,
    name: str,
    plans: Mapping[str, Plan],
    *,
    cap: PrivacyBudget | None = None,
    witness: Witness | None = None,
) -> PrivacyBudget:
    """Enter trainings together, before any of them begins, and return what all may spend.

    Privacy: their releases compose by their privacy losses, as all plans are fixed here. Each
    training is then opened by its own name and plan (`PrivacyLedger.open`).

    Args:
        location: The account's file or database URL.
        name: The sweep's name.
        plans: Each training's plan by its name.
        cap: As for `PrivacyLedger.open`.
        witness: As for `PrivacyLedger.open`.

    Raises:
        PrivacyBudgetExhausted: The account has less left; nothing is written.
        LedgerCorrupted, LedgerUnavailable: As `PrivacyLedger.open`.
        ValueError: The plans can't be joined, or a name is taken.
    """
    sweep = EnteredSweep.of(plans)
    _enter(location, name, sweep, sweep.fields, names=plans, cap=cap, witness=witness)
    return sweep.budget


def enter_records(
    location: str | Path,
    name: str,
    plan: RecordPlan,
    *,
    cap: PrivacyBudget | None = None,
    witness: Witness | None = None,
) -> None:
    """Enter a training by DP-SGD inside clients, whose own ledgers keep the plan's budget.

    Raises as `enter_sweep`.
    """
    fields = {"kind": "records", "plan": encode(plan)}
    _enter(location, name, EnteredRecords(plan), fields, cap=cap, witness=witness)


def enter_unprotected(
    location: str | Path,
    name: str,
    what: str,
    *,
    delta: float,
    cap: PrivacyBudget | None = None,
    witness: Witness | None = None,
) -> None:
    """Enter a release without a promise: the account's total is "none" from then on.

    Args:
        location: The account's file or database URL.
        name: Name of the entry.
        what: The release, in words.
        delta: A plan's usual delta, by which the account is made if there is none.
        cap: Refused, as whatever has no promise exceeds it.
        witness: As for `PrivacyLedger.open`.

    Raises:
        OptionError: The account has a cap, or the name is taken; nothing is written.
        LedgerCorrupted, LedgerUnavailable: As `PrivacyLedger.open`.
    """
    require_printable(what)
    fields = {"kind": "unprotected", "what": what}
    _enter(location, name, Unprotected(what), fields, cap=cap, witness=witness, delta=delta)


def _enter(
    location: str | Path,
    name: str,
    new: Entered,
    fields: dict[str, Any],
    *,
    cap: PrivacyBudget | None,
    witness: Witness | None,
    names: Iterable[str] = (),
    delta: float | None = None,
) -> None:
    ledger = AccountLedger(LedgerStore.writable(location), witness)
    with ledger, ledger._first_transaction() as connection:
        account, made = ledger.account, {}
        if not ledger.entries:
            terms = AccountTerms.of(ledger.name, delta or new.delta, cap)
            account, made = AccountState.made(terms, new.neighbours), first_entry(terms)
        entry = {"training": name, **fields}
        # A restart: an entry is never changed.
        if any(entry.items() <= written.fields.items() for written in ledger.entries):
            return
        account.require_cap(cap)
        account.require_new({name, *names})
        account.require_room(name, new)
        ledger._append(connection, made | entry)
