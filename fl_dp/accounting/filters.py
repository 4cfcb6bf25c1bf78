"""Privacy filters and odometers: the gates that a release passes before it happens.

Composition bounds hold for parameters fixed beforehand: `DeclaredFilter`. When the next noise
multiplier depends on earlier releases, only some rules still bound the whole: `RenyiOdometer`. "Go
on while some order fits" and "go on while the privacy-loss distribution fits" are missing: with
adaptively chosen noise neither is a filter.

    >>> gate = DeclaredFilter(PrivacyBudget(epsilon=8, delta=1e-5), {event: 60})
    >>> while not gate.would_exceed(event):
    ...     gate.spend(event)  # then release
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fl_dp.mechanisms.mechanism_events import ZcdpEvent
from fl_dp.option_errors import require_probability

from .bounds import tight_epsilon
from .budget import NeighboringRelation, PrivacyBudget
from .calibration import affordable_rounds
from .events import (
    FrozenHistory,
    History,
    PoissonGaussianEvent,
    PrivacyEvent,
    RandomStoppingEvent,
    freeze,
)
from .renyi import epsilon_at_orders, gaussian_room, summed_divergences

_ZERO_OUT = NeighboringRelation.ZERO_OUT
_LADDER = tuple(1.0 + 2.0**step for step in range(-1, 11))
"""Orders of an odometer, 1.5 to 1025, one of which is near the best of any epsilon from a hundredth
to above a hundred."""
_BELOW_GAUSSIAN = (1.0, 1.5, 2.25)  # samples grow faster with the order than Gaussians do
_WHOLE_FROM = 11.0  # orders above it are whole numbers, whose divergences are quick to compute

_BY_RENYI_DP = "parameters fixed before the first release; Renyi DP alone, which bounds all of them"


class PrivacyFilter(Protocol):
    """Decides whether one more release fits a budget, whatever was released before.

    Attributes:
        rule: One sentence for the privacy statement.
    """

    rule: str

    def would_exceed(self, event: PrivacyEvent) -> bool:
        """Whether one more `event` would break the budget."""
        ...

    def spend(self, event: PrivacyEvent) -> None:
        """Record that `event` happened, fitting or not."""
        ...


class DeclaredFilter:
    """The gate for releases declared beforehand: privacy-loss distributions, the tightest bound.

    A declared history that fits as a whole is certified once; each release inside is then admitted
    by comparing two counters. Releases beyond, such as a second attempt at a round, are computed
    again and certified in stretches: epsilon only grows with more releases. A repetition must not
    depend on what earlier releases showed: that takes a `RenyiOdometer`.
    """

    rule = "parameters fixed before the first release; privacy-loss distributions"

    def __init__(
        self,
        budget: PrivacyBudget,
        declared: History,
        *,
        neighboring_relation: NeighboringRelation = _ZERO_OUT,
        most: int | None = None,
    ) -> None:
        """Gate the releases of `declared`, and repetitions, at `budget`, which is never exceeded.

        `declared` has parameters fixed beforehand. `most` is the most releases in all, if each has
        a cost besides its event that was counted beforehand; None: as many as fit.
        """
        self._budget = budget
        self._relation = neighboring_relation
        self._declared = freeze(declared)
        if any(isinstance(event, RandomStoppingEvent | ZcdpEvent) for event, _ in self._declared):
            self.rule = _BY_RENYI_DP
        self._certified: Counter[PrivacyEvent] = Counter()
        self._spent: Counter[PrivacyEvent] = Counter()
        self._inside = True
        self._most = most

    def would_exceed(self, event: PrivacyEvent) -> bool:
        """Whether one more `event` would break the budget; O(1) if certified."""
        event = _canonical(event)
        if self._most is not None and self._spent.total() >= self._most:
            return True
        # Inside what fits as a whole, any part of it fits: epsilon only grows with more releases.
        if self._inside and self._spent[event] < self._certified[event]:
            return False
        return not self._certify(event)

    def spend(self, event: PrivacyEvent) -> None:
        """Record that `event` happened."""
        event = _canonical(event)
        self._spent[event] += 1
        self._inside = self._inside and self._spent[event] <= self._certified[event]

    def _certify(self, event: PrivacyEvent) -> bool:
        """Find a longer history that fits and has one more `event`."""
        remaining = Counter(dict(self._declared))
        remaining.subtract(self._spent)
        remaining = +remaining
        if remaining[event]:
            fitting = self._longest_fitting(remaining, event)
            if fitting is not None:
                self._certified, self._inside = self._spent + fitting, True
                return True
        further = affordable_rounds(
            self._spent,
            event,
            self._budget.epsilon,
            self._budget.delta,
            at_most=max(1, remaining[event]),
            neighboring_relation=self._relation,
        )
        self._certified, self._inside = self._spent + Counter({event: further}), True
        return further > 0

    def _longest_fitting(
        self, remaining: Counter[PrivacyEvent], event: PrivacyEvent
    ) -> Counter[PrivacyEvent] | None:
        """As many of the remaining releases as fit, `event` first; None if not even it.

        After an unplanned release not all fit any more. The rest is computed again in its turn.
        """
        order = [event] * remaining[event]
        for other, count in remaining.items():
            if other != event:
                order += [other] * count
        if self._fits(order):
            return remaining
        low, high = 0, len(order)
        while high - low > 1:
            middle = (low + high) // 2
            if self._fits(order[:middle]):
                low = middle
            else:
                high = middle
        return Counter(order[:low]) if low else None

    def _fits(self, more: Sequence[PrivacyEvent]) -> bool:
        spent = tight_epsilon(
            self._spent + Counter(more), self._budget.delta, neighboring_relation=self._relation
        )
        return spent <= self._budget.epsilon


class OwnBudgetsFilter:
    """The gate where groups of units have their own budgets: a release has to pass each.

    A release is charged at its price for a unit of the last group; each other group's gate
    converts that to its own price.
    """

    def __init__(
        self, gates: Sequence[tuple[PrivacyFilter, Callable[[PrivacyEvent], PrivacyEvent]]]
    ) -> None:
        """Combine each group's gate and the conversion of a release to the group's price."""
        self._gates = tuple(gates)
        self.rule = f"{self._gates[-1][0].rule}; for each group at its own budget"

    def would_exceed(self, event: PrivacyEvent) -> bool:
        """Whether one more `event` would break any group's budget."""
        return any(gate.would_exceed(charged(event)) for gate, charged in self._gates)

    def spend(self, event: PrivacyEvent) -> None:
        """Record that `event` happened."""
        for gate, charged in self._gates:
            gate.spend(charged(event))


