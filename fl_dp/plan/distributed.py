"""Noise in shares under a secure sum, with clients as units."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from fl_dp.accounting import PoissonSampling, VisibleSampling
from fl_dp.mechanisms import Clipping, ScalarMetric
from fl_dp.mechanisms.clipping_rules import DEFAULT_CLIPPING
from fl_dp.option_errors import IncompatibleOptions

from .hosting import Hosting
from .release import Release
from .shared_noise import SharedNoisePlan

_EVERYBODY = PoissonSampling(sampling_rate=1.0)


@dataclass(frozen=True, kw_only=True)
class DistributedPlan(SharedNoisePlan):
    """Each node clips its clients' updates, adds a share of noise, and masks their sum.

    Privacy: for one client's whole contribution over all rounds, against the server and the nodes
    that collude with it, who see nothing but opened sums.

    Attributes:
        sampling: All clients, coins that nodes flip themselves, or a cohort that is seen.
        clipping: What bounds one client's update.
        metrics: Metrics of the clients that each round releases; see `Release`.
        scalar_noise_std: Noise on each metric and on the bits of adaptive clipping; see `Release`.
        units_per_node: Units that a node hosts at most; see `Hosting`.
        coins_at_nodes: Each node flips the coins of its own units; see `Hosting`.
        Others: See `SharedNoisePlan`.
    """

    kind: ClassVar[str] = "distributed"

    sampling: PoissonSampling | VisibleSampling = _EVERYBODY
    clipping: Clipping = DEFAULT_CLIPPING
    metrics: tuple[ScalarMetric, ...] = ()
    scalar_noise_std: float | None = None
    units_per_node: int = 1
    coins_at_nodes: bool = False

    @property
    def release(self) -> Release:
        """What a round publishes."""
        return Release(
            clipping=self.clipping,
            metrics=self.metrics,
            scalar_noise_std=None if self.is_draft else self.scalar_noise_std,
            contribution_check=self.contribution_check,
        )

    @property
    def clipping_norm(self) -> float:
        """L2 bound on one client's whole update, in the first round."""
        return self.release.clipping_norm

    def with_clipping(self, clipping: Clipping) -> Self:
        """Return the plan with another bound on updates. See `Plan.with_clipping`."""
        return replace(self, clipping=clipping)

    @property
    def hosting(self) -> Hosting:
        """How clients lie on nodes."""
        return Hosting(units_per_node=self.units_per_node, coins_at_nodes=self.coins_at_nodes)

    def check(self) -> None:
        """Refuse a cohort that rests, or that nodes of several clients would be told of."""
        super().check()
        if not isinstance(self.sampling, VisibleSampling):
            return
        if self.sampling.separation > 1:
            raise IncompatibleOptions(
                "a server that lies chooses the cohorts, so a secure sum charges every round to "
                f"everybody: leave {{separation}} out, got {self.sampling.separation}",
                options=("sampling", "secure_sum"),
            )
        if self.units_per_node > 1:
            raise IncompatibleOptions(
                "a cohort of units would tell each node which of its own take part, and every "
                "node of a secure sum is sent the same: write {sampling_rate=1} or "
                f"{{coins_at_nodes=True}}, or have one unit a node, got "
                f"{{sampling={self.sampling}}}",
                options=("units_per_node", "sampling", "secure_sum"),
            )
        if self.coins_at_nodes:
            raise IncompatibleOptions(
                "nodes that flip the coins themselves draw Poisson samples: use "
                f"{{sampling=PoissonSampling}}, not {{sampling={self.sampling}}}",
                options=("coins_at_nodes", "sampling"),
            )
