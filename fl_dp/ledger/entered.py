"""Kinds of entries of an account, each by what it may spend at most. No disk, no lock."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from fl_dp.accounting.renyi import summed_divergences
from fl_dp.codec import decode, encode
from fl_dp.guarantee import Guarantee
from fl_dp.option_errors import OptionError
from fl_dp.plan import Plan, RecordPlan, plan_from_dict
from fl_dp.plan.ceiling import (
    Neighbours,
    epsilon_ceiling,
    has_renyi_bound,
    joint_ceiling,
    largest_history_of_records,
    renyi_ceiling,
    union_of,
)

from .entries import ANOTHER_VERSION, require_printable
from .state import TrainingState


class Entered(ABC):
    """What an account is charged for, from the moment that it is entered."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Name of its kind; for a training, of its kind of plan."""

    @property
    def states(self) -> Mapping[str, TrainingState]:
        """Each training's state by name, where the ledger has its releases."""
        return {}

    @property
    @abstractmethod
    def budget(self) -> PrivacyBudget | None:
        """What it may spend, for its own neighbours; None: without a bound."""

    @property
    @abstractmethod
    def neighbours(self) -> Neighbours | None:
        """Those of its own promise; None: it has none."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee | None:
        """What it promises at most; None: nothing."""

    @abstractmethod
    def ceiling(self, neighbours: Neighbours) -> float:
        """Return the most epsilon that it may spend for any neighbours, or infinity."""

    def divergences(self, neighbours: Neighbours, orders: tuple[float, ...]) -> NDArray[np.float64]:
        """Return its largest Renyi divergences; infinite where no bound is known."""
        return np.full(len(orders), math.inf)

    def has_divergences(self, neighbours: Neighbours, orders: tuple[float, ...]) -> bool:
        """Tell whether a bound is known at any order."""
        return bool(np.isfinite(self.divergences(neighbours, orders)).any())

    @property
    def delta(self) -> float:
        """Its part of the account's delta."""
        return 0.0 if self.budget is None else self.budget.delta

    @property
    def is_replaceable(self) -> bool:
        """Whether another entry of its name may take its place, as nothing came of it."""
        return False


@dataclass(frozen=True)
class EnteredTraining(Entered):
    """One training."""

    name: str
    state: TrainingState

    @property
    def kind(self) -> str:
        """The plan's."""
        return self.state.plan.kind

    @property
    def states(self) -> Mapping[str, TrainingState]:
        """The training's own."""
        return {self.name: self.state}

    @property
    def budget(self) -> PrivacyBudget:
        """The plan's."""
        return self.state.plan.budget

    @property
    def neighbours(self) -> Neighbours:
        """The plan's."""
        return Neighbours.of(self.state.plan)

    @property
    def guarantee(self) -> Guarantee:
        """The plan's."""
        return Guarantee.of(self.state.plan, insecure=self.state.insecure)

    def ceiling(self, neighbours: Neighbours) -> float:
        """Return that of the plan, and of repetitions beyond it."""
        return epsilon_ceiling(self.state.plan, neighbours, self.state.history)

    def divergences(self, neighbours: Neighbours, orders: tuple[float, ...]) -> NDArray[np.float64]:
        """Return those of the plan, and of repetitions beyond it."""
        return renyi_ceiling(self.state.plan, neighbours, orders, self.state.history)

    def has_divergences(self, neighbours: Neighbours, orders: tuple[float, ...]) -> bool:
        """Tell it by what is planned: how often that may be repeated takes seconds to find."""
        return has_renyi_bound(self.state.plan, neighbours, orders)

    @property
    def is_replaceable(self) -> bool:
        """Whether nothing was reserved of it."""
        return not self.state.reserved


class NotJoint(OptionError):
    """Plans have no joint ceiling: each is entered by itself."""


