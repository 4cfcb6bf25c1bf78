"""One node's part of a secure sum without noise: an exact total, which is not private.

Masks hide each node's values all the same. The total itself is a release without differential
privacy, for owners who allow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .noise_share import GridShare, Segment
from .randomness import SecureRandom


@dataclass(frozen=True, kw_only=True)
class ExactShare(GridShare):
    """What each node does to its values before they are masked, where no noise is wanted.

    Privacy: none.

    Attributes: See `GridShare`; there is no noise.
    """

    noise_scale: float = 0.0

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If there is no segment, or noise.
        """
        super().__post_init__()
        if self.noise_scale != 0.0:
            raise ValueError(f"an exact total has no noise, got noise_scale {self.noise_scale}")

    @classmethod
    def on_finest_grid(
        cls, name: str, size: int, *, largest: float, clipping_norm: float, nodes: int, bits: int
    ) -> Self:
        """Return the share on the finest grid at which sums of so many nodes fit so many bits.

        Args:
            name: Of the only segment.
            size: Coordinates.
            largest: Largest entry of one node.
            clipping_norm: L2 bound on one unit's values.
            nodes: Of the sum.
            bits: Of a word.
        """
        steps = (2 ** (bits - 1) - 1) // nodes
        return cls(segments=(Segment(name, size, steps / largest, float(steps), clipping_norm),))

    def encode(self, values: Sequence[ArrayLike], rng: SecureRandom) -> NDArray[np.int64]:
        """Return a node's values, each rounded to the nearest step.

        Args:
            values: As of `placed`.
            rng: Not used.

        Raises:
            ValueError: If there is not one array of the right size a segment, or an entry is not
                finite.
        """
        del rng
        steps = np.rint(self.placed(values))
        if not np.isfinite(steps).all():
            raise ValueError("values of an exact total must be numbers")
        return steps.astype(np.int64)
