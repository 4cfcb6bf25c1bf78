"""Common part of the kinds whose noise the server adds, once to a cohort's sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .clipped import RuleClippedPlan
from .hosting import Hosting

_CLIPPING = {
    "fixed": "L2-clipped updates",
    "per-layer": "updates whose layers are L2-clipped one by one",
    "adaptive": "updates that are L2-clipped at a norm which follows a noisy quantile",
}


@dataclass(frozen=True, kw_only=True)
class ServerNoisePlan(RuleClippedPlan):
    """Gaussian noise that the trusted server adds to a cohort's sums.

    Fields: see `RuleClippedPlan`.
    """

    noise_location: ClassVar[str] = "at the server"

    @property
    def hosting(self) -> Hosting:
        """One unit per node."""
        return Hosting()

    @property
    def adversary(self) -> str:
        """Anyone who sees the models."""
        others = "all other clients' data"
        if self.unit == "record":
            others = "all other records, those of the same client included"
        cohorts = "does not see who took part in which round, which must stay secret"
        if self.sampling.visible:
            cohorts = "sees who took part"
        return f"sees every released model and knows {others}; {cohorts}"

    @property
    def trusted(self) -> str:
        """The server, and nodes that host several units."""
        return self.hosting.trusted(self.sampling)

    @property
    def mechanism(self) -> str:
        """The sum, and the metrics with it."""
        text = f"Gaussian on an integer grid, on the sum of {_CLIPPING[self.clipping.kind]}"
        if self.metrics:
            names = ", ".join(metric.name for metric in self.metrics)
            text += f", released as one with the clients' metrics {names}"
        return text
