"""Noise in shares under a secure sum, with clients as units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl_dp.accounting import PoissonSampling, VisibleSampling
from fl_dp.option_errors import IncompatibleOptions

from .clipped import RuleClippedPlan
from .hosting import Hosting
from .shared_noise_plan import SharedNoisePlan

_EVERYBODY = PoissonSampling(sampling_rate=1.0)


@dataclass(frozen=True, kw_only=True)
class DistributedPlan(SharedNoisePlan, RuleClippedPlan):
    """Each node clips its clients' updates, adds a share of noise, and masks their sum.

    Privacy: for one client's whole contribution over all rounds, against the server and the nodes
    that collude with it, who see nothing but opened sums.

    Attributes:
        sampling: All clients, coins that nodes flip themselves, or a visible cohort.
        Others: See `SharedNoisePlan`, `RuleClippedPlan` and `Hosting`.
    """

    kind: ClassVar[str] = "distributed"

    sampling: PoissonSampling | VisibleSampling = _EVERYBODY
    units_per_node: int = 1
    coins_at_nodes: bool = False

    @property
    def hosting(self) -> Hosting:
        """Hosting of clients on nodes."""
        return Hosting(max_units=self.units_per_node, coins_at_nodes=self.coins_at_nodes)

    def check(self) -> None:
        """Refuse a cohort that rests, or whose units would have to be named to nodes."""
        super().check()
        self.sampling.require_uncapped(
            "a server that lies chooses the cohorts, so a secure sum charges every round to "
            "everybody"
        )
        if isinstance(self.sampling, PoissonSampling):
            return
        if self.sampling.least_separation > 1:
            raise IncompatibleOptions(
                "a server that lies chooses the cohorts, so a secure sum charges every round to "
                f"everybody: leave separation out, got {self.sampling.least_separation}",
                option="separation",
            )
        if self.units_per_node > 1:
            raise IncompatibleOptions(
                "a cohort of units would tell each node which of its own take part, and every "
                "node of a secure sum is sent the same: write sampling_rate=1 or "
                f"coins_at_nodes=True, or have one unit a node, got {self.sampling}",
                option="sampling_rate",
            )
        if self.coins_at_nodes:
            raise IncompatibleOptions(
                "nodes that flip the coins themselves draw Poisson samples, not "
                f"{self.sampling}: leave coins_at_nodes out, or take a Poisson sample",
                option="coins_at_nodes",
            )
