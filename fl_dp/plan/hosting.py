"""Hosting of privacy units: how many lie on a node, and who flips their coins."""

from __future__ import annotations

from dataclasses import dataclass

from fl_dp.accounting import (
    FixedSizeSampling,
    IncompatibleOptions,
    PoissonSampling,
    Sampling,
    TruncatedPoissonSampling,
)

from .release import Release


@dataclass(frozen=True, kw_only=True)
class Hosting:
    """The place of privacy units on Flower's nodes.

    Attributes:
        units_per_node: Privacy units that a node hosts at most. Above 1, a node answers with the
            sum of its units' clipped updates, and is trusted to clip them.
        coins_at_nodes: Each node flips the coins of its own units and does not say how many came
            up; it is trusted with them.
    """

    units_per_node: int = 1
    coins_at_nodes: bool = False

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a node is to host nobody.
        """
        if self.units_per_node < 1:
            raise ValueError(f"units_per_node must be at least 1, got {self.units_per_node}")

    @property
    def sums_at_nodes(self) -> bool:
        """Whether nodes answer with sums of their units' clipped updates."""
        return self.units_per_node > 1 or self.coins_at_nodes

    @property
    def trusted(self) -> str:
        """Those who are trusted, and with what, where the server adds the noise."""
        if self.coins_at_nodes:
            return (
                "the server, with sums and noise; each node, with its units' updates and their "
                "coins"
            )
        if self.units_per_node > 1:
            return (
                "the server, with sums, coins and noise; each node, with the updates of its up to "
                f"{self.units_per_node} units and their clipping"
            )
        return "the server, with the clients' updates, the coins and the noise"

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
        if self.sums_at_nodes and release.capped_denominator:
            raise IncompatibleOptions(
                "a capped denominator needs each unit's weight, which a node that sums its units "
                "does not tell: use the fixed denominator"
            )
        counted = isinstance(sampling, FixedSizeSampling | TruncatedPoissonSampling)
        if counted and num_clients % self.units_per_node:
            raise IncompatibleOptions(
                f"{sampling.kind} cohorts are drawn from the declared units, and the server "
                f"can't tell which node hosts fewer: units_per_node = {self.units_per_node} has to "
                f"divide num_clients = {num_clients}"
            )
        if not self.coins_at_nodes:
            return
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
