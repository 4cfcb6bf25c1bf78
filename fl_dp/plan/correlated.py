"""Noise at the server that later rounds partly subtract.

A participation is charged as one Gaussian of the plan's multiplier, its effect on later rounds
included. Two participations of one unit affect no common round, as they are at least as many
indices apart as there are bands.

Reference: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fl_dp.accounting import CyclicSampling, VisibleSampling

from .banded_noise import Banded
from .hosting import Hosting
from .plan_base import require_distant_records
from .release import Release
from .server_noise import ServerNoisePlan


@dataclass(frozen=True, kw_only=True)
class CorrelatedPlan(ServerNoisePlan):
    """Rounds with correlated noise, so that the errors of many rounds cancel.

    Privacy: as of `CentralPlan`, for units whose participations are as many rounds apart as the
    noise has bands. The server keeps the noise of that many rounds in its memory while it trains.

    Attributes:
        correlation: Coefficients by which later rounds subtract earlier noise. `noise_multiplier`
            is that of one participation: the noise on a sum is larger.
        sampling: Law of cohorts: visible ones whose units rest, or groups that take turns.
        Others: See `CentralPlan`.
    """

    kind: ClassVar[str] = "correlated"

    correlation: Banded
    sampling: VisibleSampling | CyclicSampling
    total_weight: float | None = None
    unit: str = "client"
    units_per_node: int = 1

    @property
    def coefficients(self) -> tuple[int, ...]:
        """The coefficients of the correlation."""
        return self.correlation.coefficients

    @property
    def roster_can_grow(self) -> bool:
        """False where groups take turns: they are dealt out of the declared clients."""
        return not isinstance(self.sampling, CyclicSampling)

    @property
    def release(self) -> Release:
        """A round's release."""
        return replace(super().release, total_weight=self.total_weight)

    @property
    def hosting(self) -> Hosting:
        """Hosting of units on nodes."""
        return Hosting(max_units=self.units_per_node)

    @property
    def trusted(self) -> str:
        """The server, and its memory."""
        return f"{super().trusted}; {self.correlation.memory_in_words}"

    @property
    def mechanism(self) -> str:
        """The sum, and the correlation of its noise."""
        return f"{super().mechanism}; {self.correlation.in_words}"

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Readers of the server's memory."""
        return self.correlation.not_covered

    def check(self) -> None:
        """Refuse participations that would affect one release together, or are not charged."""
        require_distant_records(self)
        self.correlation.check(self.sampling)
