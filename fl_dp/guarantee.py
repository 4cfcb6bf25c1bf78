"""Guarantee: an epsilon with all that the number means nothing without.

>>> guarantee = Guarantee(
...     epsilon=8.0, delta=1e-3, unit="client", neighbours="zero-out", against=Against.MODELS
... )
>>> str(guarantee)
'epsilon 8 at delta 0.001, one client (zero-out), against whoever sees the models'
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol, Self, TypeVar

from fl_dp.promise import NO_PRIVACY, UNITS, brief_epsilon, delta_rounded_up, is_promise

ENDED_EARLY = (
    "Less was spent than is stated: the training ended early, or no client was asked as often as "
    "planned. What was spent is a promise only if no release had a part in that; else the stated "
    "epsilon holds, which is the whole plan's."
)
"""Reason for the difference between what a run states and what it spent."""


class Against(StrEnum):
    """Adversary of a promise, in a few words; a statement says all that it sees and knows."""

    MODELS = "whoever sees the models"
    """The server is trusted with clients' updates, and hides who took part unless all may know."""
    HONEST_SERVER = "a server that follows the protocol"
    """And a few nodes that collude with it."""
    LYING_SERVER = "a server that lies"
    """And a few nodes that collude with it."""
    SERVER = "everyone, the server included"
    """Each client adds its own noise."""
    OF_EACH_RUN = "whom each run's promise names"
    """What runs of different promises add up to, in an account."""


ENGLISH = {
    "promise.nothing": NO_PRIVACY,
    "promise.unknown": "not known",
    "promise.of_budget": "{epsilon} of {budget}",
    "promise.at_most": "at most {budget}",
    "promise.so_far": "{epsilon} of {budget} so far",
    "promise.early": "{epsilon} stated, {spent} spent",
    "promise.why": ENDED_EARLY,
    "promise.terms": "at delta {delta}, {unit} ({neighbours}), against {against}",
    "promise.delta": "at delta {delta}, with unit, neighbours and adversary not known",
    **{f"promise.unit.{unit}": f"one {unit}" for unit in UNITS},
    **{f"promise.against.{against.name.lower()}": str(against) for against in Against},
}
"""Words of a promise; a page's language has its own by the same keys."""


class _Budget(Protocol):
    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...


