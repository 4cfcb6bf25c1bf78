"""A node's own ledger: what its data have spent, over rounds, restarts and runs.

The server's ledger belongs to one training, this one to the data. Each release from them, by any
run, is written here before it happens, or refused if it would exceed the budget. The file is the
node's own; neither Flower nor the server keeps it.

    >>> with NodeLedger.open("/data/ledger.db") as ledger:
    ...     ledger.charge(account, event, count=10, budget=budget, what="round 3")
    ...     ...  # train, release

Sometimes nothing may depend on the data before the charge, not even whose they are. Then their
source's name decides (`charge_unread`), and `name_data` names the data once read. If these have
spent their budget under another name, only noise is released, which spends nothing.

Two limits are separate: the owner's cap on all that is ever charged for the data, and a run's
budget for that run alone. Noise, and a limit, may change after earlier releases were seen. So each
limit has two rules, each with its share of delta, and a release must satisfy one:

- All releases so far count as one kind, fixed by the first: as that release, if they are alike but
  for no less noise, or by their summed squared mu, if all are Gaussian. Privacy-loss distributions
  tell what fits the first limit, or a smaller one now (at 0.9 delta).
- A `RenyiOdometer` stays within the limit (at 0.1 delta), whatever was chosen adaptively.

Together they satisfy (epsilon, delta), as the hockey-stick divergence is a sum over outcomes.
Where the first rule passes all releases, outcomes are those of a process that stops where it does.
Its largest number of releases of one kind is fixed beforehand; Gaussians that the server chooses
after a look add up likewise (Smith and Thakurta 2022, "Fully Adaptive Composition for Gaussian
Differential Privacy"). In all other outcomes, the last release passed the second rule.

More noise than the first release's therefore ends no exact count. A charge for neighbours that are
further apart than those of all earlier ones is refused: it would count them again, at twice the
distance.

A growing limit is chosen after a look at releases, perhaps at the worst moment. So the first rule
keeps the first limit. The second takes the larger one, as it holds for any limit at the moment of
a look. Then its running bound is reported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Required, Self, TypeAlias, TypedDict, Unpack

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
from fl_dp.accounting.events import (
    FixedSizeGaussianEvent,
    FrozenHistory,
    PoissonGaussianEvent,
    TruncatedPoissonGaussianEvent,
    event_to_dict,
    release_from_dict,
)
from fl_dp.accounting.filters import RenyiOdometer
from fl_dp.accounting.gaussian_formulas import (
    gaussian_epsilon,
    gaussian_noise_multiplier,
    mu_squared,
)
from fl_dp.accounting.loss_distributions import SEARCH_INTERVAL
from fl_dp.accounting.renyi import renyi_epsilon
from fl_dp.guarantee import Guarantee
from fl_dp.mechanisms.mechanism_events import GaussianEvent, LaplaceEvent
from fl_dp.option_errors import require_positive
from fl_dp.promise import UNITS, Enforcement

from .chain import ChainedLedger
from .entries import (
    ANOTHER_VERSION,
    LedgerCorrupted,
    LedgerEntry,
    require_day,
    require_printable,
    require_schema,
    today,
)
from .store import LedgerStore
from .witness import Witness

NODE_SCHEMA = 4  # 1: a record was an `example`; 2: an entry was a `record`, too; 3: no run's limit
_MOST_RELEASES = 10_000_000
_MOST_ENTRIES = 2**63
_LONGEST_ID = 64  # a SHA-256, as Flower makes ids
_ROUNDING = 1e-12  # relative
_AHEAD = 1.25  # times the number asked for: certified at once, so that few questions compute
_Noised: TypeAlias = (
    GaussianEvent
    | LaplaceEvent
    | PoissonGaussianEvent
    | TruncatedPoissonGaussianEvent
    | FixedSizeGaussianEvent
)
"""Events that another one of the same fields and less noise bounds."""
# By event, epsilon, delta and relation: number of releases of one kind that fits for certain.
_CERTIFIED: dict[tuple[PrivacyEvent, float, float, NeighboringRelation], int] = {}


@dataclass(frozen=True, kw_only=True)
class Use:
    """A charge's purpose, and on whose behalf, for the data's owner.

    Attributes:
        run: Flower's run id.
        purpose: Type of the message that asked, for instance `train`.
        app: The app that asked, as far as the node can name it.
        enforcement: How a gate enforces the charge; None: no gate.
        message: Flower's message id, where a gate has it. It is charged once.
    """

    run: int
    purpose: str
    app: str | None = None
    enforcement: Enforcement | None = None
    message: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A text is empty, too long or not printable.
        """
        require_printable(self.purpose)
        for text in (self.app, self.message):
            if text is not None:
                require_printable(text)
        if self.message is not None and len(self.message) > _LONGEST_ID:
            raise ValueError(f"a message's id has {_LONGEST_ID} characters at most")

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read an entry's fields.

        Raises:
            TypeError: A field is unknown.
            ValueError: A field is out of range.
        """
        level = fields.get("enforcement")
        enforcement = None if level is None else Enforcement(level)
        return cls(**{**fields, "enforcement": enforcement})

    def to_fields(self) -> dict[str, Any]:
        """Return the entry's fields, without a gate's if there was none."""
        fields = asdict(self)
        for name in ("enforcement", "message"):
            if fields[name] is None:
                del fields[name]
        return fields


@dataclass(kw_only=True, eq=False)
class UseOfData:
    """Charges of one use to one account, summed up. A ledger knows UTC days, no other times.

    Attributes:
        use: None where the charge does not say.
        unit: `record` or `client`.
        source: Name of the data.
        declared_gradients: `hooks` or `ghost`; see `ChargeTerms`.
        releases: Each kind of release, with its count.
    """

    use: Use | None
    unit: str
    source: str
    first_day: str
    last_day: str
    declared_gradients: str | None = None
    charges: int = 0
    releases: Counter[PrivacyEvent] = field(default_factory=Counter)

    @property
    def history(self) -> FrozenHistory:
        """Every release, merged, in one fixed order."""
        return freeze(self.releases)


@dataclass(kw_only=True, eq=False)
class Reliance:
    """Answers clipped but without noise: the site counts no epsilon and trusts the server's noise.

    Days are in UTC.

    Attributes:
        source: Name of the data.
        clipping_norm: Largest norm to which an answer was clipped.
    """

    use: Use
    source: str
    clipping_norm: float
    first_day: str
    last_day: str
    answers: int = 0


@dataclass(frozen=True, kw_only=True)
class Marks:
    """State of a node's store of secure sums.

    Attributes:
        count: Number of marks it ever held.
        last: Hash over all of them, in hex.
    """

    count: int
    last: str


class ChargeTerms(TypedDict, total=False):
    """Keywords of a charge, besides account and event.

    `declared_gradients` is the way by which a client computes gradients of single records only if
    every layer's rows are records, as its author declares. None: it needs no declaration.
    """

    budget: Required[PrivacyBudget | None]
    what: Required[str]
    limit: RunLimit | None
    count: int
    neighboring_relation: NeighboringRelation
    use: Use | None
    declared_gradients: str | None


@dataclass(frozen=True, kw_only=True)
class Account:
    """The data whose releases add up: all that ever shared a source or a fingerprint.

    A source with another fingerprint has changed, but most of its records are likely the same. A
    fingerprint under another source is the same data elsewhere. Both continue the earlier
    spending.

    Attributes:
        unit: `record`, `person` or `client` (the node's whole data).
        source: Name of the data's origin, which stays when they change.
        fingerprint: Digest of the data; None if unknown.
    """

    unit: str
    source: str
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: The unit is unknown, or a name is empty or not printable.
        """
        if self.unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(UNITS)}, got '{self.unit}'")
        for name in (self.source, self.fingerprint):
            if name is not None:
                require_printable(name)

    @property
    def keys(self) -> tuple[tuple[str, str, str], ...]:
        """The keys that find its spending."""
        keys = [(self.unit, "source", self.source)]
        if self.fingerprint is not None:
            keys.append((self.unit, "fingerprint", self.fingerprint))
        return tuple(keys)


