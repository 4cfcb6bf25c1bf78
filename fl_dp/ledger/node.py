"""The ledger that a node keeps: what its own data have spent, over rounds, restarts and runs.

The server's ledger belongs to one training. This one belongs to the data: each release that was
made from them is written here before it happens, by whichever run, and a release that would exceed
the budget is refused. It lies in a file of the node's own; neither Flower nor the server keeps it.

    >>> with NodeLedger.open("/data/ledger.db") as ledger:
    ...     ledger.charge(account, event, count=10, budget=budget, what="round 3")
    ...     ...  # train, release

Where nothing at all may depend on the data before the charge, not even whether they are somebody
else's, it is decided by the name of their source (`charge_unread`), and the data are named when
they were read (`name_data`). Data that have spent their budget under another name are then answered
for by noise alone, which spends nothing.

Budgets may be asked for, and noise may change, after earlier releases were seen. Two rules hold
then, each with its share of delta, and a release passes that satisfies one of them:

- all releases so far have the parameters of the first one; how many of them fit is counted by
  privacy-loss distributions (at 0.9 delta);
- otherwise a Renyi filter whose order was fixed at the first release (at 0.1 delta), valid for
  whatever is chosen adaptively (Feldman and Zrnic 2021).

Together they keep (epsilon, delta) where epsilon was fixed before the first release: by the owner's
cap, or by a first budget that no later one exceeds. The outcomes in which the first rule passes all
releases are those of a process that stops where the first rule does; how many releases of one kind
it makes at most is fixed beforehand. In all others the last release, and so each one before it,
passed the filter. The hockey-stick divergence is a sum over outcomes, here of both kinds.

Without a cap, a budget that grows is chosen after a look at what was released. The first rule
then says nothing: the number of releases is no longer fixed beforehand, so that it may be asked at
the worst moment. The second does: with P and Q the law of all that was released for two neighbours,
L the log of their ratio so far, D the sum of the divergences of order a and
c = (1 - 1/a)^(a - 1) / a,

    (1 - e^(epsilon - L))+ <= c e^((a - 1) (L - epsilon)),

and e^((a - 1) (L - D)) is a supermartingale under P. So at whatever moment a node stops, and with
the epsilon of that moment, `epsilon_at_order(D, a, delta)`, the sum over outcomes of P's excess
over e^epsilon times Q's is at most delta. That running bound, an odometer, is what is quoted where
a budget grew, with a cap or without: the ledger does not know since when there is one.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Required, Self, TypedDict, Unpack

from fl_dp.accounting import (
    EpsilonBounds,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyBudgetExhausted,
    PrivacyEvent,
    epsilon,
    freeze,
    tight_epsilon,
)
from fl_dp.accounting.budget import DECLARED_SHARE
from fl_dp.accounting.events import FrozenHistory, event_to_dict, release_from_dict
from fl_dp.accounting.filters import best_filter_order
from fl_dp.accounting.loss_distributions import SEARCH_INTERVAL
from fl_dp.accounting.renyi import (
    divergence_at_order,
    epsilon_at_order,
    renyi_divergences,
    renyi_epsilon,
)

from .chain import ChainedLedger
from .entries import LedgerEntry, require_printable, require_schema, today
from .store import LedgerStore
from .witness import Witness

NODE_SCHEMA = 3  # 1: a record was an `example`; 2: an entry was a `record`, too
_UNITS = ("client", "record")
_MOST_RELEASES = 10_000_000
_MOST_ENTRIES = 2**63
_ROUNDING = 1e-12  # relative
_AHEAD = 1.25  # times what is asked for: certified at once, so that few questions compute
# By event, epsilon, delta and relation: number of releases of one kind that is known to fit.
_CERTIFIED: dict[tuple[PrivacyEvent, float, float, NeighboringRelation], int] = {}


@dataclass(frozen=True, kw_only=True)
class Use:
    """Purpose of a charge, and on whose behalf, for the owner of the data.

    Attributes:
        run: Flower's id of the run.
        purpose: Type of the message that asked, for instance `train`.
        app: The app that asked, as far as the node knew it.
    """

    run: int
    purpose: str
    app: str | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a text is empty or can't be printed.
        """
        require_printable(self.purpose)
        if self.app is not None:
            require_printable(self.app)


