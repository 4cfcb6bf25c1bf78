"""DP-FedAvg as in McMahan et al. 2018: fresh noise at the server in every round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fl_dp.accounting import (
    FixedSizeSampling,
    NeighboringRelation,
    NoiseSchedule,
    PoissonSampling,
    TruncatedPoissonSampling,
    VisibleSampling,
)
from fl_dp.option_errors import IncompatibleOptions

from .hosting import Hosting
from .plan_base import require_distant_records
from .release import Release
from .server_noise import ServerNoisePlan

_ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
_CONSTANT = NoiseSchedule()

CentralLaw = PoissonSampling | TruncatedPoissonSampling | FixedSizeSampling | VisibleSampling
"""Laws of cohorts under fresh noise at the server."""


@dataclass(frozen=True, kw_only=True)
class CentralPlan(ServerNoisePlan):
    """Rounds of a cohort, a clipped sum, and fresh noise from the server.

    Privacy: for one client's whole contribution over all rounds (the unit, unless `unit` says
    otherwise), neighbours as `neighboring_relation` says, against an adversary who sees every
    released model but, where the cohort is sampled, not who took part. The server is trusted with
    the updates and with the noise.

    Attributes:
        unit: `client`, or `record` (one record; needs `replace-one`, as it moves its client's
            update by up to twice the clipping norm).
        Others: See `ServerNoisePlan`, `Release` (total_weight) and `Hosting`.
    """

    kind: ClassVar[str] = "central"

    sampling: CentralLaw
    schedule: NoiseSchedule = _CONSTANT
    total_weight: float | None = None
    unit: str = "client"
    units_per_node: int = 1
    coins_at_nodes: bool = False

    @property
    def release(self) -> Release:
        """A round's release."""
        return replace(super().release, total_weight=self.total_weight)

    @property
    def hosting(self) -> Hosting:
        """Hosting of units on nodes."""
        return Hosting(max_units=self.units_per_node, coins_at_nodes=self.coins_at_nodes)

    def check(self) -> None:
        """Refuse a law that does not go with these neighbours, schedule or nodes."""
        require_distant_records(self)
        law = self.sampling
        if law.least_separation > 1 and self.schedule != _CONSTANT:
            raise IncompatibleOptions(
                "clients that rest between two rounds differ in the rounds they take part in, and "
                "each is charged for the same noise: use a constant schedule, got "
                f"{self.schedule.name}",
                option="schedule",
            )
        if self.hosting.sums_at_nodes:
            self._check_nodes()

    def _check_nodes(self) -> None:
        """Refuse options that a node that sums units can't keep."""
        law = self.sampling
        if self.neighboring_relation is _ADD_OR_REMOVE:
            raise IncompatibleOptions(
                f"a node sums its first units_per_node={self.units_per_node} units at most: "
                "leaving one out moves the next one in, which is twice what add-or-remove-one is "
                "charged for: write neighboring_relation=zero-out",
                option="units_per_node",
            )
        if law.of_declared and self.num_clients % self.units_per_node > 0:
            raise IncompatibleOptions(
                "cohorts of a counted size are drawn from the declared units, and the server "
                f"can't tell which node hosts fewer: units_per_node={self.units_per_node} has "
                f"to divide num_clients={self.num_clients}",
                option="units_per_node",
            )
        if not self.coins_at_nodes:
            return
        if not isinstance(law, PoissonSampling):
            raise IncompatibleOptions(
                f"nodes that flip the coins themselves draw Poisson samples, not {law}: leave "
                "coins_at_nodes out, or take a Poisson sample",
                option="coins_at_nodes",
            )
        law.require_uncapped(
            "a participation cap leaves units out, which nodes that flip the coins themselves "
            "(coins_at_nodes=True) do not know of"
        )
