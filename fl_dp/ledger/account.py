"""An account: releases about the same units, each entered at its budget. No disk, no lock.

A plan is entered whole before it begins, at all that its filter may admit; what it leaves stays
spent. The account's total is the smaller of a sum of budgets and the epsilon of a Renyi odometer,
each at its own part of delta (docs/privacy.md, "Several trainings of the same people"). Plans that
were all fixed before any began are one entry, and what has no promise is one, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyBudgetExhausted,
    PrivacyEvent,
    freeze,
)
from fl_dp.accounting.events import FrozenHistory
from fl_dp.accounting.filters import RenyiOdometer
from fl_dp.accounting.gaussian_formulas import gaussian_epsilon, gaussian_noise_multiplier
from fl_dp.accounting.renyi import divergence_at_order, epsilon_at_orders, gaussian_room
from fl_dp.codec import decode, encode
from fl_dp.guarantee import Guarantee
from fl_dp.mechanisms import SecureRandom
from fl_dp.option_errors import OptionError
from fl_dp.plan import Plan, RecordPlan, plan_from_dict
from fl_dp.plan.ceiling import Neighbours, epsilon_ceiling, largest_history, renyi_ceiling
from fl_dp.promise import brief_epsilon, delta_rounded_up, floor

from .entered import Entered, EnteredRecords, EnteredSweep, EnteredTraining, Unprotected
from .entries import ANOTHER_VERSION, SCHEMA, require_printable, require_schema
from .population import AccountPeople
from .state import TrainingState

_ROUNDING = 1.0 + 1e-12  # of sums of budgets
_FORESEEN = 2.0  # epsilon over the first plan's, without a cap: that of about four like it


@dataclass(frozen=True, kw_only=True)
class OrderShare:
    """A Renyi order of an account's odometer, and its share of the account's delta."""

    order: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class AccountTerms:
    """What is fixed when an account is made.

    Attributes:
        name: Name of those whom it protects: of the first file or database.
        delta: Delta of the total: of all plans, and of the odometer.
        cap: Largest epsilon of the total, for the first plan's unit and neighbours; None: no cap.
        people: Whom it protects, as digests; None: whoever opens it says that they are the same.
        odometer: Orders of the odometer; none: the total is the sum.
    """

    name: str
    delta: float
    cap: float | None
    people: AccountPeople | None = None
    odometer: tuple[OrderShare, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        first: Entered,
        cap: PrivacyBudget | None,
        people: AccountPeople | None = None,
        *,
        delta: float = 0.0,
    ) -> AccountTerms:
        """Return the terms of an account that begins with an entry.

        Without a cap all later plans together have as much delta as the first one. The odometer has
        half of what the first plan leaves, if that has a Renyi bound.

        Args:
            name: The account's.
            first: The entry.
            cap: As for `PrivacyLedger.open`.
            people: Whom it protects.
            delta: A plan's usual delta, for an entry without one.
        """
        own, of_first = first.budget, first.delta or delta
        total = min(2.0 * of_first, 0.5) if cap is None else cap.delta
        odometer: tuple[OrderShare, ...] = ()
        share = (cap.delta - of_first) / 2.0 if cap else min(of_first, 0.5 - total)
        if own is not None and first.neighbours is not None and share > 0.0:
            epsilon = _FORESEEN * own.epsilon if cap is None else cap.epsilon
            foreseen = PrivacyBudget(epsilon=epsilon, delta=share)
            shares = RenyiOdometer(foreseen=foreseen).shares
            if first.has_divergences(first.neighbours, tuple(shares)):
                odometer = tuple(OrderShare(order=o, delta=s * share) for o, s in shares.items())
                total = total if cap else total + share
        epsilon_of_cap = None if cap is None else cap.epsilon
        return cls(name=name, delta=total, cap=epsilon_of_cap, people=people, odometer=odometer)

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: A field is out of range.
        """
        require_printable(self.name)
        _ = self.budget
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"an account's delta must lie in (0, 1), got {self.delta}")
        for part in self.odometer:
            if not (part.order > 1.0 and part.delta > 0.0):
                raise ValueError(f"an odometer's order and delta are out of range: {part}")
        if not self.delta_of_odometer < self.delta:
            raise ValueError("an account's odometer leaves no delta to plans")

    @property
    def delta_of_odometer(self) -> float:
        """The odometer's part of delta; the rest is of plans, whose budgets are added up."""
        return math.fsum(part.delta for part in self.odometer)

    @property
    def budget(self) -> PrivacyBudget | None:
        """The cap with its delta; None without one."""
        return None if self.cap is None else PrivacyBudget(epsilon=self.cap, delta=self.delta)