@dataclass(frozen=True, kw_only=True)
class RunLimit:
    """The budget of one run, whatever other runs spend.

    Attributes:
        run: A name of the run that outlives restarts.
    """

    run: str
    budget: PrivacyBudget

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: The name is empty or not printable.
        """
        require_printable(self.run)


@dataclass(frozen=True, kw_only=True)
class Charge:
    """A charge as an entry records it.

    Attributes:
        event: Event of one release.
        count: Number of releases.
        cap: The owner's cap over everything, if any.
        limit: The asking run's own limit, if any.
    """

    account: Account
    event: PrivacyEvent
    count: int
    cap: PrivacyBudget | None
    limit: RunLimit | None
    neighboring_relation: NeighboringRelation

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Read an entry's fields.

        Raises:
            KeyError: A field is missing.
            TypeError: A field has another form.
            ValueError: A field is out of range, or neither limit is there.
        """
        event, count = release_from_dict(fields)
        cap, limit = None, None
        if fields["budget"] is not None:
            cap = PrivacyBudget(**fields["budget"])
        if (of_run := fields["limit"]) is not None:
            limit = RunLimit(run=of_run["run"], budget=PrivacyBudget(**of_run["budget"]))
        charge = cls(
            account=Account(
                unit=fields["unit"], source=fields["source"], fingerprint=fields["fingerprint"]
            ),
            event=event,
            count=count,
            cap=cap,
            limit=limit,
            neighboring_relation=NeighboringRelation(fields["neighboring_relation"]),
        )
        _ = charge.first_limit
        return charge

    @property
    def first_limit(self) -> PrivacyBudget:
        """The cap, or else the run's budget. It bounds everything beforehand.

        Raises:
            ValueError: Neither exists.
        """
        if self.cap is not None:
            return self.cap
        if self.limit is None:
            raise ValueError("a charge needs a limit: the owner's cap, or what its run may spend")
        return self.limit.budget

    def with_smaller_limits(self, part: float) -> Self:
        """Return the charge with each limit smaller by a part of its epsilon."""

        def lowered(budget: PrivacyBudget) -> PrivacyBudget:
            return replace(budget, epsilon=(1.0 - part) * budget.epsilon)

        cap, limit = self.cap, self.limit
        if cap is not None:
            cap = lowered(cap)
        if limit is not None:
            limit = replace(limit, budget=lowered(limit.budget))
        return replace(self, cap=cap, limit=limit)


