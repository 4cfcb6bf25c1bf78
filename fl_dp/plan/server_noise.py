"""What the kinds have in common whose noise the server adds, once for a cohort's sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from fl_dp.mechanisms import Clipping, ScalarMetric
from fl_dp.mechanisms.clipping_rules import DEFAULT_CLIPPING

from .hosting import Hosting
from .plan import Plan
from .release import Release

_CLIPPING = {
    "fixed": "L2-clipped updates",
    "per-layer": "updates whose layers are L2-clipped one by one",
    "adaptive": "updates that are L2-clipped at a norm which follows a noisy quantile",
}


@dataclass(frozen=True, kw_only=True)
class ServerNoisePlan(Plan):
    """Gaussian noise that the server adds to a cohort's sums; the server is trusted.

    Attributes:
        clipping: What bounds one client's update.
        metrics: Metrics of the clients that each round releases; see `Release`.
        scalar_noise_std: Noise on each metric and on the bits of adaptive clipping; see `Release`.
        Others: See `Plan`.
    """

    place: ClassVar[str] = "at the server"

    clipping: Clipping = DEFAULT_CLIPPING
    metrics: tuple[ScalarMetric, ...] = ()
    scalar_noise_std: float | None = None

    @property
    def release(self) -> Release:
        """What a round publishes."""
        return Release(
            clipping=self.clipping,
            metrics=self.metrics,
            # Whether its noise is enough depends on the multiplier, which a draft has not.
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
        """One unit a node."""
        return Hosting()

    @property
    def adversary(self) -> str:
        """Whoever sees the models."""
        others = "all other clients' data"
        if self.unit == "record":
            others = "all other records, those of the same client included"
        seen = (
            "sees who took part"
            if self.sampling.visible
            else "does not see who took part in which round"
        )
        return f"sees every released model and knows {others}; {seen}"

    @property
    def trusted(self) -> str:
        """The server, and nodes as far as they host several units."""
        return self.hosting.trusted(self.sampling)

    @property
    def mechanism(self) -> str:
        """What is summed, and what goes with it."""
        text = f"Gaussian on an integer grid, on the sum of {_CLIPPING[self.clipping.kind]}"
        if self.metrics:
            names = ", ".join(metric.name for metric in self.metrics)
            text += f", released as one with the clients' metrics {names}"
        return text
