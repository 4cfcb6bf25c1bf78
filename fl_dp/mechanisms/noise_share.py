"""One node's share of a secure sum's noise, added to its own values before they are masked.

    >>> updates = Segment("updates", size=10, scale=400.0, cap=400.0, clipping_norm=1.0)
    >>> share = NoiseShare(segments=(updates,), noise_scale=612.0)
    >>> steps = share.encode([sum_of_clipped_updates], rng)  # int64: mask and send them
    >>> share.decode(total_of_all_nodes)  # [float64 array of shape (10,)]

Drawn *around* the values, the discrete Gaussian puts them on the integers: no rounding error adds
up or lengthens a norm. `fl_dp.accounting.shared_noise` shows that several shares amount to one
Gaussian, and charges it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_dp.option_errors import require_positive

from .discrete_gaussian import NO_FRACTIONS, DiscreteGaussian, discrete_gaussian
from .randomness import SecureRandom
from .rotation import ROTATED, rotated, rotated_back

LEAST_NOISE_SCALE = 2.0
"""Smallest scale, in grid steps, at which a sum of discrete Gaussians is one to 1e-16."""

MOST_UNITS = 1 << 22
"""Most units of one node whose rounded sum is charged in full; plans and nodes refuse more."""

# Each product of a value and the scale is rounded once: in an exact sum of u units, that moves two
# neighbours apart by u 2^-52 of the clipping norm at most.
ROUNDED = 1.0 + MOST_UNITS * 2.0**-52
# Both neighbours' sums of so many units are rounded when they are rotated.
_ROUNDED_TURNING = ROUNDED + 2.0 * MOST_UNITS * ROTATED
WRAPS = 8.0
"""Standard deviations of the whole noise that words hold; failure has 1e-15 per coordinate."""


@dataclass(frozen=True)
class Segment:
    """A stretch of a secure sum's coordinates.

    Attributes:
        name: Its content, such as `updates`.
        size: Number of coordinates.
        scale: Grid steps per unit of value.
        cap: Bound on one node's entry, in steps, below 2^52; larger ones are cut.
        clipping_norm: L2 distance by which one privacy unit moves the segment, in units of value.
    """

    name: str
    size: int
    scale: float
    cap: float
    clipping_norm: float

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a number is out of range.
        """
        if self.size < 0:
            raise ValueError(f"size must be at least 0, got {self.size}")
        require_positive(scale=self.scale, cap=self.cap, clipping_norm=self.clipping_norm)
        # Beyond it no noise can be drawn around an entry, and a sum without that node would be
        # further from its neighbour than any norm says.
        if self.cap >= NO_FRACTIONS:
            raise ValueError(
                f"cap must be below {NO_FRACTIONS:.4g} grid steps, got {self.cap:.4g}: use fewer "
                "steps a unit of value"
            )


