"""Settings of the bound on one client's update, a class for each `clipping=NAME`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .checks import between_0_and_1, positive, tracked

if TYPE_CHECKING:
    from fl_dp.mechanisms import Clipping


@dataclass(kw_only=True)
class ClippingSettings:
    """Bound on one client's update, the same in every round; other options move it.

    Attributes:
        name: Option of the group.
        norm: L2 bound on a client's whole update (L1 under `privacy.scheme=laplace`); under
            `adaptive`, of the first round.
    """

    name: str = tracked("fixed")
    norm: float = tracked(0.5, tunable=True)

    def __post_init__(self) -> None:
        """Check the values."""
        positive("clipping.norm", self.norm)

    @property
    def norms(self) -> list[float] | None:
        """One bound per floating-point array; None: they share one."""
        return None

    def make(self, num_arrays: Callable[[], int]) -> Clipping:
        """Return the clipping of updates.

        Args:
            num_arrays: Counts the floating-point arrays of the model, which it has to build.
        """
        from fl_dp.mechanisms import FixedClipping

        return FixedClipping(norm=self.norm)


@dataclass(kw_only=True)
class AdaptiveClippingSettings(ClippingSettings):
    """A bound that follows a quantile of the updates' norms.

    Attributes:
        target_quantile: Share of updates that stays unclipped, in (0, 1).
        learning_rate: Largest change of the norm's logarithm in one round.
    """

    name: str = tracked("adaptive")
    norm: float = tracked(0.1, tunable=True)
    target_quantile: float = tracked(0.5)
    learning_rate: float = tracked(0.2)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        positive("clipping.learning_rate", self.learning_rate)
        between_0_and_1("clipping.target_quantile", self.target_quantile)

    def make(self, num_arrays: Callable[[], int]) -> Clipping:
        """Return the clipping of updates."""
        from fl_dp.mechanisms import AdaptiveClipping

        return AdaptiveClipping(
            norm=self.norm,
            target_quantile=self.target_quantile,
            learning_rate=self.learning_rate,
        )


@dataclass(kw_only=True)
class PerLayerClippingSettings(ClippingSettings):
    """A bound for each array.

    Attributes:
        norms: One bound per floating-point array; null shares `norm` evenly.
    """

    name: str = tracked("per_layer")
    norms: list[float] | None = tracked(None)

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        for norm in self.norms or ():
            positive("clipping.norms", norm)

    def make(self, num_arrays: Callable[[], int]) -> Clipping:
        """Return the clipping of updates."""
        from fl_dp.mechanisms import PerLayerClipping

        if self.norms is not None:
            return PerLayerClipping(norms=tuple(self.norms))
        return PerLayerClipping.evenly(self.norm, num_arrays())


CLIPPINGS: tuple[ClippingSettings, ...] = (
    ClippingSettings(),
    AdaptiveClippingSettings(),
    PerLayerClippingSettings(),
)
"""The options of `clipping=NAME`."""