@dataclass(kw_only=True, eq=False)
class Tally:
    """Releases that one limit counts.

    Attributes:
        releases: Each kind of release, with its count.
        neighboring_relations: The relations of all runs that spent.
        first: Entry of the first charge.
        first_event: Event of the first charge.
        first_limit: Limit at the first charge, fixed before any release. Later charges are
            admitted at no larger delta. None: nothing was charged.
        most_epsilon: Largest epsilon of a limit that admitted a charge.
    """

    releases: Counter[PrivacyEvent] = field(default_factory=Counter)
    neighboring_relations: set[NeighboringRelation] = field(default_factory=set)
    first: int = _MOST_ENTRIES
    first_event: PrivacyEvent | None = None
    first_limit: PrivacyBudget | None = None
    most_epsilon: float = 0.0

    @property
    def history(self) -> FrozenHistory:
        """Every release, merged, in one fixed order."""
        return freeze(self.releases)

    @property
    def open_ended(self) -> bool:
        """Whether nothing fixed beforehand bounds all releases."""
        return False

    @property
    def budget(self) -> PrivacyBudget | None:
        """Limit of all releases so far; None: there is none, or nothing was charged."""
        if self.first_limit is None or self.open_ended:
            return None
        return replace(self.first_limit, epsilon=self.most_epsilon)

    def epsilon(self) -> EpsilonBounds:
        """Return what was spent so far, at the first delta.

        For releases that count as the first one, it is as if their number had been fixed
        beforehand. While the owner may still stop or continue, only the first limit holds. With
        less noise than at first or a grown limit, it is a bound that holds at every look: no
        ledger knows whether a cap existed before.
        """
        first = self.first_limit
        if first is None:
            return EpsilonBounds(naive=0.0)
        history, share = self.history, (1.0 - DECLARED_SHARE) * first.delta
        fixed = not self.open_ended and self.most_epsilon <= first.epsilon

        repeated = _as_first(history, self.first_event)

        def bounds_under(relation: NeighboringRelation) -> EpsilonBounds:
            if fixed and repeated is not None:
                bounds = epsilon([repeated], first.delta, neighboring_relation=relation)
            else:
                bounds = EpsilonBounds(filter=_odometer(first, relation).epsilon(history, share))
            if fixed and self._keeps_first_rule(history, first, relation):
                return bounds.within(first.epsilon)
            return bounds

        candidates = [bounds_under(relation) for relation in _to_keep(self.neighboring_relations)]
        return max(candidates, key=lambda bounds: bounds.best)

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
        share = (1.0 - DECLARED_SHARE) * delta
        declared = PrivacyBudget(epsilon=min(budget.epsilon, first.epsilon), delta=delta)

        def fits(relation: NeighboringRelation) -> bool:
            if self._keeps_first_rule(after, declared, relation):
                return True
            spent = _odometer(first, relation).epsilon(after, share)
            return spent <= budget.epsilon * (1.0 + _ROUNDING)

        return not all(map(fits, _to_keep(self.neighboring_relations | {neighboring_relation})))

    def _keeps_first_rule(
        self, releases: FrozenHistory, budget: PrivacyBudget, relation: NeighboringRelation
    ) -> bool:
        """Tell whether releases count as one kind, and fit a budget at that rule's delta."""
        delta = DECLARED_SHARE * budget.delta
        squared = _gaussian_mu_squared(releases, relation)
        if squared is not None:
            return not squared or gaussian_epsilon(squared**-0.5, delta) <= budget.epsilon
        repeated = _as_first(releases, self.first_event)
        return repeated is not None and _fit(*repeated, budget.epsilon, delta, relation)

    def widened_by(self, relation: NeighboringRelation) -> bool:
        """Tell whether a relation's neighbours are further apart than those of all charges."""
        charged = self.neighboring_relations
        return bool(charged) and relation.distance > max(known.distance for known in charged)

    def room(self, budget: PrivacyBudget) -> float:
        """Return the epsilon that still fits a limit, for a run with Gaussian noise only."""
        first = self.first_limit
        if first is None:
            return budget.epsilon
        delta = min(budget.delta, first.delta)
        share = replace(budget, delta=(1.0 - DECLARED_SHARE) * delta)
        limit = min(budget.epsilon, first.epsilon)

        def mu_left(relation: NeighboringRelation) -> float:
            at_any_look = _odometer(first, relation).gaussian_room(self.history, share)
            spent = _gaussian_mu_squared(self.history, relation)
            if spent is None:
                return at_any_look
            whole = gaussian_noise_multiplier(limit, DECLARED_SHARE * delta) ** -2
            return max(at_any_look, math.sqrt(max(0.0, whole - spent)))

        mu = min(map(mu_left, _to_keep(self.neighboring_relations)))
        if not mu:
            return 0.0
        return gaussian_epsilon(1.0 / mu, budget.delta)

    def most(
        self,
        event: PrivacyEvent,
        *,
        budget: PrivacyBudget,
        neighboring_relation: NeighboringRelation,
    ) -> int:
        """Return how many more of `event` fit `budget`, at most ten million."""
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
            if exceeds:
                high = middle
            else:
                low = middle
        return low

    def add(self, sequence: int, charge: Charge, budget: PrivacyBudget) -> None:
        """Add an entry's charge, which a limit admitted."""
        if self.first_limit is None:
            self.first, self.first_event, self.first_limit = sequence, charge.event, budget
        self.most_epsilon = max(self.most_epsilon, budget.epsilon)
        self.releases[charge.event] += charge.count
        self.neighboring_relations.add(charge.neighboring_relation)

    def absorb(self, other: Tally) -> None:
        """Add another tally's releases: both belong to one account."""
        self.releases += other.releases
        self.neighboring_relations |= other.neighboring_relations
        self.most_epsilon = max(self.most_epsilon, other.most_epsilon)
        if other.first < self.first:
            self.first, self.first_limit = other.first, other.first_limit
            self.first_event = other.first_event