@dataclass(frozen=True)
class EnteredSweep(Entered):
    """Trainings whose plans were all fixed before any of them began.

    Attributes:
        parts: Each training's state by its name.
        joint: The ceiling of all their plans, at the largest of their deltas.
    """

    parts: Mapping[str, TrainingState]
    joint: PrivacyBudget

    @property
    def states(self) -> Mapping[str, TrainingState]:
        """Those of its trainings."""
        return self.parts

    @property
    def kind(self) -> str:
        """`sweep`."""
        return "sweep"

    @property
    def budget(self) -> PrivacyBudget:
        """The joint ceiling."""
        return self.joint

    @classmethod
    def of(cls, plans: Mapping[str, Plan]) -> EnteredSweep:
        """Return the entry of trainings' plans by name.

        Raises:
            NotJoint: There are none, or their budgets can't be joined.
        """
        neighbours = {Neighbours.of(plan) for plan in plans.values()}
        epsilon = math.inf
        if len(neighbours) == 1:
            epsilon = joint_ceiling(tuple(plans.values()), *neighbours)
        if math.isinf(epsilon):
            raise NotJoint(
                "trainings are entered together if all are of the same unit and neighbours and "
                "none has groups with own budgets: enter each by its own"
            )
        delta = max(plan.budget.delta for plan in plans.values())
        budget = PrivacyBudget(epsilon=epsilon, delta=delta)
        states = {name: TrainingState(plan) for name, plan in plans.items()}
        return cls(parts=states, joint=budget)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> EnteredSweep:
        """Return that of an entry's fields; its epsilon is checked by `require_paid`."""
        plans = {name: plan_from_dict(plan) for name, plan in fields["plans"].items()}
        for name in plans:
            require_printable(name)
        budget = decode(PrivacyBudget, fields["budget"], "budget")
        if len({Neighbours.of(plan) for plan in plans.values()}) != 1:
            raise ValueError("its plans are of different neighbours, or there are none")
        if budget.delta != max(plan.budget.delta for plan in plans.values()):
            raise ValueError(f"its delta {budget.delta} is not the largest of its plans")
        states = {name: TrainingState(plan) for name, plan in plans.items()}
        return cls(parts=states, joint=budget)

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the entry."""
        plans = {name: state.plan.to_dict() for name, state in self.states.items()}
        return {"kind": "sweep", "plans": plans, "budget": encode(self.joint)}

    @property
    def neighbours(self) -> Neighbours:
        """Those of all its plans."""
        return Neighbours.of(self._plans[0])

    @property
    def guarantee(self) -> Guarantee:
        """The joint ceiling's."""
        guarantee = self.neighbours.together(self.joint.epsilon, self.joint.delta)
        insecure = any(state.insecure for state in self.states.values())
        return replace(guarantee, insecure=insecure)

    @property
    def _plans(self) -> tuple[Plan, ...]:
        return tuple(state.plan for state in self.states.values())

    def ceiling(self, neighbours: Neighbours) -> float:
        """Return that of all plans together."""
        if neighbours == self.neighbours:
            return self.joint.epsilon
        return joint_ceiling(self._plans, neighbours)

    def divergences(self, neighbours: Neighbours, orders: tuple[float, ...]) -> NDArray[np.float64]:
        """Return those of all plans together."""
        total = np.zeros(len(orders))
        for plan in self._plans:
            total += renyi_ceiling(plan, neighbours, orders)
        return total

    def require_room(self, name: str, event: PrivacyEvent) -> None:
        """Check that one more release stays within all that the plans may release together.

        Raises:
            PrivacyBudgetExhausted: It does not.
        """
        if not self._admits({name: event}):
            raise PrivacyBudgetExhausted(
                f"'{name}' would repeat more than was entered for all {len(self.states)} trainings "
                f"together, {self.guarantee}"
            )

    def require_paid(self) -> None:
        """Check budget and releases, with a margin for another version's bounds.

        Raises:
            ValueError: The budget is less than the joint ceiling, or more was released.
        """
        joint = joint_ceiling(self._plans, self.neighbours)
        if self.joint.epsilon < joint * (1.0 - ANOTHER_VERSION) or not self._admits({}):
            raise ValueError(f"its trainings are entered at {self.guarantee}, and may spend more")

    def _admits(self, more: Mapping[str, PrivacyEvent]) -> bool:
        released: Counter[PrivacyEvent] = Counter()
        for name, state in self.states.items():
            further = [(more[name], 1)] if name in more else []
            released += Counter(dict(freeze([*state.history, *further])))
        planned: Counter[PrivacyEvent] = Counter()
        for plan in self._plans:
            planned += Counter(dict(plan.history))
        if not released - planned:
            return True  # repetitions alone take a search
        return not released - Counter(dict(union_of(self._plans)))


@dataclass(frozen=True)
class EnteredRecords(Entered):
    """DP-SGD inside clients, of which each client's own ledger keeps the budget."""

    plan: RecordPlan

    @property
    def kind(self) -> str:
        """`records`."""
        return "records"

    @property
    def budget(self) -> PrivacyBudget:
        """The plan's."""
        return self.plan.budget

    @property
    def neighbours(self) -> Neighbours:
        """A record or a person, by the plan's relation."""
        return Neighbours(unit=self.plan.unit, relation=self.plan.neighboring_relation)

    @property
    def guarantee(self) -> Guarantee:
        """The plan's."""
        return Guarantee.of(self.plan)

    def ceiling(self, neighbours: Neighbours) -> float:
        """Return the budget for its own neighbours, and those that they imply."""
        return self.plan.budget.epsilon if self._implies(neighbours) else math.inf

    def divergences(self, neighbours: Neighbours, orders: tuple[float, ...]) -> NDArray[np.float64]:
        """Return those of all steps that a client's ledger admits, by the plan's own noise."""
        if not self._implies(neighbours):
            return super().divergences(neighbours, orders)
        admitted = largest_history_of_records(self.plan)
        return summed_divergences(admitted, neighbours.relation, orders)

    def _implies(self, neighbours: Neighbours) -> bool:
        """Tell whether the plan's promise is one to those neighbours, too."""
        own = self.neighbours
        implied = (
            own.relation is NeighboringRelation.REPLACE_ONE
            and neighbours.relation is NeighboringRelation.ZERO_OUT
        )
        return neighbours.unit == own.unit and (implied or neighbours == own)


@dataclass(frozen=True)
class Unprotected(Entered):
    """A release without a promise, such as a baseline without noise."""

    what: str

    @property
    def kind(self) -> str:
        """`unprotected`."""
        return "unprotected"

    @property
    def budget(self) -> None:
        """It has none."""

    @property
    def neighbours(self) -> None:
        """It has none."""

    @property
    def guarantee(self) -> None:
        """It has none."""

    def ceiling(self, neighbours: Neighbours) -> float:
        """Return infinity."""
        return math.inf
