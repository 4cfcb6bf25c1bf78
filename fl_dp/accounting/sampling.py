"""Laws of a round's cohort, and the price of a round under each.

Only secret, independent coins earn amplification. A fixed-size cohort is another law; a cohort
that the adversary sees is no sample. Each law returns the one event that it may be charged as: a
wrong one can't be written down.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fl_dp.mechanisms import SecureRandom
from fl_dp.mechanisms.mechanism_events import Checked, GaussianEvent
from fl_dp.option_errors import IncompatibleOptions, OptionError

from .budget import NeighboringRelation
from .events import (
    FixedSizeGaussianEvent,
    FrozenHistory,
    PoissonGaussianEvent,
    PrivacyEvent,
    TruncatedPoissonGaussianEvent,
)

_PUBLIC_ROSTER = (NeighboringRelation.ZERO_OUT, NeighboringRelation.REPLACE_ONE)


@dataclass(frozen=True, kw_only=True)
class Sampling(Checked, ABC):
    """A law of cohorts.

    A new law defines its draw, event, expected size and description. The other defaults are those
    of secret coins for every unit in every round. What only some laws have is theirs alone:
    `GroupedSampling` has groups, `BufferedSampling` asks units one by one.
    """

    kind: ClassVar[str]
    """The law's name in plans."""

    relations: ClassVar[tuple[NeighboringRelation, ...]] = tuple(NeighboringRelation)
    """Neighbouring relations for which it is charged."""

    def __str__(self) -> str:
        """Its kind and the settings that are no defaults, as errors name it."""
        defaults = {field.name: field.default for field in fields(self)}
        values = {name: getattr(self, name) for name in defaults}
        settings = [f"{name}={value}" for name, value in values.items() if value != defaults[name]]
        return f"{self.kind}({', '.join(settings)})"

    @property
    def visible(self) -> bool:
        """Whether the adversary sees the participants; the charge then assumes it."""
        return False

    @property
    def cap(self) -> int | None:
        """Most rounds of one unit, enforced by the ledger; None: no cap."""
        return None

    @property
    def least_separation(self) -> int:
        """Least distance between two indices with the same unit."""
        return 1

    @property
    def of_declared(self) -> bool:
        """Whether cohorts are drawn from all declared units, even absent ones."""
        return False

    def cohort_law(self, num_units: int) -> tuple[int, float]:
        """The binomial law of a cohort's size: units and rate."""
        return num_units, min(1.0, self.expected_cohort(num_units) / num_units)

    def turns(self, rounds: int) -> int:
        """How many of these rounds one unit can take part in: its charge."""
        turns = -(-rounds // self.least_separation)
        return min(turns, self.cap or turns)

    def require_uncapped(self, reason: str) -> None:
        """Refuse a cap where it can't be kept.

        Raises:
            IncompatibleOptions: If there is a cap.
        """
        if self.cap is not None:
            raise IncompatibleOptions(
                f"{reason}: leave participation_cap={self.cap} out, and plan fewer rounds",
                option="participation_cap",
            )

    def draw(self, rng: SecureRandom, size: int, groups: Sequence[int] = ()) -> list[int]:
        """Return the indices of a cohort, below `size`.

        `size` is the number of units, or of declared ones where cohorts are drawn from these;
        `groups` has each unit's group, where groups have their own budgets.

        Raises:
            ValueError: If the law does not determine the choice.
        """
        raise ValueError(f"a plan with {self} needs its selection: pass it as selection=")

    @abstractmethod
    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """The event that a round at that noise, on a roster of `num_units`, is charged as."""

    @abstractmethod
    def expected_cohort(self, num_units: int) -> float:
        """The public constant that stands for a cohort's size."""

    def expected_weight(self, num_units: int) -> float:
        """A cohort's expected sum of weights; units may weigh less than 1."""
        return self.expected_cohort(num_units)

    @abstractmethod
    def describe(self, unit: str = "client") -> str:
        """One phrase for people."""

    def check(self, num_units: int) -> None:
        """Refuse a roster that the law does not fit.

        Raises:
            OptionError: If it does not fit.
        """
        _ = self.event(1.0, num_units)  # checks itself, whatever the noise

    def check_budget(self, epsilon: float, other_releases: FrozenHistory) -> None:
        """Refuse a plan's budget and other releases that the law does not fit; none by default.

        Raises:
            OptionError: If they do not fit.
        """


@dataclass(frozen=True, kw_only=True)
class PoissonSampling(Sampling):
    """An independent secret coin for each unit: the one sampling with full amplification.

    Attributes:
        sampling_rate: Each unit's probability per round, in (0, 1]; 1 means all units.
        participation_cap: Most rounds of one unit, only if all units take part; None: no cap.
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
                f"sampling_rate=1, or draw visible cohorts by a public selection, got {self}",
                option="participation_cap",
            )

    @property
    def cap(self) -> int | None:
        """The cap."""
        return self.participation_cap

    @property
    def visible(self) -> bool:
        """Whether all units take part."""
        return self.sampling_rate == 1.0

    def draw(self, rng: SecureRandom, size: int, groups: Sequence[int] = ()) -> list[int]:
        """The indices whose coin came up, perhaps none."""
        return heads_of(rng.bernoulli(self.sampling_rate, size))

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """A Poisson-sampled Gaussian."""
        return PoissonGaussianEvent(
            noise_multiplier=noise_multiplier, sampling_rate=self.sampling_rate
        )

    def expected_cohort(self, num_units: int) -> float:
        """The expected size."""
        return self.sampling_rate * num_units

    def describe(self, unit: str = "client") -> str:
        """One phrase for people."""
        if self.visible:
            return "none: every round is charged in full"
        return f"Poisson: an independent secret coin for each {unit} in each round"


@dataclass(frozen=True, kw_only=True)
class TruncatedPoissonSampling(Sampling):
    """Poisson sampling; too large a cohort is cut to a random part.

    Reference: "Poisson subsampling with truncation", arXiv:2508.15089.

    Attributes:
        sampling_rate: Each unit's probability before the cut, in (0, 1].
        max_cohort: Largest cohort. Above mean + 4.5 * sqrt(mean) of the size, cuts are nearly
            free.
    """

    kind: ClassVar[str] = "truncated-poisson"
    relations: ClassVar[tuple[NeighboringRelation, ...]] = _PUBLIC_ROSTER  # a cut shows the others
    sampling_rate: float
    max_cohort: int

    @classmethod
    def comfortable(cls, sampling_rate: float, num_units: int) -> TruncatedPoissonSampling:
        """Cut at mean + 4.5 * sqrt(mean) of the cohort's size, which costs below 0.2 %."""
        expected = sampling_rate * num_units
        most = min(num_units, math.ceil(expected + 4.5 * math.sqrt(expected)))
        return cls(sampling_rate=sampling_rate, max_cohort=most)

    @property
    def of_declared(self) -> bool:
        """True: a cut depends on how many units coins are flipped for."""
        return True

    def draw(self, rng: SecureRandom, size: int, groups: Sequence[int] = ()) -> list[int]:
        """The indices whose coin came up, or a part of them."""
        heads = heads_of(rng.bernoulli(self.sampling_rate, size))
        return _uniform_part(heads, self.max_cohort, rng)

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """A truncated Poisson-sampled Gaussian."""
        return TruncatedPoissonGaussianEvent(
            noise_multiplier=noise_multiplier,
            sampling_rate=self.sampling_rate,
            num_units=num_units,
            max_cohort=self.max_cohort,
        )

    def expected_cohort(self, num_units: int) -> float:
        """The expected size before the cut."""
        return self.sampling_rate * num_units

    def cohort_law(self, num_units: int) -> tuple[int, float]:
        """The law of a cohort that may be cut."""
        mean = min(self.expected_cohort(num_units), self.max_cohort)
        return num_units, min(1.0, mean / num_units)

    def describe(self, unit: str = "client") -> str:
        """One phrase for people."""
        return f"Poisson, secret coins, cut at random to at most {self.max_cohort} {unit}s"


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampling(Sampling):
    """A uniform secret draw of exactly `cohort` units: no Poisson sample, nor charged as one."""

    kind: ClassVar[str] = "fixed-size"
    cohort: int

    @property
    def of_declared(self) -> bool:
        """True: absent units stay in the draw, so no unit's chance rises when others leave."""
        return True

    def draw(self, rng: SecureRandom, size: int, groups: Sequence[int] = ()) -> list[int]:
        """A uniform draw."""
        return _uniform_part(list(range(size)), self.cohort, rng)

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """A Gaussian on a fixed-size sample."""
        return FixedSizeGaussianEvent(
            noise_multiplier=noise_multiplier, num_units=num_units, cohort=self.cohort
        )

    def expected_cohort(self, num_units: int) -> float:
        """The size."""
        return float(self.cohort)

    def cohort_law(self, num_units: int) -> tuple[int, float]:
        """The size, which is public."""
        return self.cohort, 1.0

    def describe(self, unit: str = "client") -> str:
        """One phrase for people."""
        return f"exactly {self.cohort} {unit}s drawn uniformly, without the Poisson amplification"


@dataclass(frozen=True, kw_only=True)
class SeenSampling(Sampling):
    """A visible cohort of a public size.

    Nothing is amplified: a unit is charged in full for each of its rounds. Only a participation
    cap bounds their number.

    Attributes:
        cohort: Most units per round: the public denominator.
        participation_cap: Most rounds of one unit, enforced by the ledger. A round above the least
            noise counts by its price, as a part of one. None: each round is charged to all units.
    """

    relations: ClassVar[tuple[NeighboringRelation, ...]] = _PUBLIC_ROSTER
    cohort: int
    participation_cap: int | None = None

    @property
    def visible(self) -> bool:
        """Always true."""
        return True

    @property
    def cap(self) -> int | None:
        """The cap."""
        return self.participation_cap

    def event(self, noise_multiplier: float, num_units: int) -> PrivacyEvent:
        """A Gaussian without amplification."""
        return GaussianEvent(noise_multiplier=noise_multiplier)

    def expected_cohort(self, num_units: int) -> float:
        """The size."""
        return float(self.cohort)

    def check(self, num_units: int) -> None:
        """Refuse a cohort above the roster."""
        super().check(num_units)
        if self.cohort > num_units:
            raise OptionError(
                f"cohort must be at most the roster's {num_units} units, got {self.cohort}",
                option="cohort",
            )


@dataclass(frozen=True, kw_only=True)
class VisibleSampling(SeenSampling):
    """A visible cohort, chosen by reports, public metadata or a public draw.

    Attributes:
        separation: Least distance between the indices of two rounds with the same unit; for
            correlated noise at least the number of bands.
        Others: See `SeenSampling`.
    """

    kind: ClassVar[str] = "visible"
    separation: int = 1

    @property
    def least_separation(self) -> int:
        """The separation."""
        return self.separation

    def describe(self, unit: str = "client") -> str:
        """One phrase for people."""
        apart = ""
        if self.separation > 1:
            apart = f", each at least {self.separation} rounds apart"
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
                f"at most {num_units // self.cohort}",
                option="separation",
            )


