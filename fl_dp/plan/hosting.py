"""Hosting of privacy units: how many lie on a node, and who flips their coins.

A unit is a client, or a record whose node adds up the clipped gradients of its own: one sum over
all nodes is then one step of DP-SGD on the union of their records.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from fl_dp.accounting import (
    CyclicSampling,
    FixedSizeSampling,
    IncompatibleOptions,
    PoissonSampling,
    Sampling,
    TruncatedPoissonSampling,
)
from fl_dp.mechanisms import FixedClipping

from .release import Release


@dataclass(frozen=True, kw_only=True)
class Hosting:
    """The place of privacy units on Flower's nodes.

    Attributes:
        units_per_node: Privacy units that a node hosts at most. Above 1, a node answers with the
            sum of its units' clipped updates, and is trusted to clip them.
        coins_at_nodes: Each node flips the coins of its own units and does not say how many came
            up; it is trusted with them.
        nodes: Units are records, which lie on so many nodes: a node's unit is the gradient of one,
            and how many it has is its own business, up to `units_per_node`. None: units are
            clients, on as many nodes as it takes.
    """

    units_per_node: int = 1
    coins_at_nodes: bool = False
    nodes: int | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a node is to host nobody, or records are counted by the server.
        """
        if self.units_per_node < 1:
            raise ValueError(f"units_per_node must be at least 1, got {self.units_per_node}")
        if self.nodes is None:
            return
        if self.nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {self.nodes}")
        if not self.coins_at_nodes:
            raise IncompatibleOptions(
                "nodes do not say how many records they have, so nobody else can draw them: where "
                "units are records write coins_at_nodes=True"
            )

    @property
    def of_records(self) -> bool:
        """Whether a unit is one record, and its update the gradient of that record."""
        return self.nodes is not None

    @property
    def sampled(self) -> str:
        """Word for one of those whom a round samples."""
        return "record" if self.of_records else "client"

    @property
    def told_apart(self) -> int:
        """Units of one node that the server tells apart at most: of records it knows none."""
        return 1 if self.of_records else self.units_per_node

    def nodes_of(self, units: int) -> int:
        """Return how many nodes host so many units."""
        return -(-units // self.units_per_node) if self.nodes is None else self.nodes

    def most_drawn(self, sampling: Sampling) -> int:
        """Return how many units of one node a round has, but for a probability below 1e-8.

        Nothing rests on it but the range of a sum: what is beyond is cut.
        """
        if not (self.coins_at_nodes and isinstance(sampling, PoissonSampling)):
            return self.units_per_node
        mean = sampling.expected_cohort(self.units_per_node)
        # Six deviations, and as many units where they are few (Bernstein's inequality).
        return min(self.units_per_node, ceil(mean + 6.0 * sqrt(mean) + 12.0))

    @property
    def sums_at_nodes(self) -> bool:
        """Whether nodes answer with sums of their units' clipped updates."""
        return self.units_per_node > 1 or self.coins_at_nodes

    def trusted(self, sampling: Sampling) -> str:
        """Return who is trusted, and with what, where the server adds the noise."""
        if self.coins_at_nodes:
            return (
                "the server, with sums and noise; each node, with its units' updates and their "
                "coins"
            )
        if self.units_per_node > 1:
            sums = "sums and noise" if sampling.visible else "sums, coins and noise"
            return (
                f"the server, with {sums}; each node, with the updates of its up to "
                f"{self.units_per_node} units and their clipping"
            )
        coins = "" if sampling.visible else ", the coins"
        return f"the server, with the clients' updates{coins} and the noise"

    def check(
        self,
        *,
        num_clients: int,
        sampling: Sampling,
        participation_cap: int | None,
        release: Release,
    ) -> None:
        """Refuse what nodes that host several units can't do, or what they can't be asked.

        Raises:
            ValueError: With what to write instead.
        """
        if self.of_records:
            self._check_records(num_clients, release)
        if self.sums_at_nodes and release.capped_denominator:
            raise IncompatibleOptions(
                "a capped denominator needs each unit's weight, which a node that sums its units "
                "does not tell: use the fixed denominator"
            )
        law = sampling.inside if isinstance(sampling, CyclicSampling) else sampling
        counted = isinstance(law, FixedSizeSampling | TruncatedPoissonSampling)
        if counted and num_clients % self.units_per_node:
            raise IncompatibleOptions(
                f"{law.kind} cohorts are drawn from the declared units, and the server "
                f"can't tell which node hosts fewer: units_per_node = {self.units_per_node} has to "
                f"divide num_clients = {num_clients}"
            )
        if not self.coins_at_nodes:
            return
        if isinstance(sampling, CyclicSampling):
            raise IncompatibleOptions(
                "nodes that flip the coins themselves do not know whose turn it is: with groups "
                "that take turns, the server flips the coins"
            )
        if not isinstance(sampling, PoissonSampling):
            raise IncompatibleOptions(
                "nodes that flip the coins themselves draw Poisson samples: use PoissonSampling, "
                f"not {type(sampling).__name__}"
            )
        if participation_cap is not None:
            raise IncompatibleOptions(
                "a participation cap leaves units out, which nodes that flip the coins themselves "
                "do not know of: use coins at the server"
            )

    def _check_records(self, declared: int, release: Release) -> None:
        """Refuse what gradients of single records do not have, and numbers that can't be right.

        Raises:
            ValueError: With what to write instead.
        """
        assert self.nodes is not None  # units are records
        if self.nodes * self.units_per_node < declared:
            raise ValueError(
                f"{self.nodes} nodes of at most {self.units_per_node} records can't hold the "
                f"num_clients = {declared} that are declared: write the most records that one node "
                "may have, units_per_node=..., which is public"
            )
        if not isinstance(release.clipping, FixedClipping):
            raise IncompatibleOptions(
                "where units are records one norm bounds the gradient of each, and nobody learns "
                f"how many it clips: write clipping_norm=..., not {release.clipping.kind} clipping"
            )
        others = {"metrics": release.metrics, "total_weight": release.total_weight}
        found = [name for name, value in others.items() if value]
        if found:
            raise IncompatibleOptions(
                "where units are records a node adds up their gradients and nothing else: leave "
                f"out {', '.join(found)}"
            )

    def check_norms_are_told(self) -> None:
        """Refuse nodes that answer with sums, where a selection reads each update's norm.

        Raises:
            ValueError: With what to write instead.
        """
        if self.sums_at_nodes:
            raise IncompatibleOptions(
                "a node that sums its units does not tell the norm of each: write utility='loss', "
                "or have one unit a node and coins at the server"
            )

    def check_compression(self, up: str) -> None:
        """Refuse an encoding of what nodes answer with, where they answer with exact sums.

        Args:
            up: The encoding's name.

        Raises:
            ValueError: With what to write instead.
        """
        if self.sums_at_nodes and up != "none":
            raise IncompatibleOptions(
                "a node that sums its units answers in exact grid steps, without noise: "
                f"compression=Compression(up='{up}') would round the exact sum, so leave "
                "compression out, or have one unit a node and coins at the server"
            )