@dataclass(frozen=True, kw_only=True)
class NoiseShare:
    """The encoding of a node's values before they are masked, and the decoding of their sum.

    Privacy: one share alone gives none. A sum with `h` shares that an adversary does not know is
    as private as a Gaussian of `shared_noise_multiplier(noise_scale, sensitivity, h)`, for one
    privacy unit that moves each segment by at most its clipping norm, zero-out neighbours.

    Attributes:
        segments: Stretches of the coordinates, in order.
        noise_scale: Scale of the node's noise, in grid steps of every segment.
        rotated: Whether the vector is rotated in grid steps before it is cut, as by `rotated`: few
            entries are then large, and words may be narrow. No privacy depends on it.
    """

    segments: tuple[Segment, ...]
    noise_scale: float
    rotated: bool = False

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If there is no segment, or too little noise for shares to add up.
        """
        if not self.segments:
            raise ValueError("a secure sum needs a segment: there is nothing to add up")
        # "not >=" instead of "<": a NaN has to fail, too.
        if not (self.noise_scale >= LEAST_NOISE_SCALE and math.isfinite(self.noise_scale)):
            raise ValueError(
                f"noise_scale must be at least {LEAST_NOISE_SCALE:.4g} grid steps, got "
                f"{self.noise_scale:.4g}: a sum of less is no Gaussian; use more bits"
            )

    @property
    def size(self) -> int:
        """Coordinates of the sum."""
        return sum(segment.size for segment in self.segments)

    @property
    def rounded(self) -> float:
        """Factor by which rounding may lengthen one unit's move."""
        return _ROUNDED_TURNING if self.rotated else ROUNDED

    @property
    def sensitivity(self) -> float:
        """L2 distance, in grid steps, by which one privacy unit moves what a node encodes."""
        distances = (segment.scale * segment.clipping_norm for segment in self.segments)
        return math.hypot(*distances) * self.rounded

    @cached_property
    def _law(self) -> DiscreteGaussian:
        return discrete_gaussian(self.noise_scale)

    def encode(self, values: Sequence[ArrayLike], rng: SecureRandom) -> NDArray[np.int64]:
        """A node's values (see `placed`) with its share of the noise.

        Returns:
            Integers in grid steps, shape `(size,)`; secret until they are masked.

        Raises:
            ValueError: As by `placed`, or if an entry is NaN.
        """
        return self._law.sample_around(self.placed(values), rng)

    def largest_sum(self, nodes: int) -> float:
        """The largest entry, in steps, of a sum of `nodes` shares.

        Beyond is only noise of more than 8 standard deviations.
        """
        values = nodes * max(segment.cap for segment in self.segments)
        return values + WRAPS * math.sqrt(nodes) * self.noise_scale

    def fits(self, nodes: int, bits: int) -> bool:
        """Whether sums of `nodes` shares fit words of `bits` bits: no entry wraps around."""
        return self.largest_sum(nodes) <= 2.0 ** (bits - 1) - 1.0

    def placed(self, values: Sequence[ArrayLike]) -> NDArray[np.float64]:
        """A node's values in grid steps, not yet whole ones.

        An entry beyond the cap is cut to it: a projection, which moves no two values apart. A
        rotated vector is cut afterwards; nothing lengthens it again.

        Args:
            values: One array per segment: the sum over the node's units, `size` real numbers.

        Returns:
            Float64, shape `(size,)`.

        Raises:
            ValueError: If there is not one array of the right size per segment.
        """
        centres = self._turned(values)
        for segment, part in zip(self.segments, self._parts(centres), strict=True):
            np.clip(part, -segment.cap, segment.cap, out=part)
        return centres

    def longest(self, values: Sequence[ArrayLike]) -> float:
        """The largest ratio of an entry in a node's values to its cap; `placed` cuts beyond 1.

        Raises:
            ValueError: As by `placed`.
        """
        parts = zip(self.segments, self._parts(self._turned(values)), strict=True)
        return max(float(np.abs(part).max(initial=0.0)) / segment.cap for segment, part in parts)

    def _turned(self, values: Sequence[ArrayLike]) -> NDArray[np.float64]:
        """A node's values in grid steps, perhaps rotated, not yet cut."""
        centres = np.empty(self.size)
        for segment, part, array in zip(self.segments, self._parts(centres), values, strict=True):
            flat = np.asarray(array, dtype=np.float64).reshape(-1)
            if flat.size != segment.size:  # one entry would be broadcast
                raise ValueError(
                    f"segment '{segment.name}' has {segment.size} coordinates, got {flat.size}"
                )
            np.multiply(flat, segment.scale, out=part)
        if self.rotated:
            return rotated(centres)
        return centres

    def decode(self, total: NDArray[np.int64]) -> list[NDArray[np.float64]]:
        """Return the sums, in units of value, one array per segment.

        Raises:
            ValueError: If `total` has another shape.
        """
        if total.shape != (self.size,):
            raise ValueError(f"the sum has {self.size} coordinates, got shape {total.shape}")
        flat = total.astype(np.float64)
        if self.rotated:
            flat = rotated_back(flat)
        parts = zip(self.segments, self._parts(flat), strict=True)
        return [part / segment.scale for segment, part in parts]

    def _parts(self, flat: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Views of a flat vector, one per segment."""
        ends = np.cumsum([segment.size for segment in self.segments])[:-1]
        return list(np.split(flat, ends))
