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

Two limits are kept apart. The owner's cap is over everything that is ever charged for the data; the
budget that a run asked for is over that run alone. Noise may change after earlier releases were
seen, and so may a limit. So each limit has two rules, each with its share of delta, and a release
passes that satisfies one of them:

- all releases so far have the parameters of the first one: how many of them fit the limit that
  was there before it, or a smaller one now, is counted by privacy-loss distributions (at 0.9
  delta);
- a `RenyiOdometer` stays within the limit (at 0.1 delta), whatever was chosen adaptively.

Together they keep (epsilon, delta). The outcomes in which the first rule passes all releases are
those of a process that stops where the first rule does; how many releases of one kind it makes at
most is fixed beforehand. In all others the last release passed the second rule. The hockey-stick
divergence is a sum over outcomes, here of both kinds.

A limit that grows is chosen after a look at what was released, and may be asked for at the worst
moment. So the first rule goes on with the first limit. The second one takes the larger: it holds
for whatever limit there is at the moment of a look. Its running bound is what is quoted then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
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
from fl_dp.accounting.budget import DECLARED_SHARE, Limit
from fl_dp.accounting.events import FrozenHistory, event_to_dict, release_from_dict
from fl_dp.accounting.filters import RenyiOdometer
from fl_dp.accounting.gaussian_formulas import gaussian_epsilon
from fl_dp.accounting.loss_distributions import SEARCH_INTERVAL
from fl_dp.accounting.renyi import renyi_epsilon
from fl_dp.option_errors import require_positive
from fl_dp.promise import Enforcement

from .chain import ChainedLedger
from .entries import (
    ANOTHER_VERSION,
    LedgerCorrupted,
    LedgerEntry,
    require_printable,
    require_schema,
    today,
)
from .store import LedgerStore
from .witness import Witness

NODE_SCHEMA = 4  # 1: a record was an `example`; 2: an entry was a `record`, too; 3: no run's limit
_UNITS = ("client", "record")
_MOST_RELEASES = 10_000_000
_MOST_ENTRIES = 2**63
_LONGEST_ID = 64  # a SHA-256, as Flower makes ids
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
        enforcement: What kept the app to the charge, where that was a gate.
        message: Flower's id of the message that asked, where a gate has it: charged once.
    """

    run: int
    purpose: str
    app: str | None = None
    enforcement: Enforcement | None = None
    message: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a text is empty, too long or can't be printed.
        """
        require_printable(self.purpose)
        for text in (self.app, self.message):
            if text is not None:
                require_printable(text)
        if self.message is not None and len(self.message) > _LONGEST_ID:
            raise ValueError(f"a message's id has {_LONGEST_ID} characters at most")

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Read an entry's fields.

        Raises:
            TypeError: If a field is unknown.
            ValueError: If one is out of range.
        """
        said = fields.get("enforcement")
        enforcement = None if said is None else Enforcement(said)
        return cls(**{**fields, "enforcement": enforcement})

    def to_fields(self) -> dict[str, Any]:
        """Return what an entry says; of no gate nothing."""
        fields = asdict(self)
        for of_a_gate in ("enforcement", "message"):
            if fields[of_a_gate] is None:
                del fields[of_a_gate]
        return fields


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


@dataclass(kw_only=True, eq=False)
class Reliance:
    """Answers that left clipped alone: the site counts no epsilon, and trusts the server's noise.

    Attributes:
        use: Run, app and purpose.
        source: Name of the data.
        clipping_norm: The largest that an answer was clipped to.
        first_day: Of the answers, in UTC.
        last_day: Of the answers, in UTC.
        answers: How many there were.
    """

    use: Use
    source: str
    clipping_norm: float
    first_day: str
    last_day: str
    answers: int = 0


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

    budget: Required[PrivacyBudget | None]
    what: Required[str]
    limit: RunLimit | None
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


@dataclass(frozen=True, kw_only=True)
class RunLimit:
    """The budget of one run, whatever other runs spend.

    Attributes:
        run: A name of the run that outlives restarts.
        budget: What it may spend by itself.
    """

    run: str
    budget: PrivacyBudget

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If the name is empty or can't be printed.
        """
        require_printable(self.run)