class AccountState:
    """The state of an account after the entries so far.

    Attributes:
        entered: What it is charged for, by name, in the order in which it was entered.
        trainings: Each training's state by its name, those of sweeps among them.
    """

    def __init__(self) -> None:
        """Start before the first entry."""
        self.entered: dict[str, Entered] = {}
        self.trainings: dict[str, TrainingState] = {}
        self._sweep_of: dict[str, EnteredSweep] = {}  # by the name of a training
        self._clients: dict[str, str | None] = {}  # digest of how each training's are made
        self._terms: AccountTerms | None = None
        self._neighbours: Neighbours | None = None

    @classmethod
    def made(cls, terms: AccountTerms, first: Entered) -> AccountState:
        """Return the account that a first entry begins, before it."""
        account = cls()
        account._terms, account._neighbours = terms, first.neighbours
        return account

    @property
    def terms(self) -> AccountTerms:
        """What was fixed when it was made."""
        assert self._terms is not None  # the first entry has them
        return self._terms

    @property
    def neighbours(self) -> Neighbours:
        """Unit and neighbours of the cap: those of the first plan."""
        assert self._neighbours is not None  # a cap comes with a plan
        return self._neighbours

    @property
    def cap(self) -> Guarantee | None:
        """The cap, as every screen shows it; None: there is none."""
        if self.terms.cap is None:
            return None
        return self.neighbours.together(self.terms.cap, self.terms.delta)

    @property
    def size(self) -> int:
        """Number of trainings and of other entries, each training of a sweep by itself."""
        return sum(max(len(entered.states), 1) for entered in self.entered.values())

    @property
    def unprotected(self) -> tuple[str, ...]:
        """Names of the entries without a promise, which leave the account's people without any."""
        return tuple(name for name, one in self.entered.items() if isinstance(one, Unprotected))

    def differences(self, name: str, plan: Plan) -> list[str] | None:
        """Return how a training's plan differs from another, in words; None: no such training."""
        if name not in self.trainings:
            return None
        theirs, ours = _flat(self.trainings[name].plan), _flat(plan)
        differences: list[str] = []
        for field in ours | theirs:
            wanted, in_ledger = ours.get(field), theirs.get(field)
            if wanted != in_ledger:
                differences.append(f"{field} is {wanted} here and {in_ledger} in the ledger")
        return differences

    def require_cap(self, cap: PrivacyBudget | None) -> None:
        """Check that a wanted cap is the account's; None asks for none in particular.

        Raises:
            OptionError: It is another one.
        """
        if cap is None or cap == self.terms.budget:
            return
        fixed = "no cap" if self.cap is None else f"the cap {self.cap}"
        raise OptionError(
            f"the account {self.terms.name} was made with {fixed}, which is fixed for good, and "
            f"not with epsilon={cap.epsilon:g} and delta={cap.delta:g}: leave cap out"
        )

    def require_people(
        self,
        name: str,
        people: AccountPeople | None,
        clients: str | None,
        *,
        beside: Iterable[str] = (),
    ) -> None:
        """Check that a training is of the account's people, and a cap's of the same clients.

        Args:
            name: The training's name.
            people: Its people; None: whoever opens it says that they are the account's.
            clients: Digest of how their rows are at clients; None: as the account's.
            beside: Those of trainings that are entered with it.

        Raises:
            OptionError: It is not.
        """
        account, own = self.terms.name, self.terms.people
        if people is not None and own is not None and not own.are(people):
            raise OptionError(
                f"the training '{name}' is of other people than the account {account}: its data "
                "share neither source nor all rows with those that the account was made for. Give "
                "them an account, and a ledger, of their own"
            )
        if self.has_other_clients(name, clients) and not self._has_room_for(name):
            raise OptionError(
                f"the training '{name}' has other clients than when it began: continue it with "
                "the same seed and split, or give this one a name of its own"
            )
        if self.terms.cap is None or self._neighbours is None or self._neighbours.unit != "client":
            return
        others = [*beside, *(made for other, made in self._clients.items() if other != name)]
        if any(self._is_of_others(made, clients) for made in others):
            raise OptionError(
                f"the clients of '{name}' are not those whom the cap of the account {account} "
                "protects, as another seed or split deals rows to clients anew: keep seed and "
                "split, or train in an account without a cap, whose total is that of records"
            )

    def has_other_clients(self, name: str, clients: str | None) -> bool:
        """Tell whether a training was entered with other clients."""
        return self._is_of_others(self._clients.get(name), clients)

    @staticmethod
    def _is_of_others(clients: str | None, others: str | None) -> bool:
        return None not in (clients, others) and clients != others

    def require_source(self, randomness: str) -> None:
        """Check that a source of noise and coins keeps a cap.

        Raises:
            OptionError: Its noise can be predicted, and promises nothing.
        """
        if self.terms.cap is not None and randomness == SecureRandom.INSECURE_KIND:
            raise OptionError(
                f"the account {self.terms.name} has a cap, and noise from an insecure source "
                "promises nothing: leave rng or insecure_seed out"
            )

    def is_of_sweep(self, name: str) -> bool:
        """Tell whether a training was entered with others, as one."""
        return name in self._sweep_of

    def require_enterable(self, name: str, plan: Plan) -> None:
        """Check that a plan may be entered as a training of that name.

        One of which nothing was reserved makes room for another plan, as nothing was released.

        Raises:
            OptionError: There is an entry of that name, with another plan; or as `require_room`.
            PrivacyBudgetExhausted: The account has less left.
        """
        if name in self.trainings and not self._has_room_for(name):
            raise OptionError(
                f"the training '{name}' of this ledger has another plan: "
                f"{'; '.join(self.differences(name, plan) or ())}. To go on with it take its "
                "plan; another name= makes a further training, which adds to the account's total"
            )
        self.require_new([name])
        self.require_room(name, EnteredTraining(name, TrainingState(plan)))

    def require_new(self, names: Iterable[str]) -> None:
        """Check that nothing was entered under some names, or nothing came of it.

        Raises:
            OptionError: Something was.
        """
        for name in names:
            require_printable(name)
            if not self._has_room_for(name):
                raise OptionError(
                    f"the account {self.terms.name} has another entry '{name}': give this one a "
                    "name of its own"
                )

    def _has_room_for(self, name: str) -> bool:
        if name in self._sweep_of:
            return False
        return name not in self.entered or self.entered[name].is_replaceable

    def require_room(self, name: str, new: Entered, *, replayed: bool = False) -> None:
        """Check that an entry fits beside all entries of other names.

        Args:
            name: The entry's.
            new: The entry.
            replayed: Whether it is on disk; bounds that are computed anew differ between versions.

        Raises:
            OptionError: The account has a cap, and no bound is known on what the entry says of its
                unit.
            PrivacyBudgetExhausted: The account has less left.
        """
        others = [entered for other, entered in self.entered.items() if other != name]
        terms, entered = self.terms, [*others, new]
        if terms.cap is not None and new.budget is None:
            raise OptionError(
                f"the account {terms.name} has a cap, and '{name}' would have no promise: train "
                "with one, or in an account without a cap"
            )
        counted = new.neighbours if terms.cap is None else self.neighbours
        left = self._left_of_delta(others)
        if new.delta > left + (_ROUNDING - 1.0) * terms.delta and (
            counted is None or math.isinf(self._by_odometer(counted, entered))
        ):
            raise PrivacyBudgetExhausted(
                f"delta {delta_rounded_up(new.delta)} of the training '{name}' is more than the "
                f"{floor(max(left, 0.0), 3)} left of the account {terms.name}, which has "
                f"{delta_rounded_up(terms.delta)}: {self._remedy_of_delta()}"
            )
        if terms.cap is None:
            return
        anew = _ROUNDING if not replayed else 1.0 + ANOTHER_VERSION
        own = {one.neighbours for one in entered} == {self.neighbours}
        if self._by_sum(self.neighbours, entered) <= terms.cap * (_ROUNDING if own else anew):
            return
        if self._by_odometer(self.neighbours, entered) <= terms.cap * anew:
            return
        wanted = new.ceiling(self.neighbours)
        if math.isinf(wanted):
            raise OptionError(
                f"the account {terms.name} has a cap on each {self.neighbours.unit}, "
                f"{self.neighbours.relation}, and no bound is known on what this plan says of "
                "one: train with a plan of that unit, or in an account without a cap"
            )
        room = self._room_for(new, others)
        raise PrivacyBudgetExhausted(
            f"the training '{name}' would spend epsilon {brief_epsilon(wanted)}, and "
            f"{floor(room, 6)} is left of the account {terms.name}, whose cap is {self.cap}: plan "
            "with at most that, or not at all"
        )

    def _room_for(self, new: Entered, others: Sequence[Entered]) -> float:
        """Return the epsilon of a plan like a refused one that a cap leaves room for, about."""
        cap, wanted = self.terms.cap or 0.0, new.ceiling(self.neighbours)
        of_others = self._divergences(self.neighbours, others)
        of_new = self._divergences(self.neighbours, [new])
        part = 0.0  # of the plan's divergences
        for spent, more, share in zip(of_others, of_new, self.terms.odometer, strict=True):
            left = divergence_at_order(cap, share.order, share.delta) - spent
            if math.isfinite(left):
                part = max(part, left / more)
        room = 0.0
        if part > 0.0:  # as a Gaussian's
            noise = gaussian_noise_multiplier(wanted, new.delta) / math.sqrt(part)
            room = gaussian_epsilon(noise, new.delta)
        if new.delta <= self._left_of_delta(others) + (_ROUNDING - 1.0) * self.terms.delta:
            room = max(room, cap - self._by_sum(self.neighbours, others))
        return room

    def _remedy_of_delta(self) -> str:
        if not any(state.reserved for state in self.trainings.values()):
            return "nothing was spent in it, so you may delete its ledger and start anew"
        if not self.left_of_delta:
            return "begin another account, in a ledger of its own, and add its total to this one's"
        return "give a smaller delta, or none, for half of what is left"

    def require_within_ceiling(self, name: str, event: PrivacyEvent) -> None:
        """Check that one more release keeps a training at what the account has charged for it.

        Its own filter does, but in a sweep, and where a cap is of other units or neighbours.

        Raises:
            PrivacyBudgetExhausted: It would exceed that.
        """
        if name in self._sweep_of:
            self._sweep_of[name].require_room(name, event)
            return
        state, neighbours = self.trainings[name], self._neighbours
        plan = state.plan
        if self.terms.cap is None or neighbours is None:
            return
        if Neighbours.of(plan) == neighbours and not self.terms.odometer:
            return
        after = freeze([*state.history, (event, 1)])
        if _is_part(after, plan.history) or _is_part(after, largest_history(plan)):
            return
        orders = tuple(share.order for share in self.terms.odometer)
        charged = epsilon_ceiling(plan, neighbours)
        divergences = renyi_ceiling(plan, neighbours, orders)
        if (
            epsilon_ceiling(plan, neighbours, after) > charged
            or (renyi_ceiling(plan, neighbours, orders, after) > divergences).any()
        ):
            raise PrivacyBudgetExhausted(
                f"'{name}' would repeat more than the account's cap was charged for, "
                f"{neighbours.together(charged, plan.budget.delta)}"
            )

    @property
    def left_of_delta(self) -> float:
        """Delta that no plan has taken."""
        return max(self._left_of_delta(self.entered.values()), 0.0)

    @property
    def delta_of_further(self) -> float:
        """Largest delta to offer to a further plan: what is left, or else the odometer's.

        The odometer counts no plan's own delta, so with it plans go on when nothing is left.
        """
        return self.left_of_delta or self.terms.delta_of_odometer

    def _left_of_delta(self, entered: Iterable[Entered]) -> float:
        of_plans = self.terms.delta - self.terms.delta_of_odometer
        return of_plans - math.fsum(one.delta for one in entered)

    def left(self) -> PrivacyBudget | None:
        """Return the largest budget that a further plan may have; None: there is no cap.

        By the odometer it is that of Gaussians without sampling; others' may be a little smaller.

        Raises:
            PrivacyBudgetExhausted: Nothing is left.
        """
        cap, delta = self.terms.budget, self.delta_of_further
        if cap is None:
            return None
        epsilon = 0.0
        if delta > 0.0 and math.isfinite(self.total(self.neighbours)):
            epsilon = cap.epsilon - self._by_sum(self.neighbours, self.entered.values())
            deltas = {share.order: share.delta for share in self.terms.odometer}
            spent = self._divergences(self.neighbours, self.entered.values())
            mu = gaussian_room(spent, deltas, cap.epsilon)
            if mu > 0.0:
                epsilon = max(epsilon, gaussian_epsilon(1.0 / mu, delta))
        if epsilon <= (_ROUNDING - 1.0) * cap.epsilon:
            raise PrivacyBudgetExhausted(
                f"nothing is left of the cap {self.cap} of the account {self.terms.name}"
            )
        return PrivacyBudget(epsilon=epsilon, delta=delta)

    def total(self, neighbours: Neighbours) -> float:
        """Return the epsilon of all entries together, at the account's delta.

        Infinity where no bound is known: of one of them, as its noise was predictable, or of a
        client, where rows were dealt to clients anew.
        """
        if any(state.insecure for state in self.trainings.values()):
            return math.inf
        if neighbours.unit == "client" and len({*self._clients.values()} - {None}) > 1:
            return math.inf
        entered = [*self.entered.values()]
        return min(self._by_sum(neighbours, entered), self._by_odometer(neighbours, entered))

    def _by_sum(self, neighbours: Neighbours, entered: Collection[Entered]) -> float:
        """Return the sum of some entries' epsilons; infinity where their deltas are too many."""
        if self._left_of_delta(entered) < (1.0 - _ROUNDING) * self.terms.delta:
            return math.inf
        return math.fsum(one.ceiling(neighbours) for one in entered)

    def _by_odometer(self, neighbours: Neighbours, entered: Collection[Entered]) -> float:
        """Return the odometer's epsilon of some entries; infinity where it has no bound."""
        deltas = {share.order: share.delta for share in self.terms.odometer}
        if not deltas:
            return math.inf
        return epsilon_at_orders(self._divergences(neighbours, entered), deltas)

    def _divergences(
        self, neighbours: Neighbours, entered: Iterable[Entered]
    ) -> NDArray[np.float64]:
        """Return some entries' largest divergences together, at the odometer's orders."""
        orders = tuple(share.order for share in self.terms.odometer)
        total = np.zeros(len(orders))
        for one in entered:
            total += one.divergences(neighbours, orders)
        return total

    def totals_in_words(self) -> list[str]:
        """Return each total, or why there is none."""
        if self.unprotected:
            return ["no privacy: something has no promise"]
        return [self.total_in_words(neighbours) for neighbours in self.totals()]

    def total_in_words(self, neighbours: Neighbours) -> str:
        """Return the total for some neighbours, where everything has a promise."""
        total = self.total(neighbours)
        if math.isinf(total):
            return f"no number for one {neighbours.unit} ({neighbours.relation})"
        return str(neighbours.together(total, self.terms.delta))

    def left_in_words(self) -> str:
        """Return what is left of the cap; without one, of delta."""
        try:
            left = self.left()
        except PrivacyBudgetExhausted:
            return f"nothing, of the cap {self.cap}"
        if left is None:
            delta = floor(self.left_of_delta, 3)
            return f"delta {delta} of {delta_rounded_up(self.terms.delta)}, and no cap on epsilon"
        return f"epsilon {floor(left.epsilon, 6)} at delta {floor(left.delta, 3)}, of {self.cap}"

    def totals(self) -> dict[Neighbours, float]:
        """Return the total for every entry's own neighbours, and for their records."""
        own = [entered.neighbours for entered in self.entered.values()]
        promised = [neighbours for neighbours in own if neighbours is not None]
        if any(neighbours.unit != "record" for neighbours in promised):
            promised.append(Neighbours(unit="record", relation=NeighboringRelation.REPLACE_ONE))
        return {neighbours: self.total(neighbours) for neighbours in promised}

    def require_paid(self) -> None:
        """Check that what is entered and repeated keeps sweeps' budgets and the cap.

        Other versions' bounds have a margin.

        Raises:
            ValueError: It does not.
        """
        for entered in self.entered.values():
            if isinstance(entered, EnteredSweep):
                entered.require_paid()
        cap = self.terms.cap
        if cap is not None and self.total(self.neighbours) > cap * (1.0 + ANOTHER_VERSION):
            raise ValueError(f"its trainings exceed the cap {self.cap}")

    def add(self, sequence: int, fields: dict[str, Any]) -> None:
        """Update the state by one entry.

        Raises:
            KeyError: A field is missing.
            TypeError: A field has another type.
            ValueError: It can't stand there, or is unknown to this version.
        """
        kind, first = fields["kind"], sequence == 1
        if first:
            if kind not in _ENTERED:
                raise ValueError("a ledger starts with its first plan, or with another entry's")
            require_schema(fields["schema"], SCHEMA)
            self._terms = decode(AccountTerms, fields["account"], "account")
        elif fields.keys() & {"schema", "account"}:
            raise ValueError("a ledger is of one account")
        name = fields["training"]
        if kind in _ENTERED:
            self._enter_clients(name, fields.get("clients"))
            self._enter(name, _ENTERED[kind](fields))
            return
        if name not in self.trainings:
            raise ValueError(f"no training '{name}' was entered before")
        if kind == "run":
            self.require_source(fields["randomness"])
        self.trainings[name].add(sequence, fields)

    def _enter_clients(self, name: str, clients: object) -> None:
        """Keep how clients of an entry's trainings are made: a digest, of a sweep one for each."""
        by_training = clients if isinstance(clients, dict) else {name: clients}
        for training, digest in by_training.items():
            if digest is not None and not isinstance(digest, str):
                raise ValueError("its clients are no digest")
            self._clients.pop(training, None)
            if self._neighbours is not None:  # else nobody is there yet
                self.require_people(training, None, digest)
            self._clients[training] = digest

    def _enter(self, name: str, new: Entered) -> None:
        if self._neighbours is None:
            self._neighbours = new.neighbours
        try:
            self.require_new({name, *new.states})
            self.require_room(name, new, replayed=True)
        except PrivacyBudgetExhausted as error:
            raise ValueError(str(error)) from error
        for names in (self.entered, self.trainings):
            names.pop(name, None)  # the last one is the newest
        self.entered[name] = new
        self.trainings |= new.states
        if isinstance(new, EnteredSweep):
            self._sweep_of |= dict.fromkeys(new.states, new)


_ENTERED: dict[str, Callable[[dict[str, Any]], Entered]] = {
    "plan": lambda fields: EnteredTraining(
        fields["training"], TrainingState(plan_from_dict(fields["plan"]))
    ),
    "sweep": EnteredSweep.read,
    "records": lambda fields: EnteredRecords(decode(RecordPlan, fields["plan"], "plan")),
    "unprotected": lambda fields: Unprotected(fields["what"]),
}


def first_entry(terms: AccountTerms) -> dict[str, Any]:
    """Return the fields that the first entry has besides a later one's."""
    return {"schema": SCHEMA, "account": encode(terms)}


def _is_part(history: FrozenHistory, whole: FrozenHistory) -> bool:
    return not Counter(dict(history)) - Counter(dict(whole))


def _flat(plan: Plan) -> dict[str, Any]:
    """Return a plan's fields, nested ones under names such as `secure_sum.bits`."""
    flat: dict[str, Any] = {}
    for field, value in plan.to_dict().items():
        if isinstance(value, dict):
            flat |= {f"{field}.{name}": inner for name, inner in value.items()}
        else:
            flat[field] = value
    return flat
