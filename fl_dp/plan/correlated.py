"""Noise at the server that later rounds take away again.

A participation is charged as one Gaussian of the plan's multiplier, its effect on later rounds
included: no round is touched by two participations of one unit, as these are at least as many
indices apart as there are bands.

Reference: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fl_dp.accounting import CyclicSampling, VisibleSampling

from .correlation import Banded
from .hosting import Hosting
from .plan import require_distant_records
from .release import Release
from .server_noise import ServerNoisePlan


@dataclass(frozen=True, kw_only=True)
class CorrelatedPlan(ServerNoisePlan):
    """Rounds whose noise is correlated, so that the errors of many rounds cancel.

    Privacy: as of `CentralPlan`, for units whose participations are as many rounds apart as the
    noise has bands. The server keeps the noise of so many rounds in its memory while it trains.

    Attributes:
        correlation: How the noise of later rounds takes that of earlier ones away.
            `noise_multiplier` is that of one participation: the noise on a sum is larger.
        sampling: Whose turn it is: cohorts that are seen and rest, or groups that take turns.
        total_weight: Public sum of all clients' weights; see `Release`.
        unit: `client`, or `record`; see `CentralPlan`.
        units_per_node: Units that a node hosts at most; see `Hosting`.
        Others: See `ServerNoisePlan`.
    """

    kind: ClassVar[str] = "correlated"

    correlation: Banded
    sampling: VisibleSampling | CyclicSampling
    total_weight: float | None = None
    unit: str = "client"
    units_per_node: int = 1

    @property
    def coefficients(self) -> tuple[int, ...]:
        """Those of the correlation."""
        return self.correlation.coefficients

    @property
    def roster_can_grow(self) -> bool:
        """No, where groups take turns: they are dealt out of the declared clients."""
        return not self.sampling.takes_turns

    @property
    def release(self) -> Release:
        """What a round publishes."""
        return replace(super().release, total_weight=self.total_weight)

    @property
    def hosting(self) -> Hosting:
        """How units lie on nodes."""
        return Hosting(units_per_node=self.units_per_node)

    @property
    def trusted(self) -> str:
        """The server, and what it keeps in memory."""
        return f"{super().trusted}; {self.correlation.kept}"

    @property
    def mechanism(self) -> str:
        """What is summed, and how its noise is correlated."""
        return f"{super().mechanism}; {self.correlation.in_words}"

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Who reads the server's memory."""
        return self.correlation.not_covered

    def check(self) -> None:
        """Refuse participations that would meet in one release, or that nobody is charged for."""
        require_distant_records(self)
        self.correlation.check(self.sampling)
