"""Hosting of privacy units: how many a node has, and which party flips their coins.

A unit is a client, or a record whose node sums clipped gradients: a sum over all nodes is then one
step of DP-SGD on the union of their records.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from fl_dp.accounting import PoissonSampling, Sampling
from fl_dp.option_errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Hosting:
    """The distribution of privacy units over Flower's nodes.

    Attributes:
        max_units: Most units of a node. Above 1, a node answers with the sum of its units'
            clipped updates, and is trusted to clip them.
        coins_at_nodes: Each node flips the coins of its own units and keeps their number secret; it
            is trusted with them.
        nodes: Number of nodes where units are records. An update is then one record's gradient,
            and a node keeps its number of records secret, up to `max_units`. None: units are
            clients, on as many nodes as needed.
    """

    max_units: int = 1
    coins_at_nodes: bool = False
    nodes: int | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: There is no node, or a node would host no unit.
        """
        if self.max_units < 1:
            raise OptionError(
                f"{self.limit} must be at least 1, got {self.max_units}", option=self.limit
            )
        if self.nodes is not None and self.nodes < 1:
            raise OptionError(f"nodes must be at least 1, got {self.nodes}", option="nodes")

    @property
    def of_records(self) -> bool:
        """Whether a unit is one record, and its update that record's gradient."""
        return self.nodes is not None

    @property
    def limit(self) -> str:
        """Option for the most units of a node."""
        return "max_records" if self.of_records else "units_per_node"

    @property
    def sampled(self) -> str:
        """Word for a unit that a round samples."""
        return "record" if self.of_records else "client"

    @property
    def distinct_units(self) -> int:
        """Most units of one node that the server distinguishes: 1 where they are records."""
        return 1 if self.of_records else self.max_units

    def nodes_of(self, units: int) -> int:
        """Return the number of nodes that host `units` units."""
        return -(-units // self.max_units) if self.nodes is None else self.nodes

    def most_drawn(self, sampling: Sampling) -> int:
        """Return the most units of one node in a round, except with probability below 1e-8.

        Only a sum's range depends on it: a larger sum is cut.
        """
        if not (self.coins_at_nodes and isinstance(sampling, PoissonSampling)):
            return self.max_units
        mean = sampling.expected_cohort(self.max_units)
        # Six deviations, and as many units where they are few (Bernstein's inequality).
        return min(self.max_units, ceil(mean + 6.0 * sqrt(mean) + 12.0))

    @property
    def sums_at_nodes(self) -> bool:
        """Whether nodes answer with sums of their units' clipped updates."""
        return self.max_units > 1 or self.coins_at_nodes

    def trusted(self, sampling: Sampling) -> str:
        """Return the trusted parties where the server adds the noise, in words."""
        if self.coins_at_nodes:
            return (
                "the server, with sums and noise; each node, with its units' updates and their "
                "coins"
            )
        if self.max_units > 1:
            sums = "sums and noise" if sampling.visible else "sums, coins and noise"
            return (
                f"the server, with {sums}; each node, with the updates of its up to "
                f"{self.max_units} units and their clipping"
            )
        coins = "" if sampling.visible else ", the coins"
        return f"the server, with the clients' updates{coins} and the noise"

    def check(self, declared: int) -> None:
        """Refuse more records than the nodes can have.

        Raises:
            OptionError: With what to write instead.
        """
        if self.nodes is not None and self.nodes * self.max_units < declared:
            raise OptionError(
                f"{self.nodes} nodes of at most {self.max_units} records can't hold the "
                f"num_records={declared} that are declared: write the most records that one "
                "node may have, max_records=..., which is public",
                option="max_records",
            )