@dataclass(frozen=True, kw_only=True)
class Charge:
    """A charge as an entry says it.

    Attributes:
        account: Whose data.
        event: What one release is charged as.
        count: How many there are.
        cap: The owner's, over everything; None: there was none.
        limit: That of the run that asked; None: it had none of its own.
        neighboring_relation: Which data are neighbours.
    """

    account: Account
    event: PrivacyEvent
    count: int
    cap: PrivacyBudget | None
    limit: RunLimit | None
    neighboring_relation: NeighboringRelation

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Read an entry's fields.

        Raises:
            KeyError: If a field is missing.
            TypeError: If it is of another form.
            ValueError: If it is out of range, or there is neither limit.
        """
        event, count = release_from_dict(fields)
        cap, limit = fields["budget"], fields["limit"]
        charge = cls(
            account=Account(
                unit=fields["unit"], source=fields["source"], fingerprint=fields["fingerprint"]
            ),
            event=event,
            count=count,
            cap=None if cap is None else PrivacyBudget(**cap),
            limit=None
            if limit is None
            else RunLimit(run=limit["run"], budget=PrivacyBudget(**limit["budget"])),
            neighboring_relation=NeighboringRelation(fields["neighboring_relation"]),
        )
        _ = charge.first_limit
        return charge

    @property
    def first_limit(self) -> PrivacyBudget:
        """The cap, or what its run may spend: what bounds everything beforehand.

        Raises:
            ValueError: If there is neither.
        """
        if self.cap is not None:
            return self.cap
        if self.limit is None:
            raise ValueError("a charge needs a limit: the owner's cap, or what its run may spend")
        return self.limit.budget

    def less(self, part: float) -> Self:
        """Return the same charge under limits that are smaller by a part of their epsilon."""

        def lowered(budget: PrivacyBudget) -> PrivacyBudget:
            return replace(budget, epsilon=(1.0 - part) * budget.epsilon)

        limit = self.limit
        return replace(
            self,
            cap=None if self.cap is None else lowered(self.cap),
            limit=None if limit is None else replace(limit, budget=lowered(limit.budget)),
        )


@dataclass(kw_only=True, eq=False)
class Tally:
    """Releases that one limit counts.

    Attributes:
        releases: Each kind of release, with its count.
        neighboring_relations: Of the runs that spent.
        first: Entry of the first charge.
        first_limit: The limit at the first charge, fixed before any release; later ones are
            admitted at no larger delta. None: nothing was charged.
        most_epsilon: The largest that a charge was admitted under.
    """

    releases: Counter[PrivacyEvent] = field(default_factory=Counter)
    neighboring_relations: set[NeighboringRelation] = field(default_factory=set)
    first: int = _MOST_ENTRIES
    first_limit: PrivacyBudget | None = None
    most_epsilon: float = 0.0

    @property
    def history(self) -> FrozenHistory:
        """Every release, merged and in one fixed order."""
        return freeze(self.releases)

    @property
    def open_ended(self) -> bool:
        """Whether nothing was fixed beforehand that bounds all releases."""
        return False

    @property
    def budget(self) -> PrivacyBudget | None:
        """The limit of all releases so far; None: there is none, or nothing was charged."""
        if self.first_limit is None or self.open_ended:
            return None
        return replace(self.first_limit, epsilon=self.most_epsilon)

    def epsilon(self) -> EpsilonBounds:
        """Return what was spent so far, at the first delta.

        Of releases of one kind, as if their number had been fixed beforehand: while its owner may
        still stop or go on, what holds is the first limit. With noise that changed, or a limit
        that grew, it is a bound that holds at every look: no ledger knows whether a cap
        was there before.
        """
        first = self.first_limit
        if first is None:
            return EpsilonBounds(naive=0.0)
        history, share = self.history, (1.0 - DECLARED_SHARE) * first.delta
        fixed = not self.open_ended and self.most_epsilon <= first.epsilon

        def under(relation: NeighboringRelation) -> EpsilonBounds:
            if fixed and len(history) == 1:
                return epsilon(history, first.delta, neighboring_relation=relation)
            return EpsilonBounds(filter=_odometer(first, relation).epsilon(history, share))

        bounds = [under(relation) for relation in _to_keep(self.neighboring_relations)]
        return max(bounds, key=lambda each: each.best)

    def would_exceed(
        self,
        event: PrivacyEvent,
        *,
        count: int,
        budget: PrivacyBudget,
        neighboring_relation: NeighboringRelation,
    ) -> bool:
        """Tell whether `count` more of `event` would exceed `budget`."""
        first = self.first_limit or budget
        delta = min(budget.delta, first.delta)
        after = freeze(self.releases + Counter({event: count}))
        declared, share = min(budget.epsilon, first.epsilon), (1.0 - DECLARED_SHARE) * delta

        def fits(relation: NeighboringRelation) -> bool:
            if len(after) == 1:
                ((only, times),) = after
                if _fit(only, times, declared, DECLARED_SHARE * delta, relation):
                    return True
            spent = _odometer(first, relation).epsilon(after, share)
            return spent <= budget.epsilon * (1.0 + _ROUNDING)

        return not all(map(fits, _to_keep(self.neighboring_relations | {neighboring_relation})))

    def room(self, budget: PrivacyBudget) -> float:
        """Return the epsilon of a run of Gaussian noise, all of it, that still fits a limit."""
        first = self.first_limit
        if first is None:
            return budget.epsilon
        share = (1.0 - DECLARED_SHARE) * min(budget.delta, first.delta)
        mu = min(
            _odometer(first, relation).gaussian_room(self.history, replace(budget, delta=share))
            for relation in _to_keep(self.neighboring_relations)
        )
        return gaussian_epsilon(1.0 / mu, budget.delta) if mu else 0.0

    def most(
        self,
        event: PrivacyEvent,
        *,
        budget: PrivacyBudget,
        neighboring_relation: NeighboringRelation,
    ) -> int:
        """Return how many more of `event` fit into `budget`, ten million at most."""
        low, high = 0, 1
        while high <= _MOST_RELEASES and not self.would_exceed(
            event, count=high, budget=budget, neighboring_relation=neighboring_relation
        ):
            low, high = high, 2 * high
        high = min(high, _MOST_RELEASES + 1)
        while high - low > 1:
            middle = (low + high) // 2
            exceeds = self.would_exceed(
                event, count=middle, budget=budget, neighboring_relation=neighboring_relation
            )
            low, high = (low, middle) if exceeds else (middle, high)
        return low

    def take_in(self, sequence: int, charge: Charge, budget: PrivacyBudget) -> None:
        """Take in an entry's charge that was admitted under a limit."""
        if self.first_limit is None:
            self.first, self.first_limit = sequence, budget
        self.most_epsilon = max(self.most_epsilon, budget.epsilon)
        self.releases[charge.event] += charge.count
        self.neighboring_relations.add(charge.neighboring_relation)

    def absorb(self, other: Tally) -> None:
        """Take in another one's releases: they turned out to be of one account."""
        self.releases += other.releases
        self.neighboring_relations |= other.neighboring_relations
        self.most_epsilon = max(self.most_epsilon, other.most_epsilon)
        if other.first < self.first:
            self.first, self.first_limit = other.first, other.first_limit


