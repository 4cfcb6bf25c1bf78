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
from fl_dp.option_errors import OptionError
from fl_dp.plan import Plan, RecordPlan

from .account import AccountState, AccountTerms, first_entry
from .entered import (
    Entered,
    EnteredRecords,
    EnteredSweep,
    EnteredTraining,
    Unprotected,
)
from .entries import require_printable
from .population import AccountPeople, Population, digests_of, made_key
from .spent import AccountLedger
from .state import TrainingState
from .store import LedgerStore
from .witness import Witness


def enter_sweep(
    location: str | Path,
    name: str,
    plans: Mapping[str, Plan],
    *,
    cap: PrivacyBudget | None = None,
    populations: Mapping[str, Population] | None = None,
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
        populations: Each training's people by its name, as for `PrivacyLedger.open`: their clients
            differ where a seed is swept.
        witness: As for `PrivacyLedger.open`.

    Raises:
        PrivacyBudgetExhausted: The account has less left; nothing is written.
        LedgerCorrupted, LedgerUnavailable: As `PrivacyLedger.open`.
        ValueError: The plans can't be joined, a name is taken, or people or clients are not those
            of the account.
    """
    sweep = EnteredSweep.of(plans)
    _enter(location, name, sweep, sweep.fields, populations, names=plans, cap=cap, witness=witness)
    return sweep.budget


def enter_records(
    location: str | Path,
    name: str,
    plan: RecordPlan,
    *,
    cap: PrivacyBudget | None = None,
    population: Population | None = None,
    witness: Witness | None = None,
) -> None:
    """Enter a training by DP-SGD inside clients, whose own ledgers keep the plan's budget.

    Raises as `enter_sweep`, and `OptionError` where each Flower run would have the budget anew.
    """
    if not plan.training:
        raise OptionError(
            "clients' ledgers would count each Flower run of this plan by itself, and the account "
            "counts it once: write RecordPlan(training='NAME'), by which they know it",
            option="training",
        )
    fields = {"kind": "records", "plan": encode(plan)}
    people = None if population is None else {name: population}
    _enter(location, name, EnteredRecords(plan), fields, people, cap=cap, witness=witness)


def enter_unprotected(
    location: str | Path,
    name: str,
    what: str,
    *,
    delta: float,
    cap: PrivacyBudget | None = None,
    population: Population | None = None,
    witness: Witness | None = None,
) -> None:
    """Enter a release without a promise: the account's total is "none" from then on.

    Args:
        location: The account's file or database URL.
        name: Name of the entry.
        what: The release, in words.
        delta: A plan's usual delta, by which the account is made if there is none.
        cap: Refused, as whatever has no promise exceeds it.
        population: As for `PrivacyLedger.open`.
        witness: As for `PrivacyLedger.open`.

    Raises:
        OptionError: The account has a cap, or the name is taken; nothing is written.
        LedgerCorrupted, LedgerUnavailable: As `PrivacyLedger.open`.
    """
    require_printable(what)
    fields = {"kind": "unprotected", "what": what}
    people = None if population is None else {name: population}
    _enter(location, name, Unprotected(what), fields, people, cap=cap, witness=witness, delta=delta)


def require_enterable(
    location: str | Path,
    name: str,
    plan: Plan | RecordPlan | Mapping[str, Plan] | None,
    *,
    delta: float,
    cap: PrivacyBudget | None = None,
    population: Population | None = None,
    witness: Witness | None = None,
) -> None:
    """Check that a training or a sweep could be entered now; nothing is written.

    Args:
        location: The account's file or database URL.
        name: The training's name.
        plan: Its plan, or those of a sweep by name; None: it has no promise.
        delta: As for `enter_unprotected`.
        cap: As for `PrivacyLedger.open`.
        population: The training's people, as for `PrivacyLedger.open`.
        witness: As for `PrivacyLedger.open`.

    Raises:
        PrivacyBudgetExhausted: The account has less left.
        LedgerCorrupted, LedgerUnavailable: As `PrivacyLedger.open`.
        ValueError: The account has another cap or other people, or no bound is known under its cap.
    """
    new: Entered = Unprotected("no promise")
    if isinstance(plan, RecordPlan):
        new = EnteredRecords(plan)
    elif isinstance(plan, Mapping):
        new = EnteredSweep.of(plan)
    elif plan is not None:
        new = EnteredTraining(name, TrainingState(plan))
    store = LedgerStore.existing(location)
    if store is None:
        _account_for(Path(location).name, new, delta, cap).require_room(name, new)
        return
    ledger = AccountLedger(store, witness)
    with ledger, ledger._first_transaction():
        account = ledger.account
        if not ledger.entries:
            account = _account_for(ledger.name, new, delta, cap)
        account.require_cap(cap)
        clients_in(account, name, population, store.file or location)
        account.require_new({name, *new.states})
        account.require_room(name, new)


def _account_for(
    name: str,
    new: Entered,
    delta: float | None,
    cap: PrivacyBudget | None,
    people: AccountPeople | None = None,
) -> AccountState:
    """Return the account that a first entry makes, before it."""
    terms = AccountTerms.of(name, new, cap, people, delta=delta or 0.0)
    return AccountState.made(terms, new)


def _enter(
    location: str | Path,
    name: str,
    new: Entered,
    fields: dict[str, Any],
    populations: Mapping[str, Population] | None,
    *,
    cap: PrivacyBudget | None,
    witness: Witness | None,
    names: Iterable[str] = (),
    delta: float | None = None,
) -> None:
    store = LedgerStore.writable(location)
    ledger, place = AccountLedger(store, witness), store.file or location
    with ledger, ledger._first_transaction() as connection:
        account, made = ledger.account, {}
        if not ledger.entries:
            first = None if not populations else next(iter(populations.values()))
            people = None if first is None else first.keyed(made_key(place))
            account = _account_for(ledger.name, new, delta, cap, people)
            made = first_entry(account.terms)
        entry = {"training": name, **fields}
        clients: dict[str, str] = {}
        for training, population in (populations or {}).items():
            beside = clients.values()
            if digest := clients_in(account, training, population, place, beside=beside):
                clients[training] = digest
        if clients:
            entry["clients"] = clients
        # A restart: an entry is never changed.
        if any(entry.items() <= written.fields.items() for written in ledger.entries):
            return
        account.require_cap(cap)
        account.require_new({name, *names})
        account.require_room(name, new)
        ledger._append(connection, made | entry)


def clients_in(
    account: AccountState,
    name: str,
    population: Population | None,
    place: str | Path,
    *,
    beside: Iterable[str] = (),
) -> str | None:
    """Check a training's people, and return the digest of their clients, if an account can tell.

    Args:
        account: The account.
        name: The training's name.
        population: Its people; None: whoever enters it says that they are the account's.
        place: The account's file or database URL, which leads to its key.
        beside: Digests of trainings that are entered with it.

    Raises:
        OptionError: They are not the account's.
        LedgerUnavailable: The account's key is missing.
    """
    if population is None or account.terms.people is None:
        return None
    people, clients = digests_of(population, place)
    account.require_people(name, people, clients, beside=beside)
    return clients
