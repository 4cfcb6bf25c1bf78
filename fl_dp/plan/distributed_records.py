"""Noise in shares under a secure sum, with records as units: DP-SGD on all nodes' records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl_dp.accounting import PoissonSampling
from fl_dp.option_errors import require_count

from .clipped import NormClippedPlan
from .hosting import Hosting
from .record_plan import require_of_records
from .shared_noise_plan import SharedNoisePlan

_EVERYBODY = PoissonSampling(sampling_rate=1.0)


@dataclass(frozen=True, kw_only=True)
class DistributedRecordsPlan(SharedNoisePlan, NormClippedPlan):
    """Each node sums its records' clipped gradients, adds a share of noise, and masks the sum.

    Privacy: for one record (or as `unit` says), against the server and the nodes that collude with
    it. Sum over sum it is DP-SGD on the union of all records; no node reveals its number of them.

    Attributes:
        num_clients: Clients with records, each a node.
        num_records: Approximate number of all records: the divisor, which the contribution check
            compares with a noisy count.
        max_records: Most records of one client; public.
        unit: `record`, or `person`: all of somebody's records at one node, whose mean gradient is
            clipped. Where "record" stands here it is then a person.
        sampling: Each record's coins in each round, flipped by its node; by default all take part.
        clipping: L2 bound on one record's gradient.
        Others: See `SharedNoisePlan`.
    """

    kind: ClassVar[str] = "distributed_records"

    num_records: int
    max_records: int
    unit: str = "record"
    sampling: PoissonSampling = _EVERYBODY

    @property
    def num_units(self) -> int:
        """The number of records."""
        return self.num_records

    @property
    def sampling_rate(self) -> float:
        """The rate of the law, as it was written."""
        return self.sampling.sampling_rate

    @property
    def hosting(self) -> Hosting:
        """Hosting of records on nodes."""
        return Hosting(max_units=self.max_records, coins_at_nodes=True, nodes=self.num_clients)

    def check(self) -> None:
        """Refuse a training without records, and a cap: no ledger counts a record's rounds."""
        require_count(num_records=self.num_records)
        require_of_records(self.unit)
        super().check()
        self.sampling.require_uncapped(
            "no node says which of its records take part, so nobody counts their rounds"
        )