@dataclass(kw_only=True, eq=False)
class Spending(Tally):
    """The spending of one account. Its own limit is the owner's cap.

    Attributes:
        unit: `record` or `client`.
        sources: Names of its data's sources.
        fingerprints: Its data's fingerprints over time.
        charges: Number of charges, each of one or more releases.
        uncapped: Whether a charge had no cap: its run's budget alone limits it.
        runs: Each run's own tally, by name.
    """

    unit: str
    sources: set[str] = field(default_factory=set)
    fingerprints: set[str] = field(default_factory=set)
    charges: int = 0
    uncapped: bool = False
    runs: dict[str, Tally] = field(default_factory=dict)

    @property
    def open_ended(self) -> bool:
        """Whether several runs have spent, not all under a cap."""
        return self.uncapped and len(self.runs) > 1

    def limit_exceeded(self, charge: Charge) -> Limit | None:
        """Return which limit a charge would exceed; None: none."""
        limits: list[tuple[Limit, Tally, PrivacyBudget]] = []
        if charge.cap is not None:
            limits.append((Limit.CAP, self, charge.cap))
        if (limit := charge.limit) is not None:
            limits.append((Limit.RUN, self.runs.get(limit.run, Tally()), limit.budget))
        for name, tally, budget in limits:
            if tally.widened_by(charge.neighboring_relation):
                return Limit.NEIGHBOURS
            if tally.would_exceed(
                charge.event,
                count=charge.count,
                budget=budget,
                neighboring_relation=charge.neighboring_relation,
            ):
                return name
        return None

    def add_charge(self, sequence: int, charge: Charge) -> None:
        """Add an entry's charge to the account and to its run."""
        self.add(sequence, charge, charge.first_limit)
        if charge.limit is not None:
            run = self.runs.setdefault(charge.limit.run, Tally())
            run.add(sequence, charge, charge.limit.budget)
        self.uncapped = self.uncapped or charge.cap is None
        self.sources.add(charge.account.source)
        self.charges += 1

    def remove(self, charge: Charge) -> None:
        """Remove a charge's releases: noise went out instead."""
        releases = Counter({charge.event: charge.count})
        self.releases -= releases
        if charge.limit is not None:
            self.runs[charge.limit.run].releases -= releases

    def absorb_account(self, other: Spending) -> None:
        """Add another account's spending: both are one."""
        self.absorb(other)
        self.sources |= other.sources
        self.fingerprints |= other.fingerprints
        self.charges += other.charges
        self.uncapped = self.uncapped or other.uncapped
        for run, tally in other.runs.items():
            self.runs.setdefault(run, Tally()).absorb(tally)


