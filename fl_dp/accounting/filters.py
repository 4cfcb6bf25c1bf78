"""Privacy filters and odometers: the gates that a release passes before it happens.

Composition bounds hold for parameters that were fixed beforehand. When the next noise multiplier
depends on what earlier releases showed, only some rules still bound the whole:

- `DeclaredFilter`: parameters fixed beforehand; privacy-loss distributions, the tightest.
- `GaussianFilter`: adaptively chosen Gaussians without sampling; exact, nothing is lost
  (Smith and Thakurta 2022, "Fully Adaptive Composition for Gaussian Differential Privacy").
- `RenyiFilter`: anything with a Renyi bound, at one order that was fixed beforehand
  (Feldman and Zrnic 2021, "Individual Privacy Accounting via a Renyi Filter"; Lecuyer 2021).
- `RenyiOdometer`: no budget, but a running bound that holds at every moment at once.

"Go on while some order fits" and "go on while the privacy-loss distribution fits" are not here:
with adaptively chosen noise neither is a filter.

    >>> gate = GaussianFilter(PrivacyBudget(epsilon=8, delta=1e-5))
    >>> while not gate.would_exceed(event := choose_from_past_releases()):
    ...     gate.spend(event)  # then release
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from fl_dp.mechanisms.events import GaussianEvent, ZcdpEvent
from fl_dp.option_errors import require_probability

from .bounds import tight_epsilon
from .budget import NeighboringRelation, PrivacyBudget
from .calibration import affordable_rounds
from .events import (
    FixedSizeGaussianEvent,
    History,
    PoissonGaussianEvent,
    PrivacyEvent,
    RandomStoppingEvent,
    freeze,
)
from .gaussian_formulas import gaussian_noise_multiplier, mu_squared
from .renyi import ORDERS, divergence_at_order, renyi_divergences

_ZERO_OUT = NeighboringRelation.ZERO_OUT
# A factor of sqrt(2) apart: what is read off is at most that much above the true rung.
_LADDER = tuple(0.125 * 2.0 ** (step / 2.0) for step in range(17))
# Relative: a budget that was calibrated to its last digit is not refused by rounding.
_SLACK = 1e-12
_BY_RENYI_DP = "parameters fixed before the first release; Renyi DP alone, which bounds all of them"


class PrivacyFilter(Protocol):
    """Decides whether one more release fits a budget, whatever was released before.

    Attributes:
        rule: One sentence for the privacy statement.
        adaptive: Whether noise may be chosen from earlier releases.
    """

    rule: str
    adaptive: bool

    def would_exceed(self, event: PrivacyEvent) -> bool:
        """Tell whether one more `event` would break the budget."""
        ...

    def spend(self, event: PrivacyEvent) -> None:
        """Take in that `event` happened, whether or not it fitted."""
        ...


class DeclaredFilter:
    """The gate for releases that were declared beforehand: privacy-loss distributions.

    A declared history that fits as a whole is certified once; each release inside it is then
    admitted by comparing two counters. What goes beyond it, such as a second attempt at a round, is
    computed again and certified in stretches: epsilon only grows with more releases. What is
    repeated must not be chosen by what earlier releases showed: that takes one of the other gates.
    """

    adaptive = False
    rule = "parameters fixed before the first release; privacy-loss distributions"

    def __init__(
        self,
        budget: PrivacyBudget,
        declared: History,
        *,
        neighboring_relation: NeighboringRelation = _ZERO_OUT,
        most: int | None = None,
    ) -> None:
        """Gate the releases of `declared`, and repetitions of them, at `budget`.

        Args:
            budget: Never exceeded.
            declared: Releases with parameters that were fixed beforehand.
            neighboring_relation: Which populations are neighbours.
            most: Releases in all, where each costs something besides its event that was counted
                beforehand; None: as many as fit the budget.
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
        """Tell whether one more `event` would break the budget; O(1) inside what is certified."""
        event = _canonical(event)
        if self._most is not None and self._spent.total() >= self._most:
            return True
        # Inside what fits as a whole, any part of it fits: epsilon only grows with more releases.
        if self._inside and self._spent[event] < self._certified[event]:
            return False
        return not self._certify(event)

    def spend(self, event: PrivacyEvent) -> None:
        """Take in that `event` happened."""
        event = _canonical(event)
        self._spent[event] += 1
        self._inside = self._inside and self._spent[event] <= self._certified[event]

    def _certify(self, event: PrivacyEvent) -> bool:
        """Find a longer history that fits and holds one more `event`."""
        left = Counter(dict(self._declared))
        left.subtract(self._spent)
        left = +left
        if left[event]:
            ahead = self._longest_fitting(left, event)
            if ahead is not None:
                self._certified, self._inside = self._spent + ahead, True
                return True
        further = affordable_rounds(
            self._spent,
            event,
            self._budget.epsilon,
            self._budget.delta,
            at_most=max(1, left[event]),
            neighboring_relation=self._relation,
        )
        self._certified, self._inside = self._spent + Counter({event: further}), True
        return further > 0

    def _longest_fitting(
        self, left: Counter[PrivacyEvent], event: PrivacyEvent
    ) -> Counter[PrivacyEvent] | None:
        """Return as much of what is declared and left as fits, `event` first; None if not even it.

        After an unplanned release not everything fits any more. What is left out here is not lost:
        it is computed again when its turn comes.
        """
        order = [event] * left[event] + [
            e for e, count in left.items() for _ in range(count) if e != event
        ]
        if self._fits(order):
            return left
        low, high = 0, len(order)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(order[:middle]) else (low, middle)
        return Counter(order[:low]) if low else None

    def _fits(self, more: Sequence[PrivacyEvent]) -> bool:
        spent = tight_epsilon(
            self._spent + Counter(more), self._budget.delta, neighboring_relation=self._relation
        )
        return spent <= self._budget.epsilon


