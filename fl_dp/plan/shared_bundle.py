"""A round's sums under a secure sum: the clipping at nodes, and their values on integers.

A secure sum's words have few bits, which its range and its noise share. The bits and the largest
entry of one node fix the grid: the finest at which no sum wraps around.

On request, fewer bits than nodes' values need are enough: sums are rotated, so that few entries
are large, and those are cut. That costs accuracy, never privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_dp.accounting import SharedNoise
from fl_dp.accounting.shared_noise import shared_noise_multiplier
from fl_dp.mechanisms import GaussianBundle, GaussianMechanism, NoiseShare, SecureRandom, Segment
from fl_dp.mechanisms.noise_share import LEAST_NOISE_SCALE, WRAPS
from fl_dp.mechanisms.rotation import largest_stretch
from fl_dp.option_errors import OptionError

MOST_BITS = 32
_SMALL_CAP = 0.25  # of a node's largest entry: only updates of few entries exceed it
_SPREAD = 8.0  # deviations of a rotated vector's entries: one in 1e13 is beyond
_LEAST_ROOM = 4.0  # for values, in deviations of the sum's noise
_BELOW = 1.0 - 2.0**-20  # so that rounding leaves room


@dataclass(frozen=True, kw_only=True)
class SharedBundle:
    """A `GaussianBundle` whose noise is shared among a secure sum's nodes.

    Privacy: releasing all sums is as private as one Gaussian of the bundle's `noise_multiplier`,
    for one unit, zero-out neighbours, against anyone who knows all but the certain shares of noise
    (`SharedNoise.honest_shares`).

    Attributes:
        bundle: Sums, and clipping of units; its own noise is not used.
        share: Each node's noise, and the decoding of the sum.
        bits: Each coordinate is summed modulo 2^bits.
    """

    bundle: GaussianBundle
    share: NoiseShare
    bits: int

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments of the coordinates: the updates, then the bundle's scalars in order."""
        return self.share.segments

    @property
    def noise_scale(self) -> float:
        """Scale of one node's noise, in grid steps."""
        return self.share.noise_scale

    def encode(
        self,
        updates: NDArray[np.float64],
        scalars: Sequence[float],
        rng: SecureRandom,
    ) -> NDArray[np.int64]:
        """Return a node's sums with its share of the noise; see `NoiseShare.encode`.

        Args:
            updates: Sum of its units' clipped updates, in the updates' units, not in grid steps.
            scalars: Sums of its units' scalars, in the order and units of `scalar_values`.
            rng: Noise source.
        """
        values: list[ArrayLike] = [updates, *scalars]
        return self.share.encode(values, rng)

    def decode(self, total: NDArray[np.int64]) -> tuple[NDArray[np.float64], list[float]]:
        """Return the noisy sums of updates and of scalars, in the units of `encode`."""
        updates, *scalars = self.share.decode(total)
        return updates, [float(segment[0]) for segment in scalars]


