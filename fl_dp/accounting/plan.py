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
from dataclasses import asdict, dataclass
from typing import Any, Self

from fl_dp.mechanisms import GaussianMechanism

from .bounds import EpsilonBounds, epsilon, pld_epsilon
from .budget import PrivacyBudget
from .calibration import calibrate_noise_multiplier
from .events import PoissonGaussianEvent
from .relations import NeighboringRelation


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """Central DP-FedAvg: equal rounds of a Poisson cohort, a clipped sum and Gaussian noise.

    Privacy: for one client's whole contribution over all rounds (the unit), zero-out neighbours on
    a public roster, against an adversary who sees every released model but not who took part. The
    server is trusted with the updates and with the noise.

    Build one with `calibrate` (from a target epsilon) or `from_noise_multiplier`.

    Attributes:
        budget: Never exceeded, whatever happens to the rounds.
        rounds: Number of releases that are planned.
        sampling_rate: Probability of each client in each round, in (0, 1].
        noise_multiplier: Noise standard deviation on the sum over `clipping_norm`.
        clipping_norm: L2 bound on one client's update.
        num_clients: Clients of the declared roster; public.
        neighboring_relation: Which populations are neighbours.
    """

    budget: PrivacyBudget
    rounds: int
    sampling_rate: float
    noise_multiplier: float
    clipping_norm: float
    num_clients: int
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        if self.num_clients < 1:
            raise ValueError(f"num_clients must be at least 1, got {self.num_clients}")
        # Both check their own fields; the mechanism also bounds what it can sum exactly.
        _ = self.event
        if self.mechanism.max_units < self.num_clients:
            raise ValueError(
                f"noise_multiplier {self.noise_multiplier} is too small to sum "
                f"{self.num_clients} clients exactly: use a larger one"
            )
        if self.budget.delta >= 1.0 / self.num_clients:
            warnings.warn(
                f"delta {self.budget.delta:.3g} is not below 1/num_clients = "
                f"{1.0 / self.num_clients:.3g}: a mechanism that publishes one client in full "
                f"would pass; use {self.num_clients**-1.1:.3g} or less",
                stacklevel=3,
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
    ) -> Self:
        """Plan the least noise with which all rounds fit the budget.

        Raises:
            ValueError: If an argument is out of range or the budget can't be reached.
        """
        return cls(
            budget=budget,
            rounds=rounds,
            sampling_rate=sampling_rate,
            noise_multiplier=calibrate_noise_multiplier(
                budget.epsilon, budget.delta, sampling_rate=sampling_rate, rounds=rounds
            ),
            clipping_norm=clipping_norm,
            num_clients=num_clients,
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
    ) -> Self:
        """Plan with a noise multiplier of your own; the budget is what it spends, or `max_epsilon`.

        Raises:
            ValueError: If an argument is out of range, or the rounds spend more than `max_epsilon`.
        """
        event = PoissonGaussianEvent(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate)
        spends = pld_epsilon({event: rounds}, delta)
        if max_epsilon is not None and spends > max_epsilon:
            budget = PrivacyBudget(epsilon=max_epsilon, delta=delta)
            fits = affordable_rounds({}, event, budget, at_most=rounds)
            raise ValueError(
                f"{rounds} rounds at noise multiplier {noise_multiplier:.4g} spend epsilon "
                f"{spends:.4g}, more than the budget of {max_epsilon:.4g}: plan at most {fits} "
                "rounds, or leave the noise multiplier out and it is calibrated"
            )
        return cls(
            budget=PrivacyBudget(epsilon=max_epsilon or spends, delta=delta),
            rounds=rounds,
            sampling_rate=sampling_rate,
            noise_multiplier=noise_multiplier,
            clipping_norm=clipping_norm,
            num_clients=num_clients,
        )

    @property
    def event(self) -> PoissonGaussianEvent:
        """What one round is charged as."""
        return PoissonGaussianEvent(
            noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate
        )

    @property
    def mechanism(self) -> GaussianMechanism:
        """What makes one round private."""
        return GaussianMechanism(
            noise_multiplier=self.noise_multiplier, clipping_norm=self.clipping_norm
        )

    @property
    def denominator(self) -> float:
        """The public constant that a round's sum is divided by: the expected cohort."""
        return self.sampling_rate * self.num_clients

    def epsilon(self) -> EpsilonBounds:
        """Return what all planned rounds spend together."""
        return epsilon(
            {self.event: self.rounds},
            self.budget.delta,
            neighboring_relation=self.neighboring_relation,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return asdict(self) | {"neighboring_relation": str(self.neighboring_relation)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Return the plan that `to_dict` described."""
        return cls(
            **fields
            | {
                "budget": PrivacyBudget(**fields["budget"]),
                "neighboring_relation": NeighboringRelation(fields["neighboring_relation"]),
            }
        )


def affordable_rounds(
    history: dict[PoissonGaussianEvent, int],
    event: PoissonGaussianEvent,
    budget: PrivacyBudget,
    *,
    at_most: int,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> int:
    """Return how many more times `event` fits into the budget after `history`, up to `at_most`."""

    def fits(count: int) -> bool:
        total = history | {event: history.get(event, 0) + count}
        spent = pld_epsilon(total, budget.delta, neighboring_relation=neighboring_relation)
        return math.isfinite(spent) and spent <= budget.epsilon

    if fits(at_most):
        return at_most
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