class OwnBudgetsFilter:
    """The gate where groups of units have budgets of their own: a release has to pass each.

    A release is charged as what it costs a unit of the last group; each other group's gate sees it
    as what it costs one of its own.
    """

    adaptive = False

    def __init__(
        self, gates: Sequence[tuple[PrivacyFilter, Callable[[PrivacyEvent], PrivacyEvent]]]
    ) -> None:
        """Put a gate and what makes a release that of its group side by side, for each group."""
        self._gates = tuple(gates)
        self.rule = f"{self._gates[-1][0].rule}; for each group at its own budget"

    def would_exceed(self, event: PrivacyEvent) -> bool:
        """Tell whether one more `event` would break the budget of any group."""
        return any(gate.would_exceed(charged(event)) for gate, charged in self._gates)

    def spend(self, event: PrivacyEvent) -> None:
        """Take in that `event` happened."""
        for gate, charged in self._gates:
            gate.spend(charged(event))


class GaussianFilter:
    """The gate for adaptively chosen Gaussian noise without sampling: exact.

    Admits while the sum of `(sensitivity / noise standard deviation)^2` stays within that of the
    one Gaussian which spends the whole budget.
    """

    adaptive = True
    rule = "noise may depend on earlier releases; Gaussian DP filter, exact"

    def __init__(
        self, budget: PrivacyBudget, *, neighboring_relation: NeighboringRelation = _ZERO_OUT
    ) -> None:
        """Gate at `budget`."""
        self._relation = neighboring_relation
        # The squares of mu add up, whenever each multiplier was chosen.
        self._allowed = gaussian_noise_multiplier(budget.epsilon, budget.delta) ** -2
        self._spent = 0.0

    def would_exceed(self, event: PrivacyEvent) -> bool:
        """Tell whether one more `event` would break the budget.

        Raises:
            ValueError: If it is no Gaussian without sampling.
        """
        return self._spent + self._mu_squared(event) > self._allowed * (1.0 + _SLACK)

    def spend(self, event: PrivacyEvent) -> None:
        """Take in that `event` happened.

        Raises:
            ValueError: If it is no Gaussian without sampling.
        """
        self._spent += self._mu_squared(event)

    def _mu_squared(self, event: PrivacyEvent) -> float:
        event = _canonical(event)
        if not isinstance(event, GaussianEvent | FixedSizeGaussianEvent):
            raise ValueError(
                f"a Gaussian DP filter admits Gaussian releases without sampling only, got {event}:"
                " use a RenyiFilter"
            )
        return mu_squared(event, self._relation)