@dataclass(frozen=True, kw_only=True)
class WordSize:
    """Public numbers that fix a round's grid.

    Attributes:
        noise: Numbers of nodes of a sum.
        shares: Shares of noise that no adversary can subtract.
        units_in_sum: Most units of one node in its sum.
        bits: Bits of a word; None: 16, or 20 where those give too little noise.
        element_cap: Largest entry of one node, in clipping norms; None: all that its units can
            reach, or a quarter of it; with `bits`, also what they leave for rotated updates.
    """

    noise: SharedNoise
    shares: int
    units_in_sum: int
    bits: int | None
    element_cap: float | None

    def fit(self, bundle: GaussianBundle, size: int) -> SharedBundle:
        """Return the round on the finest grid at which no sum wraps around.

        Raises:
            ValueError: The grid would be so coarse that shares of noise are below two steps; the
                text names enough bits.
        """
        narrow = self.bits is not None
        candidates = (16, 20) if self.bits is None else (self.bits,)
        for bits in candidates:
            share = self._fitting_share(bundle, size, bits, narrow=narrow)
            if share is not None:
                return SharedBundle(bundle=bundle, share=share, bits=bits)
        raise OptionError(self._too_few(bundle, size))

    @property
    def _caps(self) -> tuple[float, ...]:
        """Largest entries of a node to try, in clipping norms."""
        if self.element_cap is not None:
            return (self.element_cap,)
        most = float(self.units_in_sum)
        return most, _SMALL_CAP * most

    def _fitting_share(
        self, bundle: GaussianBundle, size: int, bits: int, *, narrow: bool
    ) -> NoiseShare | None:
        """Return the share that `bits` bits hold; None: there is none."""
        caps = [(cap, False) for cap in self._caps]
        narrow = narrow and self.element_cap is None  # a given cap is the only one
        if narrow:
            # The effect of a unit on all sums, in norms of its update.
            whole = bundle.updates.noise_multiplier / bundle.noise_multiplier
            spread = _SPREAD * whole * self.units_in_sum / math.sqrt(largest_stretch(size))
            caps += [(spread, True)]
        for cap, rotated in caps:
            if noise_scale := self._noise_scale(bundle, size, bits, cap, rotated):
                return self._share(bundle, size, noise_scale, cap, rotated)
        return self._cut(bundle, size, bits) if narrow else None

    def _noise_scale(
        self, bundle: GaussianBundle, size: int, bits: int, cap: float, rotated: bool
    ) -> float:
        """Return the largest scale at which sums fit `bits` bits; 0 if there is none."""

        def fits(noise_scale: float) -> bool:
            share = self._share(bundle, size, noise_scale, cap, rotated)
            return share.fits(self.noise.cohort, bits)

        low, high = LEAST_NOISE_SCALE, 2.0 ** (bits - 1)
        if not fits(low):
            return 0.0
        # Both the noise and the values, in steps, grow with the scale.
        while low < (middle := (low + high) / 2.0) < high:
            if fits(middle):
                low = middle
            else:
                high = middle
        return low

    def _cut(self, bundle: GaussianBundle, size: int, bits: int) -> NoiseShare | None:
        """Return the rotated share, cut to the range that words have beside the least noise.

        None if even a sum no longer than its noise would be cut.
        """
        nodes, cap = self.noise.cohort, 1.0
        share = self._share(bundle, size, LEAST_NOISE_SCALE, cap, rotated=True)
        noise = math.sqrt(nodes) * share.noise_scale
        room = (2.0 ** (bits - 1) - 1.0) * _BELOW - WRAPS * noise
        if room < _LEAST_ROOM * noise:
            return None
        cap *= room / nodes / share.segments[0].cap
        return self._share(bundle, size, LEAST_NOISE_SCALE, cap, rotated=True)

    def _share(
        self, bundle: GaussianBundle, size: int, noise_scale: float, cap: float, rotated: bool
    ) -> NoiseShare:
        """Return the share on the grid at which the whole has the bundle's multiplier.

        Each sum has its own grid. With the same noise in steps, its multiplier is the bundle's for
        that sum, and the squared inverses add up the same way.
        """
        share = self._of_steps(bundle, size, noise_scale, cap, rotated, 1.0)
        multiplier = shared_noise_multiplier(noise_scale, share.sensitivity, self.shares)
        steps = multiplier / bundle.noise_multiplier
        return self._of_steps(bundle, size, noise_scale, cap, rotated, steps)

    def _of_steps(
        self,
        bundle: GaussianBundle,
        size: int,
        noise_scale: float,
        cap: float,
        rotated: bool,
        steps: float,
    ) -> NoiseShare:
        """Return the share on grids at which each sum's own noise is `steps` steps."""
        scalars = zip(bundle.scalar_names, bundle.scalar_mechanisms, strict=True)
        segments = [_segment("updates", size, bundle.updates, steps, cap)]
        for name, mechanism in scalars:
            segments.append(_segment(name, 1, mechanism, steps, self.units_in_sum))
        if rotated:  # spread over the updates' coordinates
            segments = [replace(segment, cap=segments[0].cap) for segment in segments]
        return NoiseShare(segments=tuple(segments), noise_scale=noise_scale, rotated=rotated)

    def _too_few(self, bundle: GaussianBundle, size: int) -> str:
        """Return the error for too few bits, with what to write instead."""
        tried = self.bits or 20
        instead = "a larger noise_multiplier"
        for bits in range(tried + 1, MOST_BITS + 1):
            if self._fitting_share(bundle, size, bits, narrow=True) is not None:
                instead = f"secure_sum.bits={bits}"
                break
        return (
            f"{tried} bits are too few for sums of {self.noise.cohort} nodes at noise multiplier "
            f"{bundle.noise_multiplier:.4g}: a share of noise would be below "
            f"{LEAST_NOISE_SCALE:.3g} grid steps; write {instead}"
        )


def _segment(
    name: str, size: int, mechanism: GaussianMechanism, steps: float, cap: float
) -> Segment:
    """Return one sum's segment, on a grid of `steps` in its noise; the cap is in its norms."""
    scale, norm = steps / mechanism.noise_std, mechanism.clipping_norm
    return Segment(name, size, scale, cap * scale * norm, norm)