@dataclass(kw_only=True, eq=False)
class UseOfData:
    """Charges of one use to one account, summed up. Days are all that a ledger knows of time.

    Attributes:
        use: Run, app and purpose; None where the charge does not say.
        unit: `record` or `client`.
        source: Name of the data.
        first_day: Of the charges, in UTC.
        last_day: Of the charges, in UTC.
        charges: How many there were.
        releases: Each kind of release, with its count.
    """

    use: Use | None
    unit: str
    source: str
    first_day: str
    last_day: str
    charges: int = 0
    releases: Counter[PrivacyEvent] = field(default_factory=Counter)

    @property
    def history(self) -> FrozenHistory:
        """Every release, merged and in one fixed order."""
        return freeze(self.releases)


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The state of a node's store of secure sums.

    Attributes:
        count: Marks that it ever held.
        last: Hash over all of them, in hex.
    """

    count: int
    last: str


class ChargeTerms(TypedDict, total=False):
    """Keywords of a charge, besides whose data it is for and of what event."""

    budget: Required[PrivacyBudget]
    what: Required[str]
    count: int
    neighboring_relation: NeighboringRelation
    use: Use | None


@dataclass(frozen=True, kw_only=True)
class Account:
    """Whose releases add up: all data that ever shared a source or a fingerprint.

    A source that comes with another fingerprint has changed, and most of its records are likely to
    be the same; a fingerprint under another source is the same data elsewhere. Both go on spending
    from where they were.

    Attributes:
        unit: `record` or `client` (the node's whole data).
        source: Where the data come from: a name that stays the same when they change.
        fingerprint: Of the data themselves; None if unknown.
    """

    unit: str
    source: str
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If the unit is unknown or a name is empty or can't be printed.
        """
        if self.unit not in _UNITS:
            raise ValueError(f"unit must be one of {', '.join(_UNITS)}, got '{self.unit}'")
        for name in (self.source, self.fingerprint):
            if name is not None:
                require_printable(name)

    @property
    def keys(self) -> tuple[tuple[str, str, str], ...]:
        """The names that it is known by."""
        known = [(self.unit, "source", self.source)]
        if self.fingerprint is not None:
            known.append((self.unit, "fingerprint", self.fingerprint))
        return tuple(known)


@dataclass(kw_only=True, eq=False)
class Spending:
    """The spending of one account.

    Attributes:
        unit: `record` or `client`.
        sources: Names of where its data came from.
        fingerprints: Of its data over time.
        releases: Each kind of release, with its count.
        budget: The largest epsilon that a release was admitted under, and the first delta: later
            ones are admitted at no larger one.
        filter_order: The Renyi order that was fixed at the first release; None: there is none.
        first_epsilon: That of the budget of the first release: fixed before any.
        neighboring_relations: Of the runs that spent.
        charges: How many charges there were, each of one or more releases.
        first: Entry of the first one.
    """

    unit: str
    sources: set[str] = field(default_factory=set)
    fingerprints: set[str] = field(default_factory=set)
    releases: Counter[PrivacyEvent] = field(default_factory=Counter)
    budget: PrivacyBudget | None = None
    filter_order: float | None = None
    neighboring_relations: set[NeighboringRelation] = field(default_factory=set)
    charges: int = 0
    first: int = _MOST_ENTRIES
    first_epsilon: float = 0.0

    @property
    def history(self) -> FrozenHistory:
        """Every release, merged and in one fixed order."""
        return freeze(self.releases)

    def epsilon(self) -> EpsilonBounds:
        """Return what was spent so far, at the account's delta.

        Of releases of one kind, as if their number had been fixed beforehand: while its owner may
        still stop or go on, what holds is the first budget. With noise that changed, or a budget
        that grew, it is a bound that holds at every look: no ledger knows whether a cap
        was there before.
        """
        if self.budget is None:
            return EpsilonBounds(naive=0.0)
        relation, history, delta = (
            _worst(self.neighboring_relations),
            self.history,
            self.budget.delta,
        )
        if len(history) == 1 and self.budget.epsilon <= self.first_epsilon:
            return epsilon(history, delta, neighboring_relation=relation)
        if self.filter_order is None:
            return EpsilonBounds()
        spent, share = self._divergence(history, relation), (1.0 - DECLARED_SHARE) * delta
        return EpsilonBounds(filter=epsilon_at_order(spent, self.filter_order, share))

    def would_exceed(
        self,
        event: PrivacyEvent,
        *,
        count: int,
        budget: PrivacyBudget,
        neighboring_relation: NeighboringRelation,
    ) -> bool:
        """Tell whether `count` more of `event` would exceed `budget`."""
        delta = budget.delta if self.budget is None else min(budget.delta, self.budget.delta)
        relation = _worst(self.neighboring_relations | {neighboring_relation})
        after = freeze(self.releases + Counter({event: count}))
        if len(after) == 1:
            ((only, times),) = after
            if _fit(only, times, budget.epsilon, DECLARED_SHARE * delta, relation):
                return False
        if self.filter_order is None:
            return True
        allowed = divergence_at_order(
            budget.epsilon, self.filter_order, (1.0 - DECLARED_SHARE) * delta
        )
        # Not `>`: a divergence that is infinite or undefined has to be refused.
        return not self._divergence(after, relation) <= allowed * (1.0 + _ROUNDING)

    def _divergence(self, history: FrozenHistory, relation: NeighboringRelation) -> float:
        """Return what a history adds up to at the filter's order."""
        assert self.filter_order is not None  # the caller has checked
        orders = (self.filter_order,)
        return float(
            sum(times * renyi_divergences(each, relation, orders)[0] for each, times in history)
        )

    def absorb(self, other: Spending) -> None:
        """Take in another account's spending: they turned out to be one."""
        self.sources |= other.sources
        self.fingerprints |= other.fingerprints
        self.releases += other.releases
        self.neighboring_relations |= other.neighboring_relations
        self.charges += other.charges
        if other.budget is not None:
            self.allow(other.budget, earlier=other.first < self.first)
        if other.first < self.first:
            self.first, self.filter_order = other.first, other.filter_order
            self.first_epsilon = other.first_epsilon

    def allow(self, budget: PrivacyBudget, *, earlier: bool = False) -> None:
        """Take in a budget that a release was admitted under."""
        # The largest bounds every epsilon that a release was admitted under; delta stays the first.
        if self.budget is not None:
            first = budget if earlier else self.budget
            budget = PrivacyBudget(
                epsilon=max(budget.epsilon, self.budget.epsilon), delta=first.delta
            )
        self.budget = budget


class ConsentRevoked(PrivacyBudgetExhausted):
    """The owner of the data has revoked every use; nothing was released or charged."""


class BudgetExpired(PrivacyBudgetExhausted):
    """The day has come from which the owner's budget is gone; nothing was released or charged."""


class NodeLedger(ChainedLedger):
    """The charges of a node's data. Open it with `open` (to spend) or `read` (to look).

    Attributes:
        expires: The first day, in UTC, on which nothing is charged any more; None: never.
    """

    first_entry = "node's charges"

    def __init__(self, store: LedgerStore, witness: Witness | None = None) -> None:
        """Use `open` or `read` instead."""
        super().__init__(store, witness)
        self._by_key: dict[tuple[str, str, str], Spending] = {}
        # By unit and source alone: what decides before the data are read.
        self._by_source: dict[tuple[str, str], Spending] = {}
        self._unread: dict[int, dict[str, Any]] = {}
        self._revoked: str | None = None
        self._marks: dict[str, Marks] = {}
        self._uses: dict[tuple[Use | None, str, str], UseOfData] = {}
        self._charged: set[tuple[str, str, str]] = set()
        self.expires: date | None = None

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        witness: Witness | None = None,
        expires: date | None = None,
    ) -> Self:
        """Open a node's ledger to spend from, creating it if there is none.

        Args:
            location: An SQLite file or a SQLAlchemy URL, as for `PrivacyLedger.open`. Keep it as
                long as the data.
            witness: A second place that is told of each entry, and that the ledger is compared with
                now; see `witness_at`.
            expires: The first day, in UTC, on which nothing is charged any more.

        Raises:
            FileNotFoundError: If the file's folder does not exist.
            LedgerCorrupted: If it is no node's ledger, an entry does not match the chain, or its
                witness knows of another state.
            LedgerUnavailable: If the disk or the database fails, or the witness.
            ValueError: If the witness lies beside the ledger.
        """
        ledger = cls(LedgerStore.writable(location), witness)
        ledger.expires = expires
        with ledger._first_transaction() as connection:
            if not ledger._entries:
                ledger._append(connection, {"kind": "node", "schema": NODE_SCHEMA})
        return ledger

    @classmethod
    def is_one(cls, location: str | Path) -> bool:
        """Tell whether a ledger is a node's, and not a training's.

        Raises:
            FileNotFoundError: If there is no such file.
            LedgerCorrupted: If it can't be read.
        """
        entries = _entries_at(location)
        return bool(entries) and entries[0].fields.get("kind") == "node"

    @classmethod
    def day_of_revocation(cls, location: str | Path) -> str | None:
        """Return the day on which a ledger's owner revoked every use; None if not, or without one.

        Quick, and without verifying the chain: each charge verifies it.

        Raises:
            LedgerCorrupted: If it can't be read.
            LedgerUnavailable: If the disk or the database fails.
        """
        entries = _entries_if_any(location)
        revoked = (each.fields for each in entries if '"revoked"' in each.payload)
        return next((str(each["day"]) for each in revoked if each["kind"] == "revoked"), None)

    @classmethod
    def marks_of_store(cls, location: str | Path, store: str) -> Marks | None:
        """Return the last state that a ledger knows of a store of secure sums; None without one.

        Quick, and without verifying the chain: `note_marks` verifies it.

        Raises:
            LedgerCorrupted: If it can't be read.
            LedgerUnavailable: If the disk or the database fails.
        """
        entries = _entries_if_any(location)
        marks = (each.fields for each in reversed(entries) if '"marks"' in each.payload)
        found = (each for each in marks if each["kind"] == "marks" and each["store"] == store)
        return next((Marks(count=each["count"], last=each["last"]) for each in found), None)

    @property
    def spendings(self) -> tuple[Spending, ...]:
        """The spending of each account, in the order of their first release, as last read."""
        distinct = {id(each): each for each in self._by_key.values()}
        return tuple(sorted(distinct.values(), key=lambda each: each.first))

    @property
    def revoked(self) -> str | None:
        """The day on which every further use was revoked, as last read; None if it was not."""
        return self._revoked

    @property
    def uses(self) -> tuple[UseOfData, ...]:
        """By whom and for what the data were used, in the order of the first charge."""
        return tuple(self._uses.values())

    def revoke(self) -> None:
        """Write down that nothing is ever charged again.

        It can't be taken back: an owner who agrees later begins a new ledger, with a cap that is
        lower by what this one has spent.

        Raises:
            LedgerUnavailable: If it can't be written.
            ValueError: If it was revoked before.
        """
        with self._transaction() as connection:
            if self._revoked is not None:
                raise ValueError(f"every use was revoked already, on {self._revoked}")
            self._append(connection, {"kind": "revoked", "day": today()})

    def note_marks(self, store: str, marks: Marks) -> None:
        """Write down how far a store of secure sums has come: an older copy of it is known by that.

        Nothing is written if it has come further by another process.

        Args:
            store: Its name.
            marks: Its state.

        Raises:
            LedgerUnavailable: If it can't be written; then nothing may be answered.
        """
        with self._transaction() as connection:
            known = self._marks.get(store)
            if known is None or known.count < marks.count:
                self._append(connection, {"kind": "marks", "store": store, **asdict(marks)})

    def spending(self, account: Account) -> Spending:
        """Return what an account has spent so far, as of now.

        Of accounts that have nothing in common so far but that `account` joins, all together.
        """
        with self._transaction():
            return self._joined(account)

    def spending_of_source(self, account: Account) -> Spending:
        """Return what decides whether `charge_unread` refuses; it depends on no record."""
        with self._transaction():
            return self._of_source(account)

    def has_charged(self, account: Account, what: str) -> bool:
        """Tell whether a charge of that name was made to an account's source, as of now."""
        with self._transaction():
            return (account.unit, account.source, what) in self._charged

    def charge(self, account: Account, event: PrivacyEvent, **terms: Unpack[ChargeTerms]) -> None:
        """Write releases to disk as spent, before they are made; whatever happens then, they are.

        Args:
            account: Whose data.
            event: What one release is charged as.
            **terms: `budget`, over everything that the account ever spends; `what`, a name for the
                entries, for instance the run and the round; `count`, how many releases, 1 unless
                given; `neighboring_relation`, which data are neighbours, zero-out unless given;
                `use`, for what and on whose behalf.

        Raises:
            PrivacyBudgetExhausted: If it would exceed the budget; then nothing is written.
            ConsentRevoked: If the owner has revoked every use; then nothing is written.
            BudgetExpired: If the budget has ended; then nothing is written.
            LedgerUnavailable: If it can't be written; then nothing may be released.
            ValueError: If an argument is out of range.
        """
        self._charge(account, event, unread=False, **terms)

    def charge_unread(
        self, account: Account, event: PrivacyEvent, **terms: Unpack[ChargeTerms]
    ) -> int:
        """Write releases to disk as spent before their data are read: the source alone decides.

        Whether it is refused, and so what is seen of that, depends on no record: not even by way of
        a fingerprint that another source has, now or in earlier charges.

        Args:
            account: Whose data; its fingerprint is not looked at.
            event: What one release is charged as.
            **terms: As in `charge`; the budget is over everything that was ever charged to this
                source.

        Returns:
            The charge's number, for `name_data`.

        Raises:
            PrivacyBudgetExhausted: If it would exceed the budget; then nothing is written.
            ConsentRevoked: If the owner has revoked every use; then nothing is written.
            BudgetExpired: If the budget has ended; then nothing is written.
            ValueError: If an argument is out of range.
        """
        unnamed = Account(unit=account.unit, source=account.source)
        return self._charge(unnamed, event, unread=True, **terms)

    def name_data(self, charge: int, fingerprint: str) -> bool:
        """Say which data a charge was for, and return whether they may be released.

        Args:
            charge: As from `charge_unread`; named once.
            fingerprint: Of the data.

        Returns:
            False if everything that these data were ever charged, under any source, would exceed
            the budget: then only noise may be released, and the charge no longer counts as spent
            by the data. It goes on counting for `charge_unread`.

        Raises:
            ValueError: If there is no such charge, or it was named.
        """
        with self._transaction() as connection:
            if charge not in self._unread:
                raise ValueError(f"entry {charge} is no charge that waits for a name of its data")
            fields = self._unread[charge]
            event, count = release_from_dict(fields)
            spending = self._joined(
                Account(unit=fields["unit"], source=fields["source"], fingerprint=fingerprint)
            )
            # It is among the spent already: the question is whether it fits behind all the others.
            spending.releases -= Counter({event: count})
            released = not spending.would_exceed(
                event,
                count=count,
                budget=PrivacyBudget(**fields["budget"]),
                neighboring_relation=NeighboringRelation(fields["neighboring_relation"]),
            )
            self._append(
                connection,
                {
                    "kind": "data",
                    "charge": charge,
                    "fingerprint": fingerprint,
                    "released": released,
                },
            )
        return released

    def _charge(
        self,
        account: Account,
        event: PrivacyEvent,
        *,
        unread: bool,
        budget: PrivacyBudget,
        what: str,
        count: int = 1,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
        use: Use | None = None,
    ) -> int:
        require_printable(what)
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        if self.expires is not None and today() >= self.expires.isoformat():
            raise BudgetExpired(
                f"{what} is not paid for: the budget of '{account.source}' ended on {self.expires}"
            )
        # Before the lock is taken, which others wait for.
        first_order = filter_order(event, budget, neighboring_relation)
        with self._transaction() as connection:
            if self._revoked is not None:
                raise ConsentRevoked(
                    f"{what} is not allowed: the owner revoked every use on {self._revoked}"
                )
            spending = self._of_source(account) if unread else self._joined(account)
            order = spending.filter_order
            if not spending.charges:
                order = spending.filter_order = first_order
            if spending.would_exceed(
                event, count=count, budget=budget, neighboring_relation=neighboring_relation
            ):
                raise PrivacyBudgetExhausted(
                    f"{what} would exceed epsilon {budget.epsilon:.4g} at delta {budget.delta:.3g} "
                    f"for the data of '{account.source}', which have been charged "
                    f"{spending.charges} times"
                )
            entry = self._append(
                connection,
                {
                    "kind": "charge",
                    "unit": account.unit,
                    "source": account.source,
                    "fingerprint": account.fingerprint,
                    "what": what,
                    **event_to_dict(event),
                    "count": count,
                    "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
                    "neighboring_relation": str(neighboring_relation),
                    "filter_order": order,
                    "day": today(),  # for its owner; a time would show how long training took
                    **({"unread": True} if unread else {}),
                    **({} if use is None else {"use": asdict(use)}),
                },
            )
        return entry.sequence

    def _of_source(self, account: Account) -> Spending:
        """Return what was charged under a source's name, as a copy."""
        alone = Spending(unit=account.unit)
        if (account.unit, account.source) in self._by_source:
            alone.absorb(self._by_source[account.unit, account.source])
        return alone

    def _joined(self, account: Account) -> Spending:
        """Return the spending of all that `account` is known by, as a copy."""
        joined = Spending(unit=account.unit)
        found = [self._by_key[key] for key in account.keys if key in self._by_key]
        for each in {id(each): each for each in found}.values():
            joined.absorb(each)
        return joined

    def _replay(self, sequence: int, fields: dict[str, Any]) -> None:
        kind = fields["kind"]
        if (kind == "node") != (sequence == 1):
            raise ValueError("it is no node's ledger, which says so in its first entry alone")
        match kind:
            case "node":
                require_schema(fields["schema"], NODE_SCHEMA)
            case "charge":
                self._replay_charge(sequence, fields)
            case "data":
                self._replay_name(fields)
            case "revoked":
                require_printable(fields["day"])
                self._revoked = fields["day"]
            case "marks":
                self._marks[fields["store"]] = Marks(count=fields["count"], last=fields["last"])
            case _:
                raise ValueError(f"an entry of kind '{kind}' is unknown to this version")

    def _replay_charge(self, sequence: int, fields: dict[str, Any]) -> None:
        account = Account(
            unit=fields["unit"], source=fields["source"], fingerprint=fields["fingerprint"]
        )
        spending = self._joined(account)
        alone = self._of_source(account)
        # Charged twice over: to all that share a name, and to the source, which decides unread.
        event, count = release_from_dict(fields)
        for each in (spending, alone):
            if not each.charges:
                each.first, each.filter_order = sequence, fields["filter_order"]
                each.first_epsilon = fields["budget"]["epsilon"]
            each.sources.add(account.source)
            each.releases[event] += count
            each.neighboring_relations.add(NeighboringRelation(fields["neighboring_relation"]))
            each.allow(PrivacyBudget(**fields["budget"]))
            each.charges += 1
        self._by_source[account.unit, account.source] = alone
        self._know(spending, account)
        self._charged.add((account.unit, account.source, fields["what"]))
        self._replay_use(account, fields)
        if fields.get("unread"):
            self._unread[sequence] = fields

    def _replay_use(self, account: Account, fields: dict[str, Any]) -> None:
        use = Use(**fields["use"]) if "use" in fields else None
        day = str(fields.get("day", "unknown"))
        found = self._uses.setdefault(
            (use, account.unit, account.source),
            UseOfData(
                use=use, unit=account.unit, source=account.source, first_day=day, last_day=day
            ),
        )
        found.first_day, found.last_day = min(found.first_day, day), max(found.last_day, day)
        found.charges += 1
        event, count = release_from_dict(fields)
        found.releases[event] += count

    def _replay_name(self, fields: dict[str, Any]) -> None:
        charged = self._unread.pop(fields["charge"])
        account = Account(
            unit=charged["unit"], source=charged["source"], fingerprint=fields["fingerprint"]
        )
        spending = self._joined(account)
        if not fields["released"]:  # noise went out instead: the source stays charged, the data not
            spending.releases -= Counter(dict([release_from_dict(charged)]))
        self._know(spending, account)

    def _know(self, spending: Spending, account: Account) -> None:
        """Find a spending by every name that it has."""
        if account.fingerprint is not None:
            spending.fingerprints.add(account.fingerprint)
        for source in spending.sources:
            self._by_key[account.unit, "source", source] = spending
        for fingerprint in spending.fingerprints:
            self._by_key[account.unit, "fingerprint", fingerprint] = spending


