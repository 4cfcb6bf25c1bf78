"""Laws with public groups of units, which take turns or have their own budgets."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np

from fl_dp.arguments import read_fields
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.mechanism_events import GaussianEvent, LaplaceEvent, ZcdpEvent
from fl_dp.option_errors import OptionError, require_count

from .budget import NeighboringRelation
from .events import FrozenHistory, PoissonGaussianEvent, PrivacyEvent, freeze
from .sampling import PoissonSampling, Sampling, TruncatedPoissonSampling, heads_of

_BELOW = 1.0 - 1e-9  # factor on a scale: its group fits on another machine, too


@dataclass(frozen=True, kw_only=True)
class OwnGroup:
    """A public group of units with its own budget.

    Attributes:
        budget: Its epsilon.
        share: Its share of the declared units.
        sampling_rate: Probability of each of its units per round.
        scale: The last group's noise divided by its own.
    """

    budget: float
    share: float
    sampling_rate: float
    scale: float

    @property
    def weight(self) -> float:
        """The inverse of its noise's variance, relative to the last group's."""
        return self.scale**2


class GroupedSampling(Sampling):
    """A law with public groups, one for each unit and the whole training."""

    @property
    @abstractmethod
    def num_groups(self) -> int:
        """The number of groups."""

    @abstractmethod
    def next_group(self, sizes: Mapping[int, int]) -> int:
        """The group of one more unit, given the groups' sizes so far."""