class Promising(Protocol):
    """A plan: a budget, and to whom it promises that against whom."""

    @property
    def budget(self) -> _Budget:
        """Largest epsilon, and delta."""

    @property
    def unit(self) -> str:
        """The protected unit, of `UNITS`."""

    @property
    def neighboring_relation(self) -> str:
        """The difference between two neighbouring populations."""

    @property
    def against(self) -> Against:
        """The adversary."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One promise: its epsilon, and all that the number means nothing without.

    Screens, pages and pictures show an epsilon by this object alone.

    Attributes:
        epsilon: The bound that is stated; None if no bound is known, or none is stated yet.
        spent: Epsilon of all releases so far; None if unknown. A promise only if no release had a
            part in stopping there.
        budget: Largest epsilon that may be spent; None without a budget.
        delta: Probability with which epsilon may not hold; None if unknown.
        unit: The protected unit, of `UNITS`; None if unknown.
        neighbours: The neighbouring relation, for example `zero-out`; None if unknown.
        against: The adversary; None if unknown.
        insecure: Whether noise or coins can be predicted.
    """

    epsilon: float | None = None
    spent: float | None = None
    budget: float | None = None
    delta: float | None
    unit: str | None
    neighbours: str | None
    against: Against | None
    insecure: bool = False

    @classmethod
    def of(
        cls,
        plan: Promising,
        epsilon: float | None = None,
        *,
        spent: float | None = None,
        insecure: bool = False,
    ) -> Self:
        """Return an epsilon of a plan, or its budget alone."""
        return cls(
            epsilon=epsilon,
            spent=spent,
            budget=plan.budget.epsilon,
            delta=plan.budget.delta,
            unit=plan.unit,
            neighbours=plan.neighboring_relation,
            against=plan.against,
            insecure=insecure,
        )

    @classmethod
    def together(cls, epsilon: float | None, delta: float, *, unit: str, neighbours: str) -> Self:
        """Return what runs of different promises add up to, or may."""
        return cls(
            epsilon=epsilon,
            delta=delta,
            unit=unit,
            neighbours=neighbours,
            against=Against.OF_EACH_RUN,
        )

    @classmethod
    def read(cls, document: object) -> Self | None:
        """Return a guarantee from JSON of anybody; a part that is no such value is None.

        Returns:
            None if the document is no object.
        """
        if not isinstance(document, Mapping):
            return None
        unit, relation = document.get("unit"), document.get("neighbours")
        against = document.get("against")
        return cls(
            **{name: _number(document.get(name)) for name in _NUMBERS},
            unit=unit if unit in UNITS else None,
            neighbours=relation if _RELATION.fullmatch(str(relation)) else None,
            against=Against(against) if against in list(Against) else None,
            insecure=document.get("insecure") is True,
        )

    @classmethod
    def stated(cls, statement: Mapping[str, Any]) -> Self:
        """Return the guarantee of a statement's JSON of anybody, read as by `read`.

        Without a stated epsilon nothing is promised, whatever else is written.
        """
        bounds, so_far = statement.get("epsilon"), statement.get("epsilon_so_far")
        budget, unit = statement.get("budget"), _UNIT.match(str(statement.get("unit")))
        spent = [bound for bound in _items(so_far).values() if isinstance(bound, int | float)]
        epsilon = _number(_items(bounds).get(str(statement.get("quoted"))))
        numbers: dict[str, Any] = {}
        if epsilon is not None:
            numbers = {
                "epsilon": epsilon,
                "spent": min(spent, default=None),
                "budget": _items(budget).get("epsilon"),
            }
        guarantee = cls.read(
            {
                **numbers,
                "delta": statement.get("delta"),
                "unit": None if unit is None else unit[1],
                "neighbours": statement.get("neighboring_relation"),
                "against": statement.get("against"),
                "insecure": statement.get("insecure"),
            }
        )
        assert guarantee is not None  # it is an object
        return guarantee

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, without what is unknown."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def first(self) -> float | None:
        """The stated epsilon; before it what was spent, then the budget; None if none is known."""
        numbers = (self.epsilon, self.spent, self.budget)
        return next((number for number in numbers if number is not None), None)

    @property
    def _largest(self) -> float | None:
        """The stated epsilon; before that the most that may be spent."""
        if self.epsilon is not None:
            return self.epsilon
        return max((e for e in (self.spent, self.budget) if e is not None), default=None)

    @property
    def promises(self) -> bool:
        """Whether anything is promised: by what is stated, before that by what may be spent."""
        return is_promise(self._largest, insecure=self.insecure)

    @property
    def ended_early(self) -> bool:
        """Whether more is stated than was spent."""
        if self.epsilon is None or self.spent is None or not self.promises:
            return False
        return brief_epsilon(self.spent) != brief_epsilon(self.epsilon)

    @property
    def share_spent(self) -> float | None:
        """Spent share of the budget, at most 1; None where no budget is being spent.

        A bar of it would be full for any run that spent its budget, whatever it promises.
        """
        if self.spent is None or not self.budget or not self.promises:
            return None
        if self.epsilon is not None and not self.ended_early:
            return None
        return min(self.spent / self.budget, 1.0)

    @property
    def number(self) -> str:
        """The first epsilon, or `NO_PRIVACY`."""
        first = self.first
        return NO_PRIVACY if first is None or not self.promises else brief_epsilon(first)

    @property
    def numbers(self) -> str:
        """What is stated beside what was spent, if they differ; else what is left of a budget."""
        return self.numbers_in(ENGLISH)

    def numbers_in(self, words: Mapping[str, str]) -> str:
        """Return the same in words by the keys of `ENGLISH`."""
        values = {"epsilon": self.number}
        for name, value in (("spent", self.spent), ("budget", self.budget)):
            values[name] = "" if value is None else brief_epsilon(value)
        if not self.promises:
            text = "promise.nothing"
        elif self.ended_early:
            text = "promise.early"
        elif self.budget is None:
            return self.number
        elif self.epsilon is not None:
            text = "promise.of_budget"
        else:
            text = "promise.at_most" if self.spent is None else "promise.so_far"
        return words[text].format(**values)

    @property
    def planned(self) -> str:
        """The budget in one line."""
        if self.budget is None:
            return NO_PRIVACY
        return self._in_one_line("at most ", self.budget)

    @property
    def terms(self) -> str:
        """All but the numbers: only where these are equal can two epsilons be compared."""
        return self.terms_in(ENGLISH)

    def terms_in(self, words: Mapping[str, str]) -> str:
        """Return the same in words by the keys of `ENGLISH`."""
        unknown = words["promise.unknown"]
        delta = unknown if self.delta is None else delta_rounded_up(self.delta)
        if (self.unit, self.neighbours, self.against) == (None, None, None):
            return words["promise.delta"].format(delta=delta)
        unit, against = unknown, unknown
        if self.unit is not None:
            unit = words[f"promise.unit.{self.unit}"]
        if self.against is not None:
            against = words[f"promise.against.{self.against.name.lower()}"]
        return words["promise.terms"].format(
            delta=delta,
            unit=unit,
            neighbours=self.neighbours or unknown,
            against=against,
        )

    def __str__(self) -> str:
        """The promise in one line; an epsilon that promises nothing is called what it is."""
        return self._in_one_line("", self.first)

    @property
    def warning(self) -> str | None:
        """What to say of an epsilon that promises nothing; None if it promises something."""
        if self.promises:
            return None
        _, colon, epsilon = str(self).partition(": ")
        if not colon:
            return "NO PRIVACY: nothing is promised"
        return f"NO PRIVACY: {epsilon} promises nothing; 1 is strong, 8 weak but usual"

    def _in_one_line(self, words: str, epsilon: float | None) -> str:
        if not self.promises:
            words, epsilon = f"{NO_PRIVACY}: ", self._largest
        if self.insecure or epsilon is None or not math.isfinite(epsilon):
            return NO_PRIVACY
        return f"{words}epsilon {brief_epsilon(epsilon)} {self.terms}"


T = TypeVar("T")
Terms = TypeVar("Terms", bound=Hashable)


def grouped(items: Iterable[T], terms: Callable[[T], Terms]) -> dict[Terms, list[T]]:
    """Return items by their terms, in order: epsilons of different promises do not compare."""
    groups: dict[Terms, list[T]] = {}
    for item in items:
        groups.setdefault(terms(item), []).append(item)
    return groups


def weakest_guarantee(guarantees: Sequence[Guarantee]) -> Guarantee:
    """Return the one that promises least, of guarantees with the same terms."""
    return max(guarantees, key=lambda one: (not one.promises, one.epsilon or 0.0, one.spent or 0.0))


_UNIT = re.compile(rf"one ({'|'.join(UNITS)})\b")
_RELATION = re.compile(r"[a-z-]{1,40}")
_NUMBERS = ("epsilon", "spent", "budget", "delta")


def _number(value: object) -> float | None:
    """Return a finite number of at least 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        finite = float(value)
    except OverflowError:
        return None
    return finite if math.isfinite(finite) and finite >= 0.0 else None


def _items(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
