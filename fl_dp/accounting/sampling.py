"""Laws of a round's cohort, and what each makes a round cost.

Only secret, independent coins earn amplification by sampling. A cohort of a fixed size is another
law, and a cohort that the adversary sees is no sample at all: each rule hands out the one event
that it may be charged as, so that a wrong one can't be written down.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import ClassVar

from fl_dp.mechanisms.events import Checked, GaussianEvent, LaplaceEvent, ZcdpEvent
from fl_dp.option_errors import OptionError, require_count, require_rate

from .events import (
    FixedSizeGaussianEvent,
    FrozenHistory,
    PoissonGaussianEvent,
    PrivacyEvent,
    TruncatedPoissonGaussianEvent,
    freeze,
)


@dataclass(frozen=True, kw_only=True)
class Sampling(Checked, ABC):
    """A law of cohorts."""

    kind: ClassVar[str]

    def __str__(self) -> str:
        """Return its kind and its settings, as errors name it."""
        settings = ", ".join(f"{each.name}={getattr(self, each.name)}" for each in fields(self))
        return f"{self.kind}({settings})"

    @property
    def visible(self) -> bool:
        """Whether who takes part is seen, and counted as seen."""
        return False

    @property
    def least_separation(self) -> int:
        """Least distance between two indices at which one unit takes part; 1: it may in all."""
        return 1

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Sentences on what a promise leaves out because of who takes part when."""
        return ()

    @property
    def buffered(self) -> bool:
        """Whether units are asked one by one, and a release is made of those that arrive first."""
        return False

    def turns(self, rounds: int) -> int:
        """Return in how many of these rounds one unit can take part: what it is charged."""
        return -(-rounds // self.least_separation)

    @abstractmethod
    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """Return what a round with that noise is charged as, out of `num_units` units."""

    @abstractmethod
    def expected_cohort(self, num_units: int) -> float:
        """Return the public constant that stands for the size of a cohort."""

    def expected_weight(self, num_units: int) -> float:
        """Return what such a cohort adds to a count of it; less where some units count less."""
        return self.expected_cohort(num_units)

    @abstractmethod
    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people.

        Args:
            unit: Word for those who are sampled.
        """

    def check(self, num_units: int) -> None:
        """Refuse what can't be charged.

        Raises:
            OptionError: If the rule does not fit that roster.
        """
        _ = self.event(1.0, num_units)  # checks itself, whatever the noise


@dataclass(frozen=True, kw_only=True)
class PoissonSampling(Sampling):
    """An independent secret coin for each unit: the one sampling that earns full amplification.

    Attributes:
        sampling_rate: Probability of each unit in each round, in (0, 1]; 1 means all units.
    """

    kind: ClassVar[str] = "poisson"
    sampling_rate: float

    @property
    def visible(self) -> bool:
        """Whether all units take part."""
        return self.sampling_rate == 1.0

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """Return a Poisson-sampled Gaussian."""
        return PoissonGaussianEvent(
            noise_multiplier=noise_multiplier, sampling_rate=self.sampling_rate
        )

    def expected_cohort(self, num_units: int) -> float:
        """Return the expected size."""
        return self.sampling_rate * num_units

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        if self.visible:
            return "none: every round is charged in full"
        return f"Poisson: an independent secret coin for each {unit} in each round"


@dataclass(frozen=True, kw_only=True)
class TruncatedPoissonSampling(Sampling):
    """Poisson sampling whose cohorts are cut to a random part when they get too large.

    Attributes:
        sampling_rate: Probability of each unit before the cut, in (0, 1].
        max_cohort: No cohort is larger. Above the expected size plus 4.5 of its roots the cut is
            nearly free.
    """

    kind: ClassVar[str] = "truncated-poisson"
    sampling_rate: float
    max_cohort: int

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """Return a truncated Poisson-sampled Gaussian."""
        return TruncatedPoissonGaussianEvent(
            noise_multiplier=noise_multiplier,
            sampling_rate=self.sampling_rate,
            num_units=num_units,
            max_cohort=self.max_cohort,
        )

    def expected_cohort(self, num_units: int) -> float:
        """Return the expected size before the cut."""
        return self.sampling_rate * num_units

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        return f"Poisson, secret coins, cut at random to at most {self.max_cohort} {unit}s"


@dataclass(frozen=True, kw_only=True)
class UtilityPoissonSampling(Sampling):
    """Secret coins whose rates follow noisy utilities, none above a public bound.

    Attributes:
        largest_rate: Upper bound on every unit's rate in (0, 1]: what is charged.
        cohort: Expected size that the rates aim at: the public denominator.
    """

    kind: ClassVar[str] = "utility-poisson"
    largest_rate: float
    cohort: float

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        require_rate(largest_rate=self.largest_rate)
        if not self.cohort > 0.0:
            raise OptionError(f"cohort must be positive, got {self.cohort}")

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """Return a Gaussian that is Poisson-sampled at the largest rate."""
        return PoissonGaussianEvent(
            noise_multiplier=noise_multiplier, sampling_rate=self.largest_rate
        )

    def expected_cohort(self, num_units: int) -> float:
        """Return the size that the rates aim at."""
        return self.cohort

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        return (
            f"Poisson, secret coins at rates up to {self.largest_rate:g} that follow noisy "
            "utilities, which are charged on their own"
        )

    def check(self, num_units: int) -> None:
        """Refuse a cohort that the rates can't reach."""
        super().check(num_units)
        if self.cohort > self.largest_rate * num_units:
            raise OptionError(
                f"a cohort of {self.cohort:g} out of {num_units} needs rates above "
                f"largest_rate={self.largest_rate:g}: raise it or ask for a smaller cohort"
            )


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampling(Sampling):
    """A uniform secret draw of exactly `cohort` units: not a Poisson sample, nor charged as one.

    Attributes:
        cohort: Units in every round.
    """

    kind: ClassVar[str] = "fixed-size"
    cohort: int

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """Return a Gaussian on a fixed-size sample."""
        return FixedSizeGaussianEvent(
            noise_multiplier=noise_multiplier, num_units=num_units, cohort=self.cohort
        )

    def expected_cohort(self, num_units: int) -> float:
        """Return the size."""
        return float(self.cohort)

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        return f"exactly {self.cohort} {unit}s drawn uniformly, without the Poisson amplification"


@dataclass(frozen=True, kw_only=True)
class VisibleSampling(Sampling):
    """A cohort that is seen: chosen by utility, by public metadata, or by a public draw.

    Nothing is amplified: a unit is charged in full for each round that it takes part in, and only
    a participation cap bounds how many those are.

    Attributes:
        cohort: Largest number of units per round: the public denominator.
        separation: Least distance between the indices of two rounds with the same unit; 1: it may
            take part in any two rounds. Correlated noise needs as many as it has bands.
    """

    kind: ClassVar[str] = "visible"
    cohort: int
    separation: int = 1

    @property
    def visible(self) -> bool:
        """Always."""
        return True

    @property
    def least_separation(self) -> int:
        """The separation."""
        return self.separation

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """Return a Gaussian in full."""
        return GaussianEvent(noise_multiplier=noise_multiplier)

    def expected_cohort(self, num_units: int) -> float:
        """Return the size."""
        return float(self.cohort)

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        apart = f", each at least {self.separation} rounds apart" if self.separation > 1 else ""
        return (
            f"none: {self.cohort} {unit}s a round are chosen in sight{apart}, and charged in full"
        )

    def check(self, num_units: int) -> None:
        """Refuse a cohort above the roster."""
        super().check(num_units)
        if self.cohort > num_units:
            raise OptionError(
                f"cohort must be at most the roster's {num_units} units, got {self.cohort}"
            )
        if self.cohort * self.separation > num_units:
            raise OptionError(
                f"cohorts of {self.cohort} whose units rest for {self.separation} rounds need "
                f"{self.cohort * self.separation} units, got {num_units}: use a separation of "
                f"at most {num_units // self.cohort}"
            )


@dataclass(frozen=True, kw_only=True)
class BufferedSampling(VisibleSampling):
    """A buffer that is released whenever `cohort` contributions have arrived, in sight.

    Nothing is amplified: who arrives when is no secret coin. A unit contributes to an index at most
    once, whenever it was asked, and is asked at an index only if its last one is `separation` back.
    So it takes part in no more indices than `VisibleSampling` lets it.
    """

    kind: ClassVar[str] = "buffered"

    @property
    def buffered(self) -> bool:
        """Always."""
        return True

    @property
    def not_covered(self) -> tuple[str, ...]:
        """The time at which a unit answers."""
        return (
            "when an answer arrives, and so which release it enters: that was taken not to depend "
            "on data. The server's operator sees it, and whoever watches the network may; pad "
            "training to a fixed time where it tells how many records a client has",
        )

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        apart = f", each at least {self.separation} releases apart" if self.separation > 1 else ""
        return (
            f"none, in buffered releases: each is made of the {self.cohort} {unit}s that answer "
            f"next{apart}; they are seen, and charged in full"
        )


class GroupedSampling(Sampling):
    """A law with public groups of units; each unit has one for the whole training."""

    @property
    @abstractmethod
    def num_groups(self) -> int:
        """The number of groups."""

    @abstractmethod
    def next_group(self, sizes: Mapping[int, int]) -> int:
        """Return the group that one more unit is dealt to, by the groups' sizes so far."""


@dataclass(frozen=True, kw_only=True)
class CyclicSampling(GroupedSampling):
    """Public groups that take turns, and secret coins inside the group whose turn it is.

    Each unit has one group for the whole training, and index t belongs to group t mod `groups`. So
    two participations of a unit are at least `groups` indices apart, which correlated noise needs,
    and each is amplified by its coin.

    Attributes:
        groups: How many there are; a plan needs at least 2, as 1 is the law inside.
        inside: The law of the cohort inside a group, by its own rate.
    """

    kind: ClassVar[str] = "cyclic"
    groups: int
    inside: PoissonSampling | TruncatedPoissonSampling

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        require_count(groups=self.groups)
        if not isinstance(self.inside, PoissonSampling | TruncatedPoissonSampling):
            raise OptionError(
                "inside a group only secret coins are charged for: write inside=PoissonSampling("
                f"sampling_rate=...) or TruncatedPoissonSampling(...), got {self.inside}"
            )

    @property
    def visible(self) -> bool:
        """Whether all units of the group whose turn it is take part."""
        return self.inside.visible

    @property
    def least_separation(self) -> int:
        """The number of groups, as each has every such turn."""
        return self.groups

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return self.groups

    def next_group(self, sizes: Mapping[int, int]) -> int:
        """Return the smallest group."""
        return min(range(self.groups), key=lambda group: (sizes.get(group, 0), group))

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """Return the event of the law inside the largest group."""
        return self.inside.event(noise_multiplier, self.largest_group(num_units))

    def expected_cohort(self, num_units: int) -> float:
        """Return the expected size, which is the same in all rounds."""
        return self.inside.expected_cohort(num_units) / self.groups

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        within = self.inside.describe(unit)
        if self.inside.visible:
            within = f"each {unit} of the group is charged in full"
        return f"{self.groups} public groups of {unit}s that take turns; inside a group {within}"

    def check(self, num_units: int) -> None:
        """Refuse one group alone, and more groups than units."""
        if self.groups == 1:
            raise OptionError(
                f"groups must be at least 2, got 1: a group alone has every turn, so take "
                f"{self.inside} itself"
            )
        if self.groups > num_units:
            raise OptionError(
                f"groups must be at most the roster's {num_units} units, got {self.groups}"
            )
        super().check(num_units)

    def group_of(self, index: int) -> int:
        """Return the group whose turn an index is, from 0 on."""
        return index % self.groups

    def largest_group(self, num_units: int) -> int:
        """Return the size of the largest group, where units are dealt in turn."""
        return -(-num_units // self.groups)


@dataclass(frozen=True, kw_only=True)
class OwnRatesSampling(GroupedSampling):
    """A rate or a noise for each public group of units with a budget of its own.

    Where noise is everybody's, who allows less takes part less often. Where each unit adds its own,
    all take part in every round, who allows less adds more, and its message weighs the inverse of
    its variance. A unit is charged at its own group's rate and noise: neighbours differ in that
    unit, whose group is public.

    Reference: Boenisch et al. 2023, "Have it your way: Individualized Privacy Assignment for
    DP-SGD", its method Sample.

    Attributes:
        budgets: Epsilon of each group, increasing.
        shares: Share of the declared units in each group; public.
        rates: Probability of each unit of a group in each round; all 1 where units add the noise.
        scales: The last group's noise over that of each group; empty: all 1.
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
        """Return the law before its rates or noises are found: a plan to budgets changes them.

        Args:
            sampling_rate: Mean rate over all units; 1 where units add the noise.
            budgets: Epsilon of each group, increasing.
            shares: Share of the declared units in each group.

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
        if not len(self.budgets) == len(self.shares) == len(self.rates) >= 2:
            raise OptionError(
                "budgets and shares need a number for each of at least 2 groups, got "
                f"{list(self.budgets)} and {list(self.shares)}"
            )
        if not all(low < high for low, high in pairwise((0.0, *self.budgets, math.inf))):
            raise OptionError(
                f"budgets must increase from above 0, got {list(self.budgets)}: write for "
                "example [1,3,8]"
            )
        if min(self.shares) <= 0.0 or abs(math.fsum(self.shares) - 1.0) > 1e-9:
            raise OptionError(
                "shares must be positive and add up to 1, got "
                f"{list(self.shares)}: write for example [0.5,0.3,0.2]"
            )
        sampled = 0.0 < min(self.rates) <= max(self.rates) == self.rates[-1] < 1.0
        if not (sampled or set(self.rates) == {1.0}):
            raise OptionError(
                "with budgets of their own clients take part at a sampling_rate in (0, 1), the "
                "last group at the largest, or all of them at 1 with noise of their own, got "
                f"{list(self.rates)}"
            )
        if self.scales and not (
            len(self.scales) == len(self.budgets)
            and all(0.0 < scale <= 1.0 for scale in self.scales)
            and self.scales[-1] == 1.0
        ):
            raise OptionError(
                "the last group's noise over that of each lies in (0, 1], and over its own is 1, "
                f"got {list(self.scales)}"
            )

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return len(self.budgets)

    @property
    def visible(self) -> bool:
        """Whether all units take part."""
        return min(self.rates) == 1.0

    def scale_of(self, group: int) -> float:
        """Return the last group's noise over that of a group."""
        return self.scales[group] if self.scales else 1.0

    def weight_of(self, group: int) -> float:
        """Return the inverse of a group's noise's variance over that of the last group."""
        return self.scale_of(group) ** 2

    def next_group(self, sizes: Mapping[int, int]) -> int:
        """Return the group that most lacks units of its share."""
        dealt = sum(sizes.values()) + 1
        lacks = [share * dealt - sizes.get(group, 0) for group, share in enumerate(self.shares)]
        return max(range(len(lacks)), key=lambda group: (lacks[group], -group))

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """Return the event of the last group, which pays most."""
        return PoissonGaussianEvent(noise_multiplier=noise_multiplier, sampling_rate=self.rates[-1])

    def event_for(self, group: int, event: PrivacyEvent) -> PrivacyEvent:
        """Return what a release costs a unit of a group, from what it costs those of the last."""
        if isinstance(event, PoissonGaussianEvent) and event.sampling_rate == self.rates[-1]:
            return replace(event, sampling_rate=self.rates[group])
        return _with_noise_over(event, self.scale_of(group))

    def history_for(self, group: int, history: FrozenHistory) -> FrozenHistory:
        """Return what releases cost a unit of a group, from what they cost those of the last."""
        return freeze([(self.event_for(group, event), count) for event, count in history])

    def expected_cohort(self, num_units: int) -> float:
        """Return the expected size."""
        return num_units * math.fsum(
            share * rate for share, rate in zip(self.shares, self.rates, strict=True)
        )

    def expected_weight(self, num_units: int) -> float:
        """Return what such a cohort weighs; see `weight_of`."""
        each = zip(self.shares, self.rates, strict=True)
        return num_units * math.fsum(
            share * rate * self.weight_of(group) for group, (share, rate) in enumerate(each)
        )

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        each = zip(self.budgets, self.scales or self.rates, strict=True)
        said = ", ".join(f"{number:.4g} for epsilon {budget:g}" for budget, number in each)
        if self.visible:
            return f"none: every round is charged in full, at noise over its group's number: {said}"
        return f"Poisson: a secret coin for each {unit} in each round, at its group's rate: {said}"


def _with_noise_over(event: PrivacyEvent, scale: float) -> PrivacyEvent:
    """Return the event of one client's message whose noise is larger, by one over `scale`."""
    if isinstance(event, GaussianEvent | LaplaceEvent):
        return replace(event, noise_multiplier=event.noise_multiplier / scale)
    if isinstance(event, ZcdpEvent):
        return replace(event, rho=event.rho * scale**2)
    return event  # of no client's message
