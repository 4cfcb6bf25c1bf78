"""Noise in shares under a secure sum, with records as units: DP-SGD on all nodes' records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fl_dp.accounting import PoissonSampling, Sampling
from fl_dp.option_errors import IncompatibleOptions, require_count

from .clipped import NormClippedPlan
from .hosting import Hosting
from .shared_noise import SharedNoisePlan


@dataclass(frozen=True, kw_only=True)
class DistributedRecordsPlan(SharedNoisePlan, NormClippedPlan):
    """Each node sums its records' clipped gradients, adds a share of noise, and masks the sum.

    Privacy: for one record, against the server and the nodes that collude with it. Sum over sum it
    is DP-SGD on the union of all records, of which no node says how many it has.

    Attributes:
        num_clients: Clients, each a node, on which the records lie.
        num_records: About as many records as all of them have: it divides, and the contribution
            check compares it with a noisy count.
        max_records: Records that one client has at most; public.
        sampling_rate: Probability of each record in each round, by coins of its node; 1: all.
        clipping: L2 bound on the gradient of one record.
        Others: See `SharedNoisePlan`.
    """

    kind: ClassVar[str] = "distributed_records"

    num_records: int
    max_records: int
    sampling_rate: float = 1.0

    @classmethod
    def law(cls, sampling: Sampling) -> dict[str, Any]:
        """Return the rate of the nodes' coins. See `Plan.law`."""
        if not isinstance(sampling, PoissonSampling):
            raise IncompatibleOptions(
                "nodes do not say how many records they have, so they flip their own coins: "
                f"take a Poisson sample, got {sampling}"
            )
        return {"sampling_rate": sampling.sampling_rate}

    @property
    def num_units(self) -> int:
        """The records."""
        return self.num_records

    @property
    def unit(self) -> str:
        """One record."""
        return "record"

    @property
    def sampling(self) -> PoissonSampling:
        """Coins that the nodes flip themselves."""
        return PoissonSampling(sampling_rate=self.sampling_rate)

    @property
    def hosting(self) -> Hosting:
        """How records lie on nodes."""
        return Hosting(units_per_node=self.max_records, coins_at_nodes=True, nodes=self.num_clients)

    def check(self) -> None:
        """Refuse a training without records."""
        require_count(num_records=self.num_records)
        super().check()