@dataclass(kw_only=True, eq=False)
class Spending(Tally):
    """The spending of one account. Its own limit is the owner's cap.

    Attributes:
        unit: `record` or `client`.
        sources: Names of where its data came from.
        fingerprints: Of its data over time.
        charges: How many charges there were, each of one or more releases.
        uncapped: Whether there was a charge without a cap, which its run's budget alone limits.
        runs: What each run has spent by itself, by its name.
    """

    unit: str
    sources: set[str] = field(default_factory=set)
    fingerprints: set[str] = field(default_factory=set)
    charges: int = 0
    uncapped: bool = False
    runs: dict[str, Tally] = field(default_factory=dict)

    @property
    def open_ended(self) -> bool:
        """Whether several runs have spent, and no cap was there for all of them."""
        return self.uncapped and len(self.runs) > 1

    def limit_exceeded(
        self,
        charge: Charge,
    ) -> Limit | None:
        """Return which limit a charge would exceed; None if it keeps both."""
        asked: list[tuple[Limit, Tally, PrivacyBudget]] = []
        if charge.cap is not None:
            asked.append((Limit.CAP, self, charge.cap))
        if (limit := charge.limit) is not None:
            asked.append((Limit.RUN, self.runs.get(limit.run, Tally()), limit.budget))
        for name, tally, allowed in asked:
            if tally.would_exceed(
                charge.event,
                count=charge.count,
                budget=allowed,
                neighboring_relation=charge.neighboring_relation,
            ):
                return name
        return None

    def take_in_charge(self, sequence: int, charge: Charge) -> None:
        """Take in an entry's charge, for the account and for its run."""
        self.take_in(sequence, charge, charge.first_limit)
        if charge.limit is not None:
            run = self.runs.setdefault(charge.limit.run, Tally())
            run.take_in(sequence, charge, charge.limit.budget)
        self.uncapped = self.uncapped or charge.cap is None
        self.sources.add(charge.account.source)
        self.charges += 1

    def take_off(self, charge: Charge) -> None:
        """Take off a charge's releases: noise went out instead."""
        made = Counter({charge.event: charge.count})
        self.releases -= made
        if charge.limit is not None:
            self.runs[charge.limit.run].releases -= made

    def absorb_account(self, other: Spending) -> None:
        """Take in another account's spending: they turned out to be one."""
        self.absorb(other)
        self.sources |= other.sources
        self.fingerprints |= other.fingerprints
        self.charges += other.charges
        self.uncapped = self.uncapped or other.uncapped
        for run, tally in other.runs.items():
            self.runs.setdefault(run, Tally()).absorb(tally)


