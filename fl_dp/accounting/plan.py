"""The plan of a training: what will be released, how often, and at what price.

A plan hands out both the mechanism that makes a round's noise and the event that charges for it,
from the same fields, so that the accounting can't drift from what runs.

    >>> plan = PrivacyPlan.calibrate(
    ...     PrivacyBudget(epsilon=2.0, delta=200**-1.1),
    ...     rounds=60, sampling_rate=0.25, clipping_norm=1.0, num_clients=200,
    ... )
    >>> plan.noise_multiplier
    2.66...
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

from fl_dp.mechanisms import GaussianMechanism

from .bounds import EpsilonBounds, epsilon, tight_epsilon
from .budget import PrivacyBudget
from .calibration import affordable_rounds, calibrate_noise, schedule_history
from .events import (
    FrozenHistory,
    GaussianEvent,
    History,
    PoissonGaussianEvent,
    PrivacyEvent,
    event_from_dict,
    event_to_dict,
    freeze,
)
from .filters import (
    DeclaredFilter,
    GaussianFilter,
    PrivacyFilter,
    RenyiFilter,
    best_filter_order,
)
from .gaussian import gaussian_noise_multiplier
from .relations import NeighboringRelation
from .renyi import renyi_epsilon
from .schedules import NoiseSchedule, PlateauController, PlateauSchedule

_CONSTANT = NoiseSchedule()


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """Central DP-FedAvg: rounds of a Poisson cohort, a clipped sum and Gaussian noise.

    Privacy: for one client's whole contribution over all rounds (the unit), neighbours as
    `neighboring_relation` says, against an adversary who sees every released model but not who took
    part. The server is trusted with the updates and with the noise.

    Build one with `calibrate` (from a target epsilon) or `from_noise_multiplier`.

    Attributes:
        budget: Never exceeded, whatever happens to the rounds.
        rounds: Number of releases that are planned.
        sampling_rate: Probability of each client in each round, in (0, 1].
        noise_multiplier: Noise standard deviation on the sum over `clipping_norm`, in the rounds
            with the least noise; with `plateau`, the multiplier that its own are relative to.
        clipping_norm: L2 bound on one client's update.
        num_clients: Clients of the declared roster; public.
        neighboring_relation: Which populations are neighbours.
        schedule: How the noise changes over the rounds, declared beforehand.
        plateau: How the noise reacts to a public metric instead; gated by a privacy filter.
        filter_order: The filter's Renyi order, fixed beforehand; None: Gaussian.
        participation_cap: At most so many rounds for each client, which the ledger enforces. It
            has to see who takes part: nothing is amplified. None charges each round to everybody.
        other_releases: What else is released under this budget, such as private statistics.
    """

    budget: PrivacyBudget
    rounds: int
    sampling_rate: float
    noise_multiplier: float
    clipping_norm: float
    num_clients: int
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    schedule: NoiseSchedule = _CONSTANT
    plateau: PlateauSchedule | None = None
    filter_order: float | None = None
    participation_cap: int | None = None
    other_releases: FrozenHistory = ()

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range or fields exclude each other.
        """
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        if self.num_clients < 1:
            raise ValueError(f"num_clients must be at least 1, got {self.num_clients}")
        if self.plateau is not None and self.schedule != _CONSTANT:
            raise ValueError(
                f"the noise can follow the plateau or the schedule '{self.schedule.name}', not both"
            )
        self._check_cap()
        # Both check their own fields; the mechanism also bounds what it can sum exactly.
        _ = self.event_of(1), self.filter()
        if self.mechanism(self.least_noise_multiplier).max_units < self.num_clients:
            raise ValueError(
                f"noise_multiplier {self.least_noise_multiplier} is too small to sum "
                f"{self.num_clients} clients exactly: use a larger one"
            )
        if self.budget.delta >= 1.0 / self.num_clients:
            warnings.warn(
                f"delta {self.budget.delta:.3g} is not below 1/num_clients = "
                f"{1.0 / self.num_clients:.3g}: a mechanism that publishes one client in full "
                f"would pass; use {self.num_clients**-1.1:.3g} or less",
                stacklevel=3,
            )

    def _check_cap(self) -> None:
        if self.participation_cap is None:
            return
        if self.participation_cap < 1:
            raise ValueError(f"participation_cap must be at least 1, got {self.participation_cap}")
        if self.sampling_rate != 1.0:
            raise ValueError(
                "a participation cap needs to see who takes part, and sampling is only worth its "
                f"amplification when nobody does: write sampling_rate=1, got {self.sampling_rate}"
            )
        if self.schedule.name != "constant" or self.plateau is not None:
            raise ValueError(
                "a participation cap needs the same noise in each round, as clients differ in the "
                f"rounds they take part in: use the constant schedule, not '{self.schedule.name}'"
            )

    @classmethod
    def calibrate(
        cls,
        budget: PrivacyBudget,
        *,
        rounds: int,
        sampling_rate: float,
        clipping_norm: float,
        num_clients: int,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
        schedule: NoiseSchedule = _CONSTANT,
        plateau: PlateauSchedule | None = None,
        participation_cap: int | None = None,
        other_releases: History | None = None,
    ) -> Self:
        """Plan the least noise with which all rounds and all other releases fit the budget.

        With `plateau`, the noise with which as many rounds at the base multiplier would fit its
        filter: less noise later ends the training earlier.

        Raises:
            ValueError: If an argument is out of range or the budget can't be reached.
        """
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {rounds}")
        before = freeze(other_releases or {})
        charged = rounds if participation_cap is None else min(rounds, participation_cap)

        def releases(noise_multiplier: float) -> FrozenHistory:
            return schedule_history(
                schedule, noise_multiplier, sampling_rate=sampling_rate, rounds=charged
            )

        filter_order = None
        if plateau is None:
            noise_multiplier = calibrate_noise(
                releases,
                budget.epsilon,
                budget.delta,
                already_spent=before,
                neighboring_relation=neighboring_relation,
                what=f"in {charged} rounds",
            )
        elif _all_gaussian([*releases(1.0), *before]):
            noise_multiplier = _gaussian_noise(budget, charged, before, neighboring_relation)
        else:
            noise_multiplier = _renyi_noise(budget, releases, before, neighboring_relation)
            filter_order = best_filter_order(
                [*releases(noise_multiplier), *before],
                budget.delta,
                neighboring_relation=neighboring_relation,
            )
        return cls(
            budget=budget,
            rounds=rounds,
            sampling_rate=sampling_rate,
            noise_multiplier=noise_multiplier,
            clipping_norm=clipping_norm,
            num_clients=num_clients,
            neighboring_relation=neighboring_relation,
            schedule=schedule,
            plateau=plateau,
            filter_order=filter_order,
            participation_cap=participation_cap,
            other_releases=before,
        )

    @classmethod
    def from_noise_multiplier(
        cls,
        noise_multiplier: float,
        *,
        delta: float,
        rounds: int,
        sampling_rate: float,
        clipping_norm: float,
        num_clients: int,
        max_epsilon: float | None = None,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
        schedule: NoiseSchedule = _CONSTANT,
    ) -> Self:
        """Plan with a noise multiplier of your own; the budget is what it spends, or `max_epsilon`.

        Raises:
            ValueError: If an argument is out of range, or the rounds spend more than `max_epsilon`.
        """
        releases = schedule_history(
            schedule, noise_multiplier, sampling_rate=sampling_rate, rounds=rounds
        )
        spends = tight_epsilon(releases, delta, neighboring_relation=neighboring_relation)
        if max_epsilon is not None and spends > max_epsilon:
            advice = "leave the noise multiplier out and it is calibrated"
            if len(releases) == 1:
                fits = affordable_rounds(
                    {},
                    releases[0][0],
                    max_epsilon,
                    delta,
                    at_most=rounds,
                    neighboring_relation=neighboring_relation,
                )
                advice = f"plan at most {fits} rounds, or {advice}"
            raise ValueError(
                f"{rounds} rounds at noise multiplier {noise_multiplier:.4g} spend epsilon "
                f"{spends:.4g}, more than the budget of {max_epsilon:.4g}: {advice}"
            )
        return cls(
            # A margin above rounding: the same plan must fit on another machine too.
            budget=PrivacyBudget(
                epsilon=max_epsilon or max(spends * (1.0 + 1e-9), 1e-9), delta=delta
            ),
            rounds=rounds,
            sampling_rate=sampling_rate,
            noise_multiplier=noise_multiplier,
            clipping_norm=clipping_norm,
            num_clients=num_clients,
            neighboring_relation=neighboring_relation,
            schedule=schedule,
        )

    @cached_property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Planned noise multiplier of each round; with `plateau`, the first one throughout."""
        if self.plateau is not None:
            return (self.plateau.first * self.noise_multiplier,) * self.rounds
        return self.schedule.multipliers(self.noise_multiplier, self.rounds)

    @property
    def least_noise_multiplier(self) -> float:
        """The smallest noise multiplier that any round may have."""
        if self.plateau is not None:
            return min(self.plateau.first, self.plateau.smallest) * self.noise_multiplier
        return self.noise_multiplier

    def event_of(self, round: int, *, noise_multiplier: float | None = None) -> PrivacyEvent:
        """Return what a round is charged as.

        Args:
            round: Its number, from 1.
            noise_multiplier: Only with `plateau`: what its controller decided.

        Raises:
            ValueError: If there is no such round, or a declared round is given other noise.
        """
        if not 1 <= round <= self.rounds:
            raise ValueError(f"round {round} is not in the plan, which has {self.rounds}")
        planned = self.noise_multipliers[round - 1]
        if noise_multiplier is None:
            noise_multiplier = planned
        if self.plateau is None and noise_multiplier != planned:
            raise ValueError(
                f"round {round} was declared with noise multiplier {planned}, got "
                f"{noise_multiplier}: noise that is chosen on the way needs a plateau plan"
            )
        return PoissonGaussianEvent(
            noise_multiplier=noise_multiplier, sampling_rate=self.sampling_rate
        )

    def declares(self, event: PrivacyEvent) -> bool:
        """Tell whether `event` is among the other releases, in any number."""
        return any(event == declared for declared, _ in self.other_releases)

    def mechanism(self, noise_multiplier: float) -> GaussianMechanism:
        """Return what makes a round of that noise multiplier private."""
        return GaussianMechanism(
            noise_multiplier=noise_multiplier, clipping_norm=self.clipping_norm
        )

    def plateau_controller(self) -> PlateauController | None:
        """Return what decides the noise on the way, if the plan has a plateau."""
        if self.plateau is None:
            return None
        return PlateauController(self.plateau, self.noise_multiplier)

    def filter(self) -> PrivacyFilter:
        """Return the gate that every release of the plan has to pass, with nothing spent."""
        relation = self.neighboring_relation
        if self.plateau is None:
            return DeclaredFilter(self.budget, self.history, neighboring_relation=relation)
        if self.filter_order is None:
            return GaussianFilter(self.budget, neighboring_relation=relation)
        return RenyiFilter(self.budget, self.filter_order, neighboring_relation=relation)

    @property
    def denominator(self) -> float:
        """The public constant that a round's sum is divided by: the expected cohort."""
        return self.sampling_rate * self.num_clients

    @cached_property
    def history(self) -> FrozenHistory:
        """Every planned release that one client is charged for."""
        charged = self.rounds
        if self.participation_cap is not None:
            charged = min(charged, self.participation_cap)
        events = [(self.event_of(round), 1) for round in range(1, charged + 1)]
        return freeze([*events, *self.other_releases])

    def epsilon(self) -> EpsilonBounds:
        """Return what all planned releases spend together; with `plateau`, what its filter allows.

        Noise that is chosen on the way is bounded by its filter alone.
        """
        if self.plateau is not None:
            return EpsilonBounds(filter=self.budget.epsilon)
        return epsilon(
            self.history,
            self.budget.delta,
            neighboring_relation=self.neighboring_relation,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return {
            "budget": asdict(self.budget),
            "rounds": self.rounds,
            "sampling_rate": self.sampling_rate,
            "noise_multiplier": self.noise_multiplier,
            "clipping_norm": self.clipping_norm,
            "num_clients": self.num_clients,
            "neighboring_relation": str(self.neighboring_relation),
            "schedule": self.schedule.to_dict(),
            "plateau": None if self.plateau is None else asdict(self.plateau),
            "filter_order": self.filter_order,
            "participation_cap": self.participation_cap,
            "other_releases": [
                {**event_to_dict(event), "count": count} for event, count in self.other_releases
            ],
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the plan that `to_dict` described."""
        plateau = fields["plateau"]
        return cls(
            **dict(fields)
            | {
                "budget": PrivacyBudget(**fields["budget"]),
                "neighboring_relation": NeighboringRelation(fields["neighboring_relation"]),
                "schedule": NoiseSchedule.from_dict(fields["schedule"]),
                "plateau": None if plateau is None else PlateauSchedule(**plateau),
                "other_releases": freeze(
                    [(event_from_dict(each), each["count"]) for each in fields["other_releases"]]
                ),
            }
        )


def _all_gaussian(history: History) -> bool:
    return all(isinstance(event, GaussianEvent) for event, _ in freeze(history))


def _gaussian_noise(
    budget: PrivacyBudget, rounds: int, before: FrozenHistory, relation: NeighboringRelation
) -> float:
    """Return the noise of `rounds` Gaussians that fill a Gaussian DP filter."""
    left = gaussian_noise_multiplier(budget.epsilon, budget.delta) ** -2
    for event, count in before:
        assert isinstance(event, GaussianEvent)  # the caller has checked
        left -= count * (relation.distance / event.noise_multiplier) ** 2
    if left <= 0.0:
        raise ValueError(f"the other releases spend all of epsilon {budget.epsilon}")
    return relation.distance * math.sqrt(rounds / left)


def _renyi_noise(
    budget: PrivacyBudget,
    releases: Callable[[float], FrozenHistory],
    before: FrozenHistory,
    relation: NeighboringRelation,
) -> float:
    """Return the least noise whose releases fit by Renyi DP, at its best order."""
    low, high = 1e-2, 1.0
    if math.isinf(renyi_epsilon(releases(1.0), budget.delta, relation)):
        raise ValueError(
            f"these rounds have no Renyi bound under {relation} neighbours, and noise that reacts "
            "to a plateau needs one: use zero-out neighbours, no sampling, or a declared schedule"
        )

    def fits(noise: float) -> bool:
        total = freeze([*releases(noise), *before])
        return renyi_epsilon(total, budget.delta, relation) <= budget.epsilon

    while not fits(high):
        low, high = high, 2.0 * high
        if high > 1e6:
            raise ValueError(f"no noise reaches epsilon {budget.epsilon} by Renyi DP")
    while high / low > 1.0 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
