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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol, Self, TypeVar

from fl_dp.promise import NO_PRIVACY, UNITS, brief_epsilon, delta_rounded_up, is_promise

UNKNOWN = "not known"
"""Text for a part of a promise that a file does not tell."""

ENDED_EARLY = (
    "The training ended early. What was spent is a promise only if no release had a part in "
    "stopping there; else the stated epsilon holds, which is the whole plan's."
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
    def promises(self) -> bool:
        """Whether anything is promised: by what is stated, before that by what may be spent."""
        largest = self.epsilon
        if largest is None:
            largest = max((e for e in (self.spent, self.budget) if e is not None), default=None)
        return is_promise(largest, insecure=self.insecure)

    @property
    def ended_early(self) -> bool:
        """Whether more is stated than was spent."""
        if self.epsilon is None or self.spent is None or not self.promises:
            return False
        return brief_epsilon(self.spent) != brief_epsilon(self.epsilon)

    @property
    def number(self) -> str:
        """The stated epsilon; before it what was spent, then the budget; or `NO_PRIVACY`."""
        numbers = (self.epsilon, self.spent, self.budget)
        first = next((number for number in numbers if number is not None), None)
        if first is None or not self.promises:
            return NO_PRIVACY
        return brief_epsilon(first)

    @property
    def numbers(self) -> str:
        """What is stated beside what was spent, if they differ; else what is left of a budget."""
        if self.ended_early and self.spent is not None:
            return f"{self.number} stated, {brief_epsilon(self.spent)} spent"
        if self.budget is None or not self.promises:
            return self.number
        so_far = " so far" if self.epsilon is None and self.spent is not None else ""
        return f"{self.number} of {brief_epsilon(self.budget)}{so_far}"

    @property
    def planned(self) -> str:
        """The budget in one line."""
        if self.budget is None or not self.promises:
            return NO_PRIVACY
        return f"at most epsilon {brief_epsilon(self.budget)} {self.terms}"

    @property
    def terms(self) -> str:
        """All but the numbers: only where these are equal can two epsilons be compared."""
        delta = UNKNOWN if self.delta is None else delta_rounded_up(self.delta)
        return (
            f"at delta {delta}, one {self.unit or UNKNOWN} ({self.neighbours or UNKNOWN}), "
            f"against {self.against or UNKNOWN}"
        )

    def __str__(self) -> str:
        """The promise in one line."""
        if not self.promises:
            return NO_PRIVACY
        return f"epsilon {self.number} {self.terms}"


T = TypeVar("T")


def grouped(items: Iterable[T], terms: Callable[[T], str]) -> dict[str, list[T]]:
    """Return items by their terms, in order: epsilons of different promises do not compare."""
    groups: dict[str, list[T]] = {}
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