@dataclass(frozen=True, kw_only=True)
class BufferedSampling(SeenSampling):
    """A visible buffer, released whenever `cohort` contributions have arrived.

    The order of arrival is no secret coin. Whenever it was asked, a unit contributes to an index
    at most once.
    """

    kind: ClassVar[str] = "buffered"

    def require_filled(self, num_units: int, rounds: int) -> None:
        """Refuse a cap at which units can't fill all buffers.

        Raises:
            OptionError: With what to write instead.
        """
        turns, needed = self.turns(rounds), rounds * self.cohort
        if turns * num_units < needed:
            raise OptionError(
                f"{num_units} clients that are asked at most participation_cap={turns} times "
                f"each can't fill {rounds} buffers of {self.cohort}: allow at least "
                f"{-(-needed // num_units)}, and some more for answers that never come",
                option="participation_cap",
            )

    def describe(self, unit: str = "client") -> str:
        """One phrase for people."""
        return (
            f"none, in buffered releases: each is made of the {self.cohort} {unit}s that answer "
            "next; they are seen, and charged in full"
        )


def heads_of(coins: NDArray[np.bool_]) -> list[int]:
    """The indices whose coin came up."""
    heads: list[int] = np.flatnonzero(coins).tolist()
    return heads


def _uniform_part(indices: list[int], size: int, rng: SecureRandom) -> list[int]:
    """A uniformly random part, at most `size` indices."""
    if len(indices) <= size:
        return indices
    # 52-bit scores tie with probability below n^2 / 2^53.
    order = np.argsort(rng.uniforms(len(indices)), kind="stable")
    return [indices[number] for number in order[:size]]