@dataclass(frozen=True, kw_only=True)
class RenyiOdometer:
    """A bound that holds at every moment, for adaptively chosen noise.

    Several Renyi orders are fixed before any release, each with a share of delta. The least epsilon
    of any order holds at each moment, so it can gate a budget, even one that changes.

    Three orders follow from the foreseen epsilon: the one at which Gaussians leave most room, and
    two below, for samples. A ladder of further orders shares the last quarter of delta, for
    growing budgets and for histories far below theirs.

    Why it holds: with P and Q the law of all releases for two neighbours, L the log of their ratio
    so far, D the sum of the divergences of order a and c = (1 - 1/a)^(a - 1) / a,

        (1 - e^(epsilon - L))+ <= c e^((a - 1) (L - epsilon)),

    and e^((a - 1) (L - D)) is a supermartingale under P. So at any stopping time, with the epsilon
    of that moment, `epsilon_at_order(D, a, share)`, the sum over outcomes of P's excess over
    e^epsilon times Q's is at most the share. Each outcome belongs to the order that is least in it,
    and a sum over outcomes is the sum over orders of their outcomes.

    Attributes:
        foreseen: Budget that all releases are planned for, known before any. It decides the
            orders; later, bounds may be asked for at other budgets.
        neighboring_relation: Defines neighbours.

    References:
        Rogers et al. 2016, "Privacy Odometers and Filters" (shares of delta); Feldman and Zrnic
        2021, and Lecuyer 2021, "Practical Privacy Filters and Odometers with Renyi DP" (the
        supermartingale); Canonne, Kamath and Steinke 2020, proposition 12 (the constant).
    """

    foreseen: PrivacyBudget
    neighboring_relation: NeighboringRelation = _ZERO_OUT

    @cached_property
    def shares(self) -> dict[float, float]:
        """Share of delta of each order; they add up to 1."""
        part = 1.0 / (len(_BELOW_GAUSSIAN) + 1)
        tail = -math.log(part * self.foreseen.delta)
        # rho a + tail / (a - 1) is least at a = 1 + sqrt(tail / rho), and then is the epsilon.
        # The root of rho is epsilon over this sum: a difference of roots would round to 0.
        roots = math.sqrt(tail + self.foreseen.epsilon) + math.sqrt(tail)
        best = math.sqrt(tail) * roots / self.foreseen.epsilon
        shares = dict.fromkeys(_LADDER, part / len(_LADDER))
        for step in _BELOW_GAUSSIAN:
            order = min(1.0 + best / step, _LADDER[-1])
            if order > _WHOLE_FROM:
                order = float(round(order))
            shares[order] = shares.get(order, 0.0) + part
        return shares

    def epsilon(self, history: History, delta: float) -> float:
        """The bound at `delta`, which all orders share.

        0 without releases; infinite where one has a Renyi bound at no order.

        Raises:
            ValueError: If `delta` is not in (0, 1) or a count is negative.
        """
        require_probability(delta=delta)
        releases = freeze(history)
        if not releases:
            return 0.0
        return epsilon_at_orders(self._divergences(releases), self.deltas(delta))

    def gaussian_room(self, history: History, budget: PrivacyBudget) -> float:
        """The mu, at least 0, of the largest Gaussian that fits a budget after a history."""
        divergences = self._divergences(freeze(history))
        return gaussian_room(divergences, self.deltas(budget.delta), budget.epsilon)

    def deltas(self, delta: float) -> dict[float, float]:
        """Each order's part of a delta."""
        return {order: share * delta for order, share in self.shares.items()}

    def _divergences(self, releases: FrozenHistory) -> NDArray[np.float64]:
        return summed_divergences(releases, self.neighboring_relation, tuple(self.shares))


def _canonical(event: PrivacyEvent) -> PrivacyEvent:
    if isinstance(event, PoissonGaussianEvent):  # at rate 1 it is counted as a plain Gaussian
        return freeze([(event, 1)])[0][0]
    return event
