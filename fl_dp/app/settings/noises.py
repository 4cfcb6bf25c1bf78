"""Settings of how the server's noise of one round goes with that of others: `noise=NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .checks import at_least, told


@dataclass(kw_only=True)
class NoiseSettings:
    """New noise in each round; docs/correlated_noise.md compares the options.

    Attributes:
        name: Option of the group.
    """

    selections: ClassVar[tuple[str, ...]] = ()  # those that it goes with; none: with each
    name: str = told("independent")

    def __str__(self) -> str:
        """Return the option."""
        return self.name

    @property
    def bands(self) -> int | None:
        """Rounds that one draw of noise reaches; None: as many as is best."""
        return None


@dataclass(kw_only=True)
class CorrelatedNoiseSettings(NoiseSettings):
    """Noise of which later rounds subtract a part.

    Attributes:
        bands: Rounds that one draw of correlated noise reaches, at most the distance of two rounds
            of one client: the server keeps one vector less in memory. Null is that distance, or as
            many as fit into 1 GiB.
    """

    bands: int | None = told(None)

    def __post_init__(self) -> None:
        """Check the values."""
        at_least("noise.bands", self.bands, 2)


@dataclass(kw_only=True)
class SpacedNoiseSettings(CorrelatedNoiseSettings):
    """Clients rest between their rounds, which everybody sees.

    Attributes:
        separation: Least distance of two rounds of one client; null is as far as the roster allows.
    """

    selections = ("public",)
    name: str = told("spaced")
    separation: int | None = told(None)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        at_least("noise.separation", self.separation, 2)


@dataclass(kw_only=True)
class CyclicNoiseSettings(CorrelatedNoiseSettings):
    """Public groups take turns, with secret coins inside each.

    Attributes:
        groups: Number of groups, each of which has every such round.
    """

    selections = ("poisson", "truncated_poisson")
    name: str = told("cyclic")
    groups: int | None = told(None)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        at_least("noise.groups", self.groups, 2)


NOISES: tuple[NoiseSettings, ...] = (
    NoiseSettings(),
    SpacedNoiseSettings(),
    CyclicNoiseSettings(),
)
"""What `noise=NAME` chooses among."""