class MessageCharged(PrivacyBudgetExhausted):
    """The message was charged before; it is answered once, and nothing is released again."""


class ConsentRevoked(PrivacyBudgetExhausted):
    """The data's owner has revoked every use; nothing was released or charged."""


class NodeLedger(ChainedLedger):
    """The charges of a node's data. Open it with `open` (to spend) or `read` (to look)."""

    first_entry = "node's charges"

    def __init__(self, store: LedgerStore, witness: Witness | None = None) -> None:
        """Use `open` or `read` instead."""
        super().__init__(store, witness)
        self._by_key: dict[tuple[str, str, str], Spending] = {}
        # By unit and source alone: these decide before the data are read.
        self._by_source: dict[tuple[str, str], Spending] = {}
        self._unread: dict[int, Charge] = {}
        self._revoked: str | None = None
        self._marks: dict[str, Marks] = {}
        self._messages: set[str] = set()  # ids of messages that were charged or relied upon
        self._uses: dict[tuple[Use | None, str, str, str | None], UseOfData] = {}
        self._reliances: dict[tuple[Use, str], Reliance] = {}

    @classmethod
    def open(cls, location: str | Path, *, witness: Witness | None = None) -> Self:
        """Open a node's ledger to spend from, creating it if there is none.

        `location` and `witness` are as for `PrivacyLedger.open`. Keep the ledger as long as the
        data.

        Raises:
            LedgerCorrupted: It is no node's ledger, an entry breaks the chain, or the witness has
                another state.
            LedgerUnavailable: The disk, database or witness fails.
            ValueError: The file's folder does not exist, or the witness lies beside the ledger.
        """
        ledger = cls(LedgerStore.writable(location), witness)
        with ledger._first_transaction() as connection:
            if not ledger._entries:
                ledger._append(connection, {"kind": "node", "schema": NODE_SCHEMA})
        return ledger

    @classmethod
    def is_one(cls, location: str | Path) -> bool:
        """Tell whether a ledger is a node's, not a training's.

        Raises:
            FileNotFoundError: No such file.
            LedgerCorrupted: It can't be read.
        """
        entries = _entries_at(location)
        return bool(entries) and entries[0].fields.get("kind") == "node"

    @classmethod
    def day_of_revocation(cls, location: str | Path) -> str | None:
        """Return the day the owner revoked every use; None if not, or without a ledger.

        Quick, as it does not verify the chain: each charge does.

        Raises:
            LedgerCorrupted: It can't be read.
            LedgerUnavailable: The disk or database fails.
        """
        for entry in _entries_if_any(location):
            # The text first: to read every entry's fields takes long.
            if '"revoked"' in entry.payload and entry.kind == "revoked":
                return str(entry.fields["day"])
        return None

    @classmethod
    def marks_of_store(cls, location: str | Path, store: str) -> Marks | None:
        """Return the last noted state of a store of secure sums, if any.

        Quick, as it does not verify the chain: `note_marks` does.

        Raises:
            LedgerCorrupted: It can't be read.
            LedgerUnavailable: The disk or database fails.
        """
        for entry in reversed(_entries_if_any(location)):
            if '"marks"' in entry.payload and entry.kind == "marks":
                fields = entry.fields
                if fields["store"] == store:
                    return Marks(count=fields["count"], last=fields["last"])
        return None

    @property
    def spendings(self) -> tuple[Spending, ...]:
        """Each account's spending, in order of first release, as last read."""
        distinct = {id(spending): spending for spending in self._by_key.values()}
        return tuple(sorted(distinct.values(), key=lambda spending: spending.first))

    @property
    def revoked(self) -> str | None:
        """The day every further use was revoked, as last read; None if not."""
        return self._revoked

    @property
    def uses(self) -> tuple[UseOfData, ...]:
        """Uses of the data, in order of first charge."""
        return tuple(self._uses.values())

    @property
    def reliances(self) -> tuple[Reliance, ...]:
        """Uses that relied upon the server's noise, in order of first answer."""
        return tuple(self._reliances.values())

    def revoke(self) -> None:
        """Write down that nothing is ever charged again.

        It can't be undone. An owner who agrees later starts a new ledger, with a cap lower by what
        this one has spent.

        Raises:
            LedgerUnavailable: It can't be written.
            ValueError: It was revoked before.
        """
        with self._transaction() as connection:
            if self._revoked is not None:
                raise ValueError(f"every use was revoked already, on {self._revoked}")
            self._append(connection, {"kind": "revoked", "day": today()})

    def note_reliance(self, source: str, *, clipping_norm: float, use: Use) -> None:
        """Write down, before it is made, that an answer leaves clipped and without noise.

        Nothing is charged: the answer's privacy depends on noise that the server adds. The norm of
        its update is at most `clipping_norm`. A refused answer writes nothing.

        Raises:
            ConsentRevoked: The owner has revoked every use.
            MessageCharged: The message was answered before.
            LedgerUnavailable: It can't be written; nothing may be released.
            ValueError: An argument is out of range.
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
        """Write down the state of a store of secure sums, so that an older copy is detected.

        Nothing is written if another process brought it as far or further.

        Raises:
            LedgerUnavailable: It can't be written; nothing may be answered.
        """
        with self._transaction() as connection:
            noted = self._marks.get(store)
            if noted is None or noted.count < marks.count:
                self._append(connection, {"kind": "marks", "store": store, **asdict(marks)})

    def spending(self, account: Account) -> Spending:
        """Return what an account has spent so far.

        Accounts that only `account` connects are added up.
        """
        with self._transaction():
            return self._joined(account)

    def spending_of_source(self, account: Account) -> Spending:
        """Return what decides whether `charge_unread` refuses; it depends on no record."""
        with self._transaction():
            return self._of_source(account)

    def charge(self, account: Account, event: PrivacyEvent, **terms: Unpack[ChargeTerms]) -> None:
        """Write releases to disk as spent, before they are made. They count whatever happens then.

        A refused charge writes nothing.

        Args:
            account: The account to charge.
            event: Event of one release.
            **terms: `budget` is the owner's cap over all that the account ever spends, or None.
                `limit` is what the asking run may spend by itself, needed without a cap. `what` is
                a name for the entries, for instance the run and round. `count` of releases is 1 by
                default, `neighboring_relation` zero-out. `use` is the purpose, and on whose
                behalf.

        Raises:
            PrivacyBudgetExhausted: It would exceed a limit, which the text names.
            ConsentRevoked: The owner has revoked every use.
            MessageCharged: The message of `use` was charged before.
            LedgerUnavailable: It can't be written; nothing may be released.
            ValueError: An argument is out of range.
        """
        self._charge(account, event, unread=False, **terms)

    def charge_unread(
        self, account: Account, event: PrivacyEvent, **terms: Unpack[ChargeTerms]
    ) -> int:
        """Write releases to disk as spent before their data are read: the source alone decides.

        Whether it is refused depends on no record, and neither does what others see of that. Not
        even a fingerprint that another source has, now or in earlier charges, counts.

        Arguments are as in `charge`. The account's fingerprint is ignored, and both limits count
        what was charged to this source.

        Returns:
            The charge's number, for `name_data`.

        Raises:
            PrivacyBudgetExhausted: As in `charge`.
            ConsentRevoked: As in `charge`.
            ValueError: As in `charge`.
        """
        unnamed = Account(unit=account.unit, source=account.source)
        return self._charge(unnamed, event, unread=True, **terms)

    def name_data(self, charge: int, fingerprint: str) -> bool:
        """Record which data a charge was for, and return whether they may be released.

        The `charge` is a number from `charge_unread`, and is named once.

        Returns:
            False if all that these data were ever charged, under any source, would exceed a limit.
            Then only noise may be released. The charge no longer counts as spent by the data, but
            still does for `charge_unread`.

        Raises:
            ValueError: There is no such charge, or it was named.
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
        """Check that charges were removed from the data only where they had no room.

        Entries prove no more: only a run's plan knows what a release should be charged as, and no
        node's ledger holds it.

        Raises:
            LedgerCorrupted: An entry says that noise went out, and the data had room.
        """
        earlier = type(self)(self._store)
        for entry in self._entries:
            fields = entry.fields
            if fields["kind"] == "data" and not fields["released"]:
                charge = earlier._unread[fields["charge"]].with_smaller_limits(ANOTHER_VERSION)
                if earlier._fits_the_data(charge, fields["fingerprint"]):
                    raise LedgerCorrupted(
                        f"entry {entry.sequence} takes entry {fields['charge']} off the data, and "
                        "there was room for it: it was written by nobody's ledger"
                    )
            earlier._accept(entry)

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
        declared_gradients: str | None = None,
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
            fields: dict[str, Any] = {
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
            }
            if unread:
                fields["unread"] = True
            if use is not None:
                fields["use"] = use.to_fields()
            if declared_gradients is not None:
                fields["declared_gradients"] = declared_gradients
            return self._append(connection, fields).sequence

    def _require_new(self, use: Use | None) -> None:
        """Refuse a message that was charged before."""
        if use is not None and use.message in self._messages:
            raise MessageCharged(f"message {use.message} of run {use.run} was charged before")

    def _note_message(self, use: Use | None) -> None:
        if use is not None and use.message is not None:
            self._messages.add(use.message)

    def _fits_the_data(self, charge: Charge, fingerprint: str) -> bool:
        """Tell whether a charge already counted fits after all others of its data."""
        spending = self._joined(replace(charge.account, fingerprint=fingerprint))
        spending.remove(charge)
        return spending.limit_exceeded(charge) is None

    def _of_source(self, account: Account) -> Spending:
        """Return a copy of what was charged under a source's name."""
        copy = Spending(unit=account.unit)
        if (account.unit, account.source) in self._by_source:
            copy.absorb_account(self._by_source[account.unit, account.source])
        return copy

    def _joined(self, account: Account) -> Spending:
        """Return the sum of all spendings that share a key with `account`, as a copy."""
        joined = Spending(unit=account.unit)
        for spending in self._spendings_of(account):
            joined.absorb_account(spending)
        return joined

    def _spendings_of(self, account: Account) -> list[Spending]:
        spendings = [self._by_key[key] for key in account.keys if key in self._by_key]
        return list({id(spending): spending for spending in spendings}.values())

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
                require_day(fields["day"])
                self._revoked = fields["day"]
            case "relied":
                self._replay_reliance(fields)
            case "marks":
                self._marks[fields["store"]] = Marks(count=fields["count"], last=fields["last"])
            case _:
                raise ValueError(f"an entry of kind '{kind}' is unknown to this version")

    def _replay_charge(self, sequence: int, fields: dict[str, Any]) -> None:
        charge = Charge.from_fields(fields)
        require_printable(fields["what"])
        account = charge.account
        self._replay_use(charge, fields)
        # A single one is used itself: ledgers are read often, and a copy for each entry is slow.
        spendings = self._spendings_of(account)
        spending = spendings[0] if len(spendings) == 1 else self._joined(account)
        of_source = self._by_source.setdefault(
            (account.unit, account.source), Spending(unit=account.unit)
        )
        # Charged to all data that share a key, and to the source, which decides for unread data.
        spending.add_charge(sequence, charge)
        of_source.add_charge(sequence, charge)
        self._index(spending, account)
        if fields.get("unread"):
            self._unread[sequence] = charge

    def _replay_use(self, charge: Charge, fields: dict[str, Any]) -> None:
        account = charge.account
        use = Use.from_fields(fields["use"]) if "use" in fields else None
        self._note_message(use)
        day = str(fields.get("day", "unknown"))
        if "day" in fields:
            require_day(day)
        declared = fields.get("declared_gradients")
        if declared is not None:
            require_printable(declared)
        summary = self._uses.setdefault(
            (use, account.unit, account.source, declared),
            UseOfData(
                use=use,
                unit=account.unit,
                source=account.source,
                first_day=day,
                last_day=day,
                declared_gradients=declared,
            ),
        )
        summary.first_day = min(summary.first_day, day)
        summary.last_day = max(summary.last_day, day)
        summary.charges += 1
        summary.releases[charge.event] += charge.count

    def _replay_reliance(self, fields: dict[str, Any]) -> None:
        use, source, day = Use.from_fields(fields["use"]), fields["source"], fields["day"]
        norm = fields["clipping_norm"]
        self._note_message(use)
        require_printable(source)
        require_day(day)
        require_positive(clipping_norm=norm)
        reliance = self._reliances.setdefault(
            (use, source),
            Reliance(use=use, source=source, clipping_norm=norm, first_day=day, last_day=day),
        )
        reliance.clipping_norm = max(reliance.clipping_norm, norm)
        reliance.first_day = min(reliance.first_day, day)
        reliance.last_day = max(reliance.last_day, day)
        reliance.answers += 1

    def _replay_name(self, fields: dict[str, Any]) -> None:
        charge = self._unread.pop(fields["charge"])
        account = replace(charge.account, fingerprint=fields["fingerprint"])
        spending = self._joined(account)
        if not fields["released"]:  # noise went out instead: the source stays charged, the data not
            spending.remove(charge)
        self._index(spending, account)

    def _index(self, spending: Spending, account: Account) -> None:
        if account.fingerprint is not None:
            spending.fingerprints.add(account.fingerprint)
        for source in spending.sources:
            self._by_key[account.unit, "source", source] = spending
        for fingerprint in spending.fingerprints:
            self._by_key[account.unit, "fingerprint", fingerprint] = spending


