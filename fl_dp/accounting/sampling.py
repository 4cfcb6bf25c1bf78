"""Laws of a round's cohort, and what each makes a round cost.

Only secret, independent coins earn amplification by sampling. A cohort of a fixed size is another
law, and a cohort that the adversary sees is no sample at all: each rule hands out the one event
that it may be charged as, so that a wrong one can't be written down.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fl_dp.arguments import read_fields
from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.events import Checked, GaussianEvent
from fl_dp.option_errors import IncompatibleOptions, OptionError, require_positive, require_rate

from .budget import NeighboringRelation
from .events import (
    FixedSizeGaussianEvent,
    FrozenHistory,
    PoissonGaussianEvent,
    PrivacyEvent,
    TruncatedPoissonGaussianEvent,
    freeze,
)

_PUBLIC_ROSTER = (NeighboringRelation.ZERO_OUT, NeighboringRelation.REPLACE_ONE)


@dataclass(frozen=True, kw_only=True)
class OwnGroup:
    """A public group of units with a budget of its own.

    Attributes:
        budget: Its epsilon.
        share: Share of the declared units in it.
        sampling_rate: Probability of each of its units in each round.
        scale: The last group's noise over its own.
    """

    budget: float
    share: float
    sampling_rate: float
    scale: float

    @property
    def weight(self) -> float:
        """The inverse of its noise's variance over that of the last group."""
        return self.scale**2