def _entries_at(location: str | Path) -> list[LedgerEntry]:
    """Return the entries of a ledger, unverified."""
    store = LedgerStore.readable(location)
    try:
        with store.transaction() as connection:
            return store.entries_from(connection, 0)
    finally:
        store.close()


def _entries_if_any(location: str | Path) -> list[LedgerEntry]:
    """Return the entries of a ledger, unverified; none where there is no file yet."""
    try:
        return _entries_at(location)
    except FileNotFoundError:
        return []


def _fit(
    event: PrivacyEvent,
    count: int,
    target_epsilon: float,
    delta: float,
    relation: NeighboringRelation,
) -> bool:
    """Tell whether `count` releases of one kind fit a budget.

    A few more than asked for are looked at, so that most later questions compare two counters.
    """
    asked = (event, target_epsilon, delta, relation)
    if count <= _CERTIFIED.get(asked, 0):
        return True
    for certified, interval in (
        (math.ceil(_AHEAD * count), SEARCH_INTERVAL),
        (count, SEARCH_INTERVAL),
        (count, None),
    ):
        history = freeze({event: certified})
        if (
            renyi_epsilon(history, delta, relation) <= target_epsilon
            or tight_epsilon(history, delta, neighboring_relation=relation, interval=interval)
            <= target_epsilon
        ):
            _CERTIFIED[asked] = certified
            return True
    return False


def filter_order(
    event: PrivacyEvent, budget: PrivacyBudget, relation: NeighboringRelation
) -> float | None:
    """Return the order at which as many releases as fit the budget spend least.

    A ledger fixes it at its first release, and keeps it whatever follows.
    """
    delta = (1.0 - DECLARED_SHARE) * budget.delta
    count = 1
    while (
        count < _MOST_RELEASES
        and renyi_epsilon(freeze({event: 2 * count}), delta, relation) <= budget.epsilon
    ):
        count *= 2
    try:
        return best_filter_order({event: count}, delta, neighboring_relation=relation)
    except ValueError:  # no Renyi bound is known for it
        return None


def _worst(relations: set[NeighboringRelation]) -> NeighboringRelation:
    """Return the relation under which one unit moves most."""
    return max(relations, key=lambda relation: relation.distance)