class RenyiFilter:
    """The gate for adaptively chosen releases of any kind, at one Renyi order fixed beforehand."""

    adaptive = True

    def __init__(
        self,
        budget: PrivacyBudget,
        order: float,
        *,
        neighboring_relation: NeighboringRelation = _ZERO_OUT,
    ) -> None:
        """Gate at `budget` by divergences of `order`, which no data may have influenced.

        Raises:
            ValueError: If the order is not above 1 or leaves no budget at all.
        """
        if not (math.isfinite(order) and order > 1.0):
            raise ValueError(f"order must be above 1, got {order}")
        self._allowed = divergence_at_order(budget.epsilon, order, budget.delta)
        if self._allowed <= 0.0:
            raise ValueError(
                f"order {order} leaves no budget at epsilon {budget.epsilon} and delta "
                f"{budget.delta}: take a larger one"
            )
        self.order = order
        self.rule = (
            f"noise may depend on earlier releases; Renyi filter of the fixed order {order:g}"
        )
        self._relation = neighboring_relation
        self._spent = 0.0

    def would_exceed(self, event: PrivacyEvent) -> bool:
        """Tell whether one more `event` would break the budget."""
        # Not `>`: a divergence that is infinite or undefined has to be refused.
        return not self._spent + self._divergence(event) <= self._allowed * (1.0 + _SLACK)

    def spend(self, event: PrivacyEvent) -> None:
        """Take in that `event` happened."""
        self._spent += self._divergence(event)

    def _divergence(self, event: PrivacyEvent) -> float:
        return float(renyi_divergences(_canonical(event), self._relation, (self.order,))[0])


def best_filter_order(
    history: History,
    delta: float,
    *,
    neighboring_relation: NeighboringRelation = _ZERO_OUT,
) -> float:
    """Return the order at which a planned history spends least: what to fix for a `RenyiFilter`.

    Raises:
        ValueError: If a release has no Renyi bound at any order.
    """
    total = np.zeros(len(ORDERS))
    for event, count in freeze(history):
        total += count * renyi_divergences(event, neighboring_relation)
    orders = np.array(ORDERS)
    # `epsilon_at_order`, for all orders at once.
    spent = total + np.log1p(-1.0 / orders) - np.log(orders * delta) / (orders - 1.0)
    if not np.isfinite(spent).any():
        raise ValueError(
            f"a Renyi filter needs a Renyi bound, and one of these releases has none under "
            f"{neighboring_relation} neighbours: declare the noise beforehand instead"
        )
    return ORDERS[int(np.argmin(spent))]


class RenyiOdometer:
    """A running bound for adaptively chosen releases without a budget, valid at all times at once.

    Several Renyi filters stand side by side, one for each rung of a ladder of epsilons, each with
    an equal share of delta. With probability 1 - delta over the releases, the privacy loss of
    everything so far is at every moment at most the lowest rung whose filter is not exceeded. The
    union bound and the stronger promise make it larger than any plan's epsilon.

    Reference:
        Rogers et al. 2016, "Privacy Odometers and Filters"; Feldman and Zrnic 2021, section 4.
    """

    def __init__(
        self,
        delta: float,
        *,
        rungs: Sequence[float] = _LADDER,
        neighboring_relation: NeighboringRelation = _ZERO_OUT,
    ) -> None:
        """Build the ladder; fixed beforehand.

        Args:
            delta: In (0, 1), shared by all rungs.
            rungs: Increasing epsilons, 0.125 to 32 by default.
            neighboring_relation: Which populations are neighbours.

        Raises:
            ValueError: If delta is out of range or the rungs don't increase from above zero.
        """
        require_probability(delta=delta)
        if not rungs or any(b <= a for a, b in zip((0.0, *rungs), rungs, strict=False)):
            raise ValueError(f"rungs must increase from above zero, got {list(rungs)}")
        self._relation = neighboring_relation
        log_share = math.log(len(rungs) / delta)
        self._rungs = np.array(rungs)
        # A tail bound on the loss itself, P[loss > divergence + log(1/share) / (order - 1)] <=
        # share (Mironov 2017, proposition 10), at the order with most room for zCDP releases.
        orders = 1.0 + (log_share + np.sqrt(log_share * (log_share + self._rungs))) / self._rungs
        self._allowed = self._rungs - log_share / (orders - 1.0)
        self._orders = tuple(orders.tolist())
        self._spent = np.zeros(len(rungs))

    def spend(self, event: PrivacyEvent) -> None:
        """Take in that `event` happened."""
        self._spent += renyi_divergences(_canonical(event), self._relation, self._orders)

    @property
    def epsilon(self) -> float:
        """The lowest rung that is not exceeded; infinite above the ladder, 0 before any release."""
        if not self._spent.any():
            return 0.0
        kept = self._rungs[self._spent <= self._allowed]
        return float(kept.min(initial=math.inf))


def _canonical(event: PrivacyEvent) -> PrivacyEvent:
    if isinstance(event, PoissonGaussianEvent):  # at rate 1 it is counted as a plain Gaussian
        return freeze([(event, 1)])[0][0]
    return event