def _entries_at(location: str | Path) -> list[LedgerEntry]:
    store = LedgerStore.readable(location)
    try:
        with store.transaction() as connection:
            return store.entries_from(connection, 0)
    finally:
        store.close()


def _entries_if_any(location: str | Path) -> list[LedgerEntry]:
    """Return a ledger's entries, unverified; none without a file."""
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

    It certifies a few more, so that most later calls compare two counters.
    """
    question = (event, target_epsilon, delta, relation)
    if count <= _CERTIFIED.get(question, 0):
        return True
    for certified, interval in (
        (math.ceil(_AHEAD * count), SEARCH_INTERVAL),
        (count, SEARCH_INTERVAL),
        (count, None),
    ):
        history = freeze({event: certified})
        fits = renyi_epsilon(history, delta, relation) <= target_epsilon
        if not fits:  # the slower bound, only where the quick one is too large
            tight = tight_epsilon(history, delta, neighboring_relation=relation, interval=interval)
            fits = tight <= target_epsilon
        if fits:
            _CERTIFIED[question] = certified
            return True
    return False


def _in_words(exceeded: Limit, charge: Charge) -> str:
    cap, limit = charge.cap, charge.limit
    if exceeded is Limit.NEIGHBOURS:
        return (
            f"the neighbours of all charges so far: {charge.neighboring_relation} would count "
            "those again at twice the distance; plan for zero-out or add-or-remove-one"
        )
    if exceeded is Limit.CAP:
        assert cap is not None  # it was exceeded
        return f"{_together(cap, charge)}, the cap over all runs"
    assert limit is not None
    return f"{_together(limit.budget, charge)}, what {limit.run} asked for itself"


def _together(budget: PrivacyBudget, charge: Charge) -> Guarantee:
    unit, relation = charge.account.unit, charge.neighboring_relation
    return Guarantee.together(budget.epsilon, budget.delta, unit=unit, neighbours=relation)


def _gaussian_mu_squared(releases: FrozenHistory, relation: NeighboringRelation) -> float | None:
    """Return the sum of releases' squared mu if all are Gaussian, in whatever order; else None."""
    total = 0.0
    for event, count in releases:
        if not isinstance(event, GaussianEvent):
            return None
        total += count * mu_squared(event, relation)
    return total


