"""Prices of independent and correlated noise at one promise, in error of the model.

    >>> wanted = NoiseRequest(num_units=10_000, cohort=100, rounds=1000, epsilon=2.0, delta=1e-5)
    >>> best = best_noise(compare_noise(wanted))
    >>> best.noise, best.groups
    ('cyclic', 8)

The price of a kind of noise is the root mean square error that it leaves in a coordinate of the
model: its noise multiplier, times a column's norm, times the error of its coefficients, over the
cohort. All kinds are calibrated to the same epsilon and delta; they differ in what has to stay
secret for it.

The price is of a sum of updates alone: counts, bits and metrics cost all kinds alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE, column_norm
from fl_dp.option_errors import require_count, require_positive, require_rate

from .banded import MOST_BANDS, Objective, model_error, optimal_coefficients
from .calibration import calibrate_noise
from .sampling import CyclicSampling, PoissonSampling, Sampling, VisibleSampling

WITHIN = 1.02
"""A simpler noise is preferred to one that is better by no more than this factor."""

_INDEPENDENT: tuple[int, ...] = (COEFFICIENT_ONE,)


@dataclass(frozen=True, kw_only=True)
class NoiseRequest:
    """A training whose noise is to be chosen.

    Attributes:
        num_units: Of the roster.
        cohort: Expected units of a round.
        rounds: Of the training.
        epsilon: Of the whole training.
        delta: Of the whole training.
        momentum: Of the server optimizer, in [0, 1).
        objective: The models whose error counts.
        most_remembered: Most releases whose noise may be kept in memory; None: as many as help.
        secret_cohorts: Whether who takes part can be kept secret; otherwise nothing is amplified.
        available: Share of the roster that can be asked at any time, in (0, 1]: units that rest
            need others that don't.
    """

    num_units: int
    cohort: float
    rounds: int
    epsilon: float
    delta: float
    momentum: float = 0.0
    objective: Objective = Objective.MEAN
    most_remembered: int | None = None
    secret_cohorts: bool = True
    available: float = 1.0

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        require_count(num_units=self.num_units, rounds=self.rounds)
        require_positive(cohort=self.cohort, epsilon=self.epsilon)
        require_rate(available=self.available)
        if not 1 <= self.cohort <= self.num_units:
            raise ValueError(
                f"cohort must lie between 1 and the roster's {self.num_units} units, got "
                f"{self.cohort:g}"
            )
        if self.most_remembered is not None and self.most_remembered < 0:
            raise ValueError(f"most_remembered must be at least 0, got {self.most_remembered}")

    @property
    def sampling_rate(self) -> float:
        """A unit's share of the rounds."""
        return self.cohort / self.num_units

    @property
    def seen_cohort(self) -> int:
        """Units of a round whose cohort is chosen in sight: whole ones, as a run draws them."""
        return round(self.cohort)

    @property
    def most_groups(self) -> int:
        """Most groups that fill a cohort in their turn, within the rounds."""
        return min(math.floor(self.num_units / self.cohort + 1e-9), self.rounds)

    def bands(self, separation: int) -> int:
        """Return how many bands to use where participations are so far apart."""
        memory = MOST_BANDS if self.most_remembered is None else self.most_remembered + 1
        return min(separation, memory, MOST_BANDS)


