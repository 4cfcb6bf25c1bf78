"""Noise in shares under a secure sum, with records as units: DP-SGD on all nodes' records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl_dp.accounting import PoissonSampling
from fl_dp.option_errors import require_count

from .clipped import NormClippedPlan
from .hosting import Hosting
from .shared_noise_plan import SharedNoisePlan

_EVERYBODY = PoissonSampling(sampling_rate=1.0)


@dataclass(frozen=True, kw_only=True)
class DistributedRecordsPlan(SharedNoisePlan, NormClippedPlan):
    """Each node sums its records' clipped gradients, adds a share of noise, and masks the sum.

    Privacy: for one record, against the server and the nodes that collude with it. Sum over sum it
    is DP-SGD on the union of all records; no node reveals its number of records.

    Attributes:
        num_clients: Clients with records, each a node.
        num_records: Approximate number of all records: the divisor, which the contribution check
            compares with a noisy count.
        max_records: Most records of one client; public.
        sampling: Each record's coins in each round, flipped by its node; by default all take part.
        clipping: L2 bound on one record's gradient.
        Others: See `SharedNoisePlan`.
    """

    kind: ClassVar[str] = "distributed_records"

    num_records: int
    max_records: int
    sampling: PoissonSampling = _EVERYBODY

    @property
    def num_units(self) -> int:
        """The number of records."""
        return self.num_records

    @property
    def unit(self) -> str:
        """One record."""
        return "record"

    @property
    def sampling_rate(self) -> float:
        """The rate of the law, as it was written."""
        return self.sampling.sampling_rate

    @property
    def hosting(self) -> Hosting:
        """Hosting of records on nodes."""
        return Hosting(units_per_node=self.max_records, coins_at_nodes=True, nodes=self.num_clients)

    def check(self) -> None:
        """Refuse a training without records, and a cap: no ledger counts a record's rounds."""
        require_count(num_records=self.num_records)
        super().check()
        self.sampling.require_uncapped(
            "no node says which of its records take part, so nobody counts their rounds"
        )