class MessageCharged(PrivacyBudgetExhausted):
    """The message was charged before: it is answered once, and nothing is released again."""


class ConsentRevoked(PrivacyBudgetExhausted):
    """The owner of the data has revoked every use; nothing was released or charged."""


class NodeLedger(ChainedLedger):
    """The charges of a node's data. Open it with `open` (to spend) or `read` (to look)."""

    first_entry = "node's charges"

    def __init__(self, store: LedgerStore, witness: Witness | None = None) -> None:
        """Use `open` or `read` instead."""
        super().__init__(store, witness)
        self._by_key: dict[tuple[str, str, str], Spending] = {}
        # By unit and source alone: what decides before the data are read.
        self._by_source: dict[tuple[str, str], Spending] = {}
        self._unread: dict[int, Charge] = {}
        self._revoked: str | None = None
        self._marks: dict[str, Marks] = {}
        self._messages: set[str] = set()  # that were charged or relied upon
        self._uses: dict[tuple[Use | None, str, str], UseOfData] = {}
        self._reliances: dict[tuple[Use, str], Reliance] = {}

    @classmethod
    def open(cls, location: str | Path, *, witness: Witness | None = None) -> Self:
        """Open a node's ledger to spend from, creating it if there is none.

        Args:
            location: An SQLite file or a SQLAlchemy URL, as for `PrivacyLedger.open`. Keep it as
                long as the data.
            witness: A second place that is told of each entry, and that the ledger is compared with
                now; see `witness_at`.

        Raises:
            FileNotFoundError: If the file's folder does not exist.
            LedgerCorrupted: If it is no node's ledger, an entry does not match the chain, or its
                witness knows of another state.
            LedgerUnavailable: If the disk or the database fails, or the witness.
            ValueError: If the witness lies beside the ledger.
        """
        ledger = cls(LedgerStore.writable(location), witness)
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

    @property
    def reliances(self) -> tuple[Reliance, ...]:
        """By whom and for what the server's noise was relied upon, in the order of the first."""
        return tuple(self._reliances.values())

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

    def note_reliance(self, source: str, *, clipping_norm: float, use: Use) -> None:
        """Write down, before it is made, that an answer leaves clipped and without noise.

        Nothing is charged: how private it is depends on noise that the server adds.

        Args:
            source: Name of the data.
            clipping_norm: Bound on the answer's update.
            use: For what and on whose behalf.

        Raises:
            ConsentRevoked: If the owner has revoked every use; then nothing is written.
            MessageCharged: If the message was answered before; then nothing is written.
            LedgerUnavailable: If it can't be written; then nothing may be released.
            ValueError: If an argument is out of range.
        """
        require_printable(source)
        require_positive(clipping_norm=clipping_norm)
        with self._transaction() as connection:
            if self._revoked is not None:
                raise ConsentRevoked(
                    f"no answer is allowed: the owner revoked every use on {self._revoked}"
                )
            self._require_new(use)
            self._append(
                connection,
                {
                    "kind": "relied",
                    "source": source,
                    "clipping_norm": clipping_norm,
                    "day": today(),
                    "use": use.to_fields(),
                },
            )

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

    def charge(self, account: Account, event: PrivacyEvent, **terms: Unpack[ChargeTerms]) -> None:
        """Write releases to disk as spent, before they are made; whatever happens then, they are.

        Args:
            account: Whose data.
            event: What one release is charged as.
            **terms: `budget`, the owner's cap over everything that the account ever spends, None
                where there is none; `limit`, what the run that asks may spend by itself, needed
                where there is no cap; `what`, a name for the entries, for instance the run and the
                round; `count`, how many releases, 1 unless given; `neighboring_relation`, which
                data are neighbours, zero-out unless given; `use`, for what and on whose behalf.

        Raises:
            PrivacyBudgetExhausted: If it would exceed either, which it names; then nothing is
                written.
            ConsentRevoked: If the owner has revoked every use; then nothing is written.
            MessageCharged: If the message of `use` was charged before; then nothing is written.
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
            **terms: As in `charge`; both limits count what was charged to this source.

        Returns:
            The charge's number, for `name_data`.

        Raises:
            PrivacyBudgetExhausted: If it would exceed the budget; then nothing is written.
            ConsentRevoked: If the owner has revoked every use; then nothing is written.
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
            a limit: then only noise may be released, and the charge no longer counts as spent
            by the data. It goes on counting for `charge_unread`.

        Raises:
            ValueError: If there is no such charge, or it was named.
        """
        with self._transaction() as connection:
            if charge not in self._unread:
                raise ValueError(f"entry {charge} is no charge that waits for a name of its data")
            released = self._fits_the_data(self._unread[charge], fingerprint)
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

    def require_owed(self) -> None:
        """Check that charges were taken off the data only where there was no room for them.

        That is all that entries say of themselves: what a release was charged as, its run's plan
        knows, and no node's ledger holds it.

        Raises:
            LedgerCorrupted: If an entry says that noise went out, and the data had room.
        """
        so_far = type(self)(self._store)
        for entry in self._entries:
            fields = entry.fields
            if fields["kind"] == "data" and not fields["released"]:
                charge = so_far._unread[fields["charge"]].less(ANOTHER_VERSION)
                if so_far._fits_the_data(charge, fields["fingerprint"]):
                    raise LedgerCorrupted(
                        f"entry {entry.sequence} takes entry {fields['charge']} off the data, and "
                        "there was room for it: it was written by nobody's ledger"
                    )
            so_far._take_in(entry)

    def _charge(
        self,
        account: Account,
        event: PrivacyEvent,
        *,
        unread: bool,
        budget: PrivacyBudget | None,
        what: str,
        limit: RunLimit | None = None,
        count: int = 1,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
        use: Use | None = None,
    ) -> int:
        require_printable(what)
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        charge = Charge(
            account=account,
            event=event,
            count=count,
            cap=budget,
            limit=limit,
            neighboring_relation=neighboring_relation,
        )
        _ = charge.first_limit
        with self._transaction() as connection:
            if self._revoked is not None:
                raise ConsentRevoked(
                    f"{what} is not allowed: the owner revoked every use on {self._revoked}"
                )
            self._require_new(use)
            spending = self._of_source(account) if unread else self._joined(account)
            exceeded = spending.limit_exceeded(charge)
            if exceeded is not None:
                raise PrivacyBudgetExhausted(
                    f"{what} would exceed {_in_words(exceeded, charge)}, for the data of "
                    f"'{account.source}', which have been charged {spending.charges} times"
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
                    "budget": None if budget is None else asdict(budget),
                    "limit": None if limit is None else asdict(limit),
                    "neighboring_relation": str(neighboring_relation),
                    "day": today(),  # for its owner; a time would show how long training took
                    **({"unread": True} if unread else {}),
                    **({} if use is None else {"use": use.to_fields()}),
                },
            )
        return entry.sequence

    def _require_new(self, use: Use | None) -> None:
        """Refuse a message that was charged before.

        Raises:
            MessageCharged: If it was.
        """
        if use is not None and use.message in self._messages:
            raise MessageCharged(f"message {use.message} of run {use.run} was charged before")

    def _note_message(self, use: Use | None) -> None:
        if use is not None and use.message is not None:
            self._messages.add(use.message)

    def _fits_the_data(self, charge: Charge, fingerprint: str) -> bool:
        """Tell whether a charge that is among the spent fits behind all others of its data."""
        spending = self._joined(replace(charge.account, fingerprint=fingerprint))
        spending.take_off(charge)
        return spending.limit_exceeded(charge) is None

    def _of_source(self, account: Account) -> Spending:
        """Return what was charged under a source's name, as a copy."""
        alone = Spending(unit=account.unit)
        if (account.unit, account.source) in self._by_source:
            alone.absorb_account(self._by_source[account.unit, account.source])
        return alone

    def _joined(self, account: Account) -> Spending:
        """Return the spending of all that `account` is known by, as a copy."""
        joined = Spending(unit=account.unit)
        for each in self._known_as(account):
            joined.absorb_account(each)
        return joined

    def _known_as(self, account: Account) -> list[Spending]:
        """Return every spending that shares a name with `account`, each once."""
        known = [self._by_key[key] for key in account.keys if key in self._by_key]
        return list({id(each): each for each in known}.values())

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
            case "relied":
                self._replay_reliance(fields)
            case "marks":
                self._marks[fields["store"]] = Marks(count=fields["count"], last=fields["last"])
            case _:
                raise ValueError(f"an entry of kind '{kind}' is unknown to this version")

    def _replay_charge(self, sequence: int, fields: dict[str, Any]) -> None:
        charge, what = Charge.of(fields), fields["what"]
        require_printable(what)
        account = charge.account
        self._replay_use(charge, fields)
        # One that is alone goes on: a ledger is read often, and a copy for each entry takes long.
        known = self._known_as(account)
        spending = known[0] if len(known) == 1 else self._joined(account)
        alone = self._by_source.setdefault(
            (account.unit, account.source), Spending(unit=account.unit)
        )
        # Charged twice over: to all that share a name, and to the source, which decides unread.
        for each in (spending, alone):
            each.take_in_charge(sequence, charge)
        self._know(spending, account)
        if fields.get("unread"):
            self._unread[sequence] = charge

    def _replay_use(self, charge: Charge, fields: dict[str, Any]) -> None:
        account = charge.account
        use = Use.of(fields["use"]) if "use" in fields else None
        self._note_message(use)
        day = str(fields.get("day", "unknown"))
        require_printable(day)
        found = self._uses.setdefault(
            (use, account.unit, account.source),
            UseOfData(
                use=use, unit=account.unit, source=account.source, first_day=day, last_day=day
            ),
        )
        found.first_day, found.last_day = min(found.first_day, day), max(found.last_day, day)
        found.charges += 1
        found.releases[charge.event] += charge.count

    def _replay_reliance(self, fields: dict[str, Any]) -> None:
        use, source, day = Use.of(fields["use"]), fields["source"], fields["day"]
        norm = fields["clipping_norm"]
        self._note_message(use)
        require_printable(source)
        require_printable(day)
        require_positive(clipping_norm=norm)
        found = self._reliances.setdefault(
            (use, source),
            Reliance(use=use, source=source, clipping_norm=norm, first_day=day, last_day=day),
        )
        found.clipping_norm = max(found.clipping_norm, norm)
        found.first_day, found.last_day = min(found.first_day, day), max(found.last_day, day)
        found.answers += 1

    def _replay_name(self, fields: dict[str, Any]) -> None:
        charged = self._unread.pop(fields["charge"])
        account = replace(charged.account, fingerprint=fields["fingerprint"])
        spending = self._joined(account)
        if not fields["released"]:  # noise went out instead: the source stays charged, the data not
            spending.take_off(charged)
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


def _in_words(exceeded: Limit, charge: Charge) -> str:
    """Return a limit for the node's log."""
    cap, limit = charge.cap, charge.limit
    if exceeded is Limit.CAP:
        assert cap is not None  # which was exceeded
        return f"epsilon {cap.epsilon:.4g} at delta {cap.delta:.3g}, the cap over all runs"
    assert limit is not None
    return (
        f"epsilon {limit.budget.epsilon:.4g} at delta {limit.budget.delta:.3g}, what {limit.run} "
        "asked for itself"
    )


def _odometer(first: PrivacyBudget, relation: NeighboringRelation) -> RenyiOdometer:
    """Return what bounds all releases; its orders follow from the first limit."""
    foreseen = replace(first, delta=(1.0 - DECLARED_SHARE) * first.delta)
    return RenyiOdometer(foreseen=foreseen, neighboring_relation=relation)


def _to_keep(relations: set[NeighboringRelation]) -> list[NeighboringRelation]:
    """Return the relations that a limit is kept under, in one order.

    Each by itself: a sample of fixed size moves most when one is removed, others when one is
    replaced. Zero-out alone never moves more than either.
    """
    return sorted(relations - {NeighboringRelation.ZERO_OUT} or relations)