@dataclass(frozen=True, kw_only=True)
class NoisePrice:
    """One kind of noise, calibrated, with what it leaves in the model.

    Attributes:
        noise: `independent`, `spaced` or `cyclic`.
        sampling: The law of cohorts that it is charged for.
        charged_rounds: Participations that a unit is charged for.
        coefficients: The first column of C in units of 2^-12; one for independent noise.
        noise_multiplier: Of one participation.
        error: Root mean square error of a coordinate of the model, in clipping norms, at a server
            learning rate of 1.
    """

    noise: str
    sampling: Sampling
    charged_rounds: int
    coefficients: tuple[int, ...]
    noise_multiplier: float
    error: float

    @property
    def bands(self) -> int:
        """How many releases one draw reaches; 1 is independent noise."""
        return len(self.coefficients)

    @property
    def everybody(self) -> bool:
        """Whether all units take part in every round."""
        return isinstance(self.sampling, PoissonSampling) and self.sampling.visible

    @property
    def remembered(self) -> int:
        """How many releases' noise stays in memory."""
        return self.bands - 1

    @property
    def groups(self) -> int:
        """Groups that take turns; 1 where there are none."""
        return self.sampling.groups if isinstance(self.sampling, CyclicSampling) else 1

    @property
    def separation(self) -> int:
        """Rounds between two participations of a unit, at least."""
        if isinstance(self.sampling, VisibleSampling):
            return self.sampling.separation
        return self.groups

    @cached_property
    def name(self) -> str:
        """The noise and its law in a few words."""
        if self.noise == "spaced":
            return f"spaced, {self.separation} rounds apart"
        if self.noise == "cyclic":
            return f"cyclic, {self.groups} groups"
        if self.everybody:
            return "independent, all in every round"
        return "independent, cap" if self.sampling.visible else "independent, Poisson"

    @property
    def promise(self) -> str:
        """What the promise rests on, besides the secrecy of the noise."""
        if self.noise == "cyclic" and not self.sampling.visible:
            return "groups fixed and public; coins inside them secret"
        if self.noise == "cyclic":
            return "groups fixed and public; nothing about cohorts is secret"
        if not self.sampling.visible:
            return "coins secret"
        if self.everybody:
            return "nothing about cohorts is secret"
        apart = f", {self.separation} apart" if self.noise == "spaced" else ""
        return (
            f"each unit at most {self.charged_rounds} times{apart}, by lasting name; nothing about "
            "cohorts is secret"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the price as plain JSON values."""
        return {
            "noise": self.noise,
            "sampling": self.sampling.to_dict(),
            "separation": self.separation,
            "bands": self.bands,
            "coefficients": list(self.coefficients),
            "charged_rounds": self.charged_rounds,
            "noise_multiplier": self.noise_multiplier,
            "error": self.error,
            "promise": self.promise,
        }


def compare_noise(
    wanted: NoiseRequest, *, progress: Callable[[str], None] = lambda _: None
) -> tuple[NoisePrice, ...]:
    """Return what each kind of noise leaves in the model, at the same promise.

    Of the numbers of groups, powers of two and the most are looked at, as far as the best can lie
    there: more groups allow more bands and amplify less, so that the error has one valley.

    Args:
        wanted: The training.
        progress: Told the name of each kind before it is calibrated, which takes a second or more.

    Returns:
        Simpler ones first: independent, spaced, then cyclic by their groups.

    Raises:
        ValueError: If no noise reaches the epsilon.
    """
    cohort = wanted.seen_cohort
    prices = []
    if wanted.secret_cohorts:
        law = PoissonSampling(sampling_rate=wanted.sampling_rate)
        progress("independent noise, Poisson cohorts")
        prices.append(_price(wanted, "independent", law, wanted.rounds))
    # Where only some can be asked, those are asked more often.
    apart = math.floor(wanted.available * wanted.num_units / cohort + 1e-9)
    charged = math.ceil(wanted.rounds * cohort / (wanted.available * wanted.num_units) - 1e-9)
    charged = min(max(charged, 1), wanted.rounds)
    progress(f"independent noise, {charged} rounds of a unit")
    seen = VisibleSampling(cohort=cohort)
    prices.append(_price(wanted, "independent", seen, charged))
    apart = min(apart, wanted.rounds)
    if apart > 1 and wanted.bands(apart) > 1:
        progress(f"correlated noise, participations {apart} rounds apart")
        rested = VisibleSampling(cohort=cohort, separation=apart)
        prices.append(_price(wanted, "spaced", rested, charged))
    if wanted.secret_cohorts:
        prices += _best_cyclic(wanted, prices[0], progress)
    return tuple(prices)


def best_noise(prices: Sequence[NoisePrice]) -> NoisePrice:
    """Return the noise to use: the simplest of those that are within 2 % of the best."""
    least = min(price.error for price in prices)
    good = [price for price in prices if price.error <= WITHIN * least]
    return min(good, key=lambda price: (price.bands, price.error))


def error_after(price: NoisePrice, wanted: NoiseRequest, rounds: int) -> float:
    """Return the model's root mean square error after `rounds` rounds, in clipping norms."""
    last = model_error(price.coefficients, rounds, wanted.momentum, Objective.LAST)
    return _scale(price.noise_multiplier, price.coefficients, price.sampling, wanted) * math.sqrt(
        last
    )


def _price(wanted: NoiseRequest, noise: str, law: Sampling, charged: int) -> NoisePrice:
    coefficients = _INDEPENDENT
    if noise != "independent":
        # No other law has noise with memory.
        assert isinstance(law, CyclicSampling | VisibleSampling)
        apart = law.groups if isinstance(law, CyclicSampling) else law.separation
        coefficients = optimal_coefficients(
            wanted.rounds, wanted.bands(apart), wanted.momentum, wanted.objective
        )
    multiplier = calibrate_noise(
        lambda z: [(law.event(z, wanted.num_units), charged)],
        wanted.epsilon,
        wanted.delta,
        what=f"for {charged} participations",
    )
    left = model_error(coefficients, wanted.rounds, wanted.momentum, wanted.objective)
    return NoisePrice(
        noise=noise,
        sampling=law,
        charged_rounds=charged,
        coefficients=coefficients,
        noise_multiplier=multiplier,
        error=_scale(multiplier, coefficients, law, wanted) * math.sqrt(left),
    )


def _scale(
    multiplier: float, coefficients: Sequence[int], law: Sampling, wanted: NoiseRequest
) -> float:
    """Return the standard deviation of fresh noise on a coordinate of a round's mean."""
    return multiplier * column_norm(coefficients) / law.expected_cohort(wanted.num_units)


def _best_cyclic(
    wanted: NoiseRequest, poisson: NoisePrice, progress: Callable[[str], None]
) -> list[NoisePrice]:
    """Return the prices of the numbers of groups that had to be looked at, the best among them."""
    most = wanted.most_groups
    if most < 2 or wanted.bands(most) < 2:
        return []
    counts = [1, *(2**power for power in range(1, most.bit_length()) if 2**power < most), most]
    known = {0: poisson}  # one group is Poisson sampling

    def error(place: int) -> float:
        if place not in known:
            groups = counts[place]
            progress(f"correlated noise, {groups} groups")
            # Rounding must not bring a rate above 1.
            rate = min(1.0, groups * wanted.sampling_rate)
            law = CyclicSampling(groups=groups, inside=PoissonSampling(sampling_rate=rate))
            known[place] = _price(wanted, "cyclic", law, law.turns(wanted.rounds))
        return known[place].error

    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if error(middle) <= error(middle + 1) else (middle + 1, high)
    _ = error(low)
    return [known[place] for place in sorted(known) if place]