@dataclass(frozen=True, kw_only=True)
class CyclicSampling(GroupedSampling):
    """Public groups that take turns, and secret coins inside the one whose turn it is.

    Each unit has one group for the whole training, and index t belongs to group t mod `groups`. So
    a unit's participations are at least `groups` indices apart, as correlated noise needs, and
    each is amplified by its coin.

    Attributes:
        groups: Number of groups; a plan needs at least 2, as 1 is the law inside.
        inside: The law of cohorts inside a group, by its own rate.
    """

    kind: ClassVar[str] = "cyclic"
    relations: ClassVar[tuple[NeighboringRelation, ...]] = (NeighboringRelation.ZERO_OUT,)
    groups: int
    inside: PoissonSampling | TruncatedPoissonSampling

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        read_fields(self, but=["inside"])
        require_count(groups=self.groups)
        if not isinstance(self.inside, PoissonSampling | TruncatedPoissonSampling):
            raise OptionError(
                "inside a group only secret coins are charged for: write inside=PoissonSampling("
                f"sampling_rate=...) or TruncatedPoissonSampling(...), got {self.inside}",
                option="inside",
            )
        self.inside.require_uncapped(
            "groups that take turns have every turn, and a participation cap would leave some out"
        )

    @property
    def visible(self) -> bool:
        """Whether all units of the group whose turn it is take part."""
        return self.inside.visible

    @property
    def least_separation(self) -> int:
        """The number of groups: a group's turns are that many indices apart."""
        return self.groups

    @property
    def of_declared(self) -> bool:
        """Whether the law inside draws from all declared units."""
        return self.inside.of_declared

    def draw(self, rng: SecureRandom, size: int, groups: Sequence[int] = ()) -> list[int]:
        """A cohort of the group whose turn it is."""
        return self.inside.draw(rng, size)

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return self.groups

    def next_group(self, sizes: Mapping[int, int]) -> int:
        """The smallest group."""
        return min(range(self.groups), key=lambda group: (sizes.get(group, 0), group))

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """The event of the law inside the largest group."""
        return self.inside.event(noise_multiplier, self.largest_group(num_units))

    def expected_cohort(self, num_units: int) -> float:
        """The expected size, the same in all rounds."""
        return self.inside.expected_cohort(num_units) / self.groups

    def describe(self, unit: str = "client") -> str:
        """One phrase for people."""
        within = self.inside.describe(unit)
        if self.inside.visible:
            within = f"each {unit} of the group is charged in full"
        return f"{self.groups} public groups of {unit}s that take turns; inside a group {within}"

    def check(self, num_units: int) -> None:
        """Refuse one group alone, and more groups than units."""
        if self.groups == 1:
            raise OptionError(
                "groups must be at least 2, got 1: a group alone has every turn, so take "
                f"{self.inside} itself",
                option="groups",
            )
        if self.groups > num_units:
            raise OptionError(
                f"groups must be at most the roster's {num_units} units, got {self.groups}",
                option="groups",
            )
        super().check(num_units)

    def group_at(self, index: int) -> int:
        """The group whose turn the index is, from 0 on."""
        return index % self.groups

    def largest_group(self, num_units: int) -> int:
        """The largest group's size, as units are dealt in turn."""
        return -(-num_units // self.groups)


@dataclass(frozen=True, kw_only=True)
class OwnRatesSampling(GroupedSampling):
    """A rate or a noise for each public group of units with its own budget.

    With shared noise, a unit with a smaller budget takes part less often. Where each unit adds its
    own noise, all take part in every round. There a unit with a smaller budget adds more, and its
    message is weighted by its inverse variance. A unit is charged at its own group's rate and
    noise: neighbours differ in that unit, whose group is public.

    Reference: Boenisch et al. 2023, "Have it your way: Individualized Privacy Assignment for
    DP-SGD", its method Sample.

    Attributes:
        budgets: Epsilon of each group, increasing.
        shares: Share of the declared units in each group; public.
        rates: Probability of each unit of a group per round; all 1 where units add the noise.
        scales: The last group's noise over each group's; empty: all 1.
    """

    kind: ClassVar[str] = "own-rates"
    budgets: tuple[float, ...]
    shares: tuple[float, ...]
    rates: tuple[float, ...]
    scales: tuple[float, ...] = ()

    @classmethod
    def at(
        cls, sampling_rate: float, *, budgets: Sequence[float], shares: Sequence[float]
    ) -> OwnRatesSampling:
        """The law before a plan to budgets finds its rates or noises.

        Raises:
            ValueError: If an argument is out of range.
        """
        rates = (sampling_rate,) * len(budgets)
        return cls(budgets=tuple(budgets), shares=tuple(shares), rates=rates)

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        read_fields(self)
        if not len(self.budgets) == len(self.shares) == len(self.rates) >= 2:
            raise OptionError(
                "budgets and shares need a number for each of at least 2 groups, got "
                f"{list(self.budgets)} and {list(self.shares)}"
            )
        if not all(low < high for low, high in pairwise((0.0, *self.budgets, math.inf))):
            raise OptionError(
                f"budgets must increase from above 0, got {list(self.budgets)}: write for "
                "example [1,3,8]",
                option="budgets",
            )
        if min(self.shares) <= 0.0 or abs(math.fsum(self.shares) - 1.0) > 1e-9:
            raise OptionError(
                "shares must be positive and add up to 1, got "
                f"{list(self.shares)}: write for example [0.5,0.3,0.2]",
                option="shares",
            )
        sampled = 0.0 < min(self.rates) <= max(self.rates) == self.rates[-1] < 1.0
        if not (sampled or set(self.rates) == {1.0}):
            raise OptionError(
                "with budgets of their own clients take part at a sampling_rate in (0, 1), the "
                "last group at the largest, or all of them at 1 with noise of their own, got "
                f"{list(self.rates)}",
                option="sampling_rate",
            )
        if self.scales and not (
            len(self.scales) == len(self.budgets)
            and all(0.0 < scale <= 1.0 for scale in self.scales)
            and self.scales[-1] == 1.0
        ):
            raise OptionError(
                "the last group's noise over that of each lies in (0, 1], and over its own is 1, "
                f"got {list(self.scales)}",
                option="scales",
            )

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return len(self.budgets)

    @property
    def visible(self) -> bool:
        """Whether all units take part."""
        return min(self.rates) == 1.0

    def check_budget(self, epsilon: float, other_releases: FrozenHistory) -> None:
        """Refuse a budget that is not the groups' largest, and other releases charged by group."""
        largest = self.own_groups[-1].budget
        if epsilon != largest:
            raise OptionError(
                f"epsilon={epsilon} must be the largest of the budgets: write epsilon={largest}, "
                "and no noise_multiplier, as noise for groups with budgets of their own is "
                "calibrated",
                option="epsilon",
            )
        if any(self.event_for(0, event) != event for event, _ in other_releases):
            raise OptionError(
                "another release is sampled at the rate of the last group, or noised like a "
                "client's message, and would be charged at each group's own: change its rate a "
                "little, or leave it out",
                option="other_releases",
            )

    @property
    def own_groups(self) -> tuple[OwnGroup, ...]:
        """The groups, the strictest first, with each one's noise and rate."""
        scales = self.scales or (1.0,) * self.num_groups
        groups = zip(self.budgets, self.shares, self.rates, scales, strict=True)
        own_groups: list[OwnGroup] = []
        for budget, share, rate, scale in groups:
            group = OwnGroup(budget=budget, share=share, sampling_rate=rate, scale=scale)
            own_groups.append(group)
        return tuple(own_groups)

    def with_scales(
        self, noise_multiplier: float, multiplier_for: Callable[[float], float]
    ) -> Self:
        """The law with each group's noise by its budget, where units add their own noise."""
        scales = [
            noise_multiplier / multiplier_for(epsilon) * _BELOW for epsilon in self.budgets[:-1]
        ]
        return replace(self, scales=(*scales, 1.0))

    def draw(self, rng: SecureRandom, size: int, groups: Sequence[int] = ()) -> list[int]:
        """The indices whose coin came up, at their groups' rates."""
        if len(groups) != size:
            raise ValueError("groups are the ledger's: this selection needs a plan")
        numbers = np.asarray(groups, dtype=np.int64)
        heads = np.zeros(size, dtype=bool)
        for group, rate in enumerate(self.rates):
            members = np.flatnonzero(numbers == group)
            heads[members] = rng.bernoulli(rate, len(members))
        return heads_of(heads)

    def next_group(self, sizes: Mapping[int, int]) -> int:
        """The group furthest below its share."""
        dealt = sum(sizes.values()) + 1
        lacks = [share * dealt - sizes.get(group, 0) for group, share in enumerate(self.shares)]
        return max(range(len(lacks)), key=lambda group: (lacks[group], -group))

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """The event of the last group, which pays most."""
        return PoissonGaussianEvent(noise_multiplier=noise_multiplier, sampling_rate=self.rates[-1])

    def event_for(self, group: int, event: PrivacyEvent) -> PrivacyEvent:
        """A release's price for a unit of a group, given that for the last group."""
        if isinstance(event, PoissonGaussianEvent) and event.sampling_rate == self.rates[-1]:
            return replace(event, sampling_rate=self.rates[group])
        return _with_noise_over(event, self.own_groups[group].scale)

    def history_for(self, group: int, history: FrozenHistory) -> FrozenHistory:
        """Releases' price for a unit of a group, given that for the last group."""
        return freeze([(self.event_for(group, event), count) for event, count in history])

    def expected_cohort(self, num_units: int) -> float:
        """The expected size."""
        return num_units * math.fsum(
            share * rate for share, rate in zip(self.shares, self.rates, strict=True)
        )

    def expected_weight(self, num_units: int) -> float:
        """A cohort's expected sum of weights; see `OwnGroup.weight`."""
        return num_units * math.fsum(
            group.share * group.sampling_rate * group.weight for group in self.own_groups
        )

    def describe(self, unit: str = "client") -> str:
        """One phrase for people."""
        groups = zip(self.budgets, self.scales or self.rates, strict=True)
        numbers = ", ".join(f"{number:.4g} for epsilon {budget:g}" for budget, number in groups)
        if self.visible:
            return (
                f"none: every round is charged in full, at noise over its group's number: {numbers}"
            )
        return (
            f"Poisson: a secret coin for each {unit} in each round, at its group's rate: {numbers}"
        )


def _with_noise_over(event: PrivacyEvent, scale: float) -> PrivacyEvent:
    """The event of one client's message with 1 / `scale` times the noise."""
    if isinstance(event, GaussianEvent | LaplaceEvent):
        return replace(event, noise_multiplier=event.noise_multiplier / scale)
    if isinstance(event, ZcdpEvent):
        return replace(event, rho=event.rho * scale**2)
    return event  # no event of a client's message