@dataclass(frozen=True, kw_only=True)
class Sampling(Checked, ABC):
    """A law of cohorts, and the answers to all that others ask about it.

    A new law writes down how it draws, what it is charged as, its expected size and its words. The
    other answers are those of secret coins for every unit in every round.
    """

    kind: ClassVar[str]
    """The name that it is written with."""

    relations: ClassVar[tuple[NeighboringRelation, ...]] = tuple(NeighboringRelation)
    """Neighbours for whom it is charged."""

    def __str__(self) -> str:
        """Return its kind and the settings that were chosen, as errors name it."""
        defaults = {field.name: field.default for field in fields(self)}
        values = {name: getattr(self, name) for name in defaults}
        chosen = (f"{name}={value}" for name, value in values.items() if value != defaults[name])
        return f"{self.kind}({', '.join(chosen)})"

    @property
    def visible(self) -> bool:
        """Whether who takes part is seen, and counted as seen."""
        return False

    @property
    def cap(self) -> int | None:
        """Most rounds of one unit, which the ledger enforces; None: all."""
        return None

    @property
    def least_separation(self) -> int:
        """Least distance between two indices at which one unit takes part; 1: it may in all."""
        return 1

    @property
    def of_declared(self) -> bool:
        """Whether cohorts are drawn from all declared units, also those that are not there."""
        return False

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Sentences on what a promise leaves out because of who takes part when."""
        return ()

    @property
    def buffered(self) -> bool:
        """Whether units are asked one by one, and a release is made of those that arrive first."""
        return False

    @property
    def coin_rate(self) -> float | None:
        """The rate, where an independent coin for each unit is all there is; None: it is not."""
        return None

    @property
    def num_groups(self) -> int:
        """The number of public groups, of which each unit has one; 1: there are none."""
        return 1

    @property
    def takes_turns(self) -> bool:
        """Whether each round is the turn of one group."""
        return self.group_at(0) is not None

    @property
    def own_groups(self) -> tuple[OwnGroup, ...]:
        """Groups with budgets of their own, the strictest first; empty: all units have one."""
        return ()

    def group_at(self, index: int) -> int | None:
        """Return the group whose turn an index is, from 0 on; None: every unit's."""
        return None

    def next_group(self, sizes: Mapping[int, int]) -> int:
        """Return the group that one more unit is dealt to, by the groups' sizes so far."""
        return 0

    def largest_group(self, num_units: int) -> int:
        """Return the size of the largest group, where units are dealt in turn."""
        return num_units

    def with_scales(
        self, noise_multiplier: float, multiplier_for: Callable[[float], float]
    ) -> Self:
        """Return the law where each unit adds its own noise: each group what its budget asks for.

        Args:
            noise_multiplier: Of units with the largest budget.
            multiplier_for: Returns that of an epsilon.
        """
        return self

    def event_for(self, group: int, event: PrivacyEvent) -> PrivacyEvent:
        """Return what a release costs a unit of a group, from what `event` charges."""
        return event

    def history_for(self, group: int, history: FrozenHistory) -> FrozenHistory:
        """Return what releases cost a unit of a group, from what `event` charges."""
        return freeze([(self.event_for(group, event), count) for event, count in history])

    def cohort_law(self, num_units: int) -> tuple[int, float]:
        """Return the units and the rate of a binomial law of a cohort's size."""
        return num_units, min(1.0, self.expected_cohort(num_units) / num_units)

    def turns(self, rounds: int) -> int:
        """Return in how many of these rounds one unit can take part: what it is charged."""
        turns = -(-rounds // self.least_separation)
        return min(turns, self.cap or turns)

    def require_uncapped(self, why: str) -> None:
        """Refuse a cap where it can't be kept.

        Args:
            why: The reason, as a sentence without its full stop.

        Raises:
            IncompatibleOptions: If there is one.
        """
        if self.cap is not None:
            raise IncompatibleOptions(
                f"{why}: leave participation_cap={self.cap} out, and plan fewer rounds"
            )

    def draw(self, rng: SecureRandom, places: int, groups: Sequence[int] = ()) -> list[int]:
        """Return the places of a cohort among so many, from 0 on.

        Args:
            rng: Of coins and draws.
            places: Number of units, or of declared ones where cohorts are drawn from these.
            groups: The group of each unit, where groups have budgets of their own.

        Raises:
            ValueError: If the law leaves open who is chosen by what.
        """
        raise ValueError(f"a plan with {self} needs its selection: pass it as selection=")

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
        participation_cap: Most rounds of one unit, where all units take part; None: all.
    """

    kind: ClassVar[str] = "poisson"
    sampling_rate: float
    participation_cap: int | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range, or a cap is on a secret cohort.
        """
        super().__post_init__()
        if self.participation_cap is not None and not self.visible:
            raise IncompatibleOptions(
                "a participation cap needs to see who takes part, and sampling is only worth its "
                "amplification when nobody does: leave participation_cap out, or write "
                f"sampling_rate=1, or draw visible cohorts by a public selection, got {self}"
            )

    @property
    def cap(self) -> int | None:
        """The cap."""
        return self.participation_cap

    @property
    def visible(self) -> bool:
        """Whether all units take part."""
        return self.sampling_rate == 1.0

    @property
    def coin_rate(self) -> float:
        """The rate."""
        return self.sampling_rate

    def draw(self, rng: SecureRandom, places: int, groups: Sequence[int] = ()) -> list[int]:
        """Return the places whose coin came up; possibly none. See `Sampling.draw`."""
        return heads_of(rng.bernoulli(self.sampling_rate, places))

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

    Reference: "Poisson subsampling with truncation", arXiv:2508.15089.

    Attributes:
        sampling_rate: Probability of each unit before the cut, in (0, 1].
        max_cohort: No cohort is larger. Above the expected size plus 4.5 of its roots the cut is
            nearly free.
    """

    kind: ClassVar[str] = "truncated-poisson"
    relations: ClassVar[tuple[NeighboringRelation, ...]] = _PUBLIC_ROSTER  # a cut shows the others
    sampling_rate: float
    max_cohort: int

    @classmethod
    def comfortable(cls, sampling_rate: float, num_units: int) -> TruncatedPoissonSampling:
        """Cut at mean + 4.5 * sqrt(mean) of the cohort's size, where the cut costs below 0.2 %."""
        expected = sampling_rate * num_units
        most = min(num_units, math.ceil(expected + 4.5 * math.sqrt(expected)))
        return cls(sampling_rate=sampling_rate, max_cohort=most)

    @property
    def of_declared(self) -> bool:
        """Whether coins are flipped for all declared units: a cut depends on how many there are."""
        return True

    def draw(self, rng: SecureRandom, places: int, groups: Sequence[int] = ()) -> list[int]:
        """Return the places whose coin came up, or a part of them. See `Sampling.draw`."""
        heads = heads_of(rng.bernoulli(self.sampling_rate, places))
        return _uniform_part(heads, self.max_cohort, rng)

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

    def cohort_law(self, num_units: int) -> tuple[int, float]:
        """Return the law of a cohort that may be cut. See `Sampling.cohort_law`."""
        mean = min(self.expected_cohort(num_units), self.max_cohort)
        return num_units, min(1.0, mean / num_units)

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
    relations: ClassVar[tuple[NeighboringRelation, ...]] = _PUBLIC_ROSTER
    largest_rate: float
    cohort: float

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        read_fields(self)
        require_rate(largest_rate=self.largest_rate)
        require_positive(cohort=self.cohort)

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

    @property
    def of_declared(self) -> bool:
        """Whether absent units keep their place: nobody's chance rises when others leave."""
        return True

    def draw(self, rng: SecureRandom, places: int, groups: Sequence[int] = ()) -> list[int]:
        """Return a uniform draw. See `Sampling.draw`."""
        return _uniform_part(list(range(places)), self.cohort, rng)

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """Return a Gaussian on a fixed-size sample."""
        return FixedSizeGaussianEvent(
            noise_multiplier=noise_multiplier, num_units=num_units, cohort=self.cohort
        )

    def expected_cohort(self, num_units: int) -> float:
        """Return the size."""
        return float(self.cohort)

    def cohort_law(self, num_units: int) -> tuple[int, float]:
        """Return the size, which is no secret. See `Sampling.cohort_law`."""
        return self.cohort, 1.0

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        return f"exactly {self.cohort} {unit}s drawn uniformly, without the Poisson amplification"


@dataclass(frozen=True, kw_only=True)
class SeenSampling(Sampling):
    """A cohort that is seen, of a public size.

    Nothing is amplified: a unit is charged in full for each round that it takes part in, and only
    a participation cap bounds how many those are.

    Attributes:
        cohort: Largest number of units per round: the public denominator.
        participation_cap: Most rounds of one unit, which the ledger enforces; a round with more
            noise than the least counts as the part of one that it costs. None: each round is
            charged to all units.
    """

    relations: ClassVar[tuple[NeighboringRelation, ...]] = _PUBLIC_ROSTER
    cohort: int
    participation_cap: int | None = None

    @property
    def visible(self) -> bool:
        """Always."""
        return True

    @property
    def cap(self) -> int | None:
        """The cap."""
        return self.participation_cap

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """Return a Gaussian in full."""
        return GaussianEvent(noise_multiplier=noise_multiplier)

    def expected_cohort(self, num_units: int) -> float:
        """Return the size."""
        return float(self.cohort)

    def check(self, num_units: int) -> None:
        """Refuse a cohort above the roster."""
        super().check(num_units)
        if self.cohort > num_units:
            raise OptionError(
                f"cohort must be at most the roster's {num_units} units, got {self.cohort}"
            )


@dataclass(frozen=True, kw_only=True)
class VisibleSampling(SeenSampling):
    """A cohort that is seen: chosen by utility, by public metadata, or by a public draw.

    Attributes:
        separation: Least distance between the indices of two rounds with the same unit; 1: it may
            take part in any two rounds. Correlated noise needs as many as it has bands.
        Others: See `SeenSampling`.
    """

    kind: ClassVar[str] = "visible"
    separation: int = 1

    @property
    def least_separation(self) -> int:
        """The separation."""
        return self.separation

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        apart = f", each at least {self.separation} rounds apart" if self.separation > 1 else ""
        return (
            f"none: {self.cohort} {unit}s a round are chosen in sight{apart}, and charged in full"
        )

    def check(self, num_units: int) -> None:
        """Refuse a cohort whose units can't rest as long."""
        super().check(num_units)
        if self.cohort * self.separation > num_units:
            raise OptionError(
                f"cohorts of {self.cohort} whose units rest for {self.separation} rounds need "
                f"{self.cohort * self.separation} units, got {num_units}: use a separation of "
                f"at most {num_units // self.cohort}"
            )


@dataclass(frozen=True, kw_only=True)
class BufferedSampling(SeenSampling):
    """A buffer that is released whenever `cohort` contributions have arrived, in sight.

    Who arrives when is no secret coin. A unit contributes to an index at most once, whenever it was
    asked.
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

    def require_filled(self, num_units: int, rounds: int) -> None:
        """Refuse a cap at which units can't fill so many buffers.

        Raises:
            OptionError: With what to write instead.
        """
        turns, needed = self.turns(rounds), rounds * self.cohort
        if turns * num_units < needed:
            raise OptionError(
                f"{num_units} clients that are asked at most participation_cap={turns} times "
                f"each can't fill {rounds} buffers of {self.cohort}: allow at least "
                f"{-(-needed // num_units)}, and some more for answers that never come"
            )

    def describe(self, unit: str = "client") -> str:
        """Return one phrase for people."""
        return (
            f"none, in buffered releases: each is made of the {self.cohort} {unit}s that answer "
            "next; they are seen, and charged in full"
        )


def heads_of(coins: NDArray[np.bool_]) -> list[int]:
    """Return the places whose coin came up."""
    heads: list[int] = np.flatnonzero(coins).tolist()
    return heads


def _uniform_part(places: list[int], size: int, rng: SecureRandom) -> list[int]:
    """Return a uniformly random part of at most `size` places."""
    if len(places) <= size:
        return places
    # 52-bit scores tie with probability below n^2 / 2^53.
    order = np.argsort(rng.uniforms(len(places)), kind="stable")
    return [places[number] for number in order[:size]]