def _as_first(
    releases: FrozenHistory, first: PrivacyEvent | None
) -> tuple[PrivacyEvent, int] | None:
    """Return the one kind of release that bounds all, and their number; None: there is none.

    It is the only kind, or the first one, if all others are it with no less noise.
    """
    if len(releases) == 1:
        return releases[0]
    if first is None or not all(_has_no_less_noise(event, first) for event, _ in releases):
        return None
    return first, sum(count for _, count in releases)


def _has_no_less_noise(event: PrivacyEvent, first: PrivacyEvent) -> bool:
    """Tell whether an event is another one, but for perhaps more noise."""
    if not (isinstance(event, _Noised) and isinstance(first, _Noised)):
        return event == first
    as_loud = replace(event, noise_multiplier=first.noise_multiplier)
    return as_loud == first and event.noise_multiplier >= first.noise_multiplier


def _odometer(first: PrivacyBudget, relation: NeighboringRelation) -> RenyiOdometer:
    foreseen = replace(first, delta=(1.0 - DECLARED_SHARE) * first.delta)
    return RenyiOdometer(foreseen=foreseen, neighboring_relation=relation)


def _to_keep(relations: set[NeighboringRelation]) -> list[NeighboringRelation]:
    """Return the relations under which a limit must hold, in fixed order.

    Each is checked by itself: a sample of fixed size moves most when one unit is removed, others
    when one is replaced. Zero-out never moves more than either.
    """
    return sorted(relations - {NeighboringRelation.ZERO_OUT} or relations)
