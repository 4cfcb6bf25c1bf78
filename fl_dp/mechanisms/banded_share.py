"""A node's share of noise with memory: later sums take a part of earlier shares away again.

    >>> share = BandedShare(segments=(updates,), noise_scale=612.0, coefficients=(4096, 2895, 2486))
    >>> memory = CarriedNoise.empty(bands=3, size=10)
    >>> share.encode([sum_of_clipped_updates], rng, memory=memory, index=0)

A node remembers by how much each of its own answers deviated from its values, and draws the next
answer around its values minus a weighted sum of those deviations:

    y_t ~ N_Z(x_t - sum_j c_j zeta_(t-j), noise_scale^2),   zeta_t = y_t - x_t

So the opened sums carry C^-1 Z, as those of a server with a `BandedStream` do, and nobody ever
holds Z. Weights go by the distance of indices, never by the rank in memory, and what is missing in
memory counts as zero: forgetting is always free.

References: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"; Bienstock, Kumar
and Polychroniadou 2025, "DMM: Distributed Matrix Mechanism for Differentially-Private Federated
Learning", for cohorts that change.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .banded_stream import (
    COEFFICIENT_ONE,
    column_norm,
    inverse_norms,
    require_coefficients,
    total_weight,
)
from .discrete_gaussian import TAIL
from .noise_share import LEAST_NOISE_SCALE, NoiseShare
from .randomness import SecureRandom

_EMPTY = -1
_STRETCH = 1 << 15  # of the coordinates: their sums stay in a processor's cache
_EXACT_INTEGERS = 2.0**53
_FINEST_BITS = 20
_REACH = TAIL + 0.25  # of a draw, in scales: the last buckets end a little over the tail
_MOST_VARIANCE = 2.0  # of a remembered deviation, over that of a memory that lacks nothing
_SPREAD = 1.5  # above the root of that
_USUAL_SPREAD = 1.1  # memories that lack something at random stayed within 1.01


class CarriedNoise:
    """Deviations of a node's own last answers, by index: the noise that it still takes away.

    A secret: who reads it opens this node's share of as many sums. It is never pickled.

    Attributes:
        indices: Of the rows, -1 where there is none; int64, shape `(bands - 1,)`.
        covariance: Of the rows, over the square of the noise scale; float64, a square. Public: it
            follows from what was remembered and forgotten.
        rows: Deviations in grid steps, 0 where there are none; float64, `(bands - 1, size)`.
    """

    def __init__(
        self,
        indices: NDArray[np.int64],
        covariance: NDArray[np.float64],
        rows: NDArray[np.float64],
    ) -> None:
        """Use arrays that may lie in a file; they are changed in place."""
        self.indices, self.covariance, self.rows = indices, covariance, rows

    @classmethod
    def empty(cls, *, bands: int, size: int) -> Self:
        """Return a memory of nothing.

        Args:
            bands: Of the coefficients, at least 2.
            size: Coordinates of the segment that has memory.
        """
        kept = bands - 1
        return cls(np.full(kept, _EMPTY, np.int64), np.zeros((kept, kept)), np.zeros((kept, size)))

    def __repr__(self) -> str:
        """Show the shape alone."""
        return f"CarriedNoise{self.rows.shape}"

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied to where it would last."""
        raise TypeError("remembered noise is secret, and stays where it is")

    @property
    def remembered(self) -> tuple[int, ...]:
        """Indices that are remembered, ascending."""
        return tuple(sorted(each for each in self.indices.tolist() if each != _EMPTY))

    def forget(self, indices: Collection[int] | None = None) -> None:
        """Overwrite what is remembered of some indices; None: of all. Always free of charge."""
        gone = self.indices != _EMPTY
        if indices is not None:
            gone &= np.isin(self.indices, list(indices))
        for slot in np.flatnonzero(gone):
            self.rows[slot] = 0.0
        self._clear(gone)

    def weights(
        self, index: int, coefficients: NDArray[np.float64], most_variance: float
    ) -> tuple[NDArray[np.float64], float]:
        """Return what each row counts at an index, and the variance of the deviation then.

        Where that would exceed a bound, everything is forgotten: it depends on no noise.

        Args:
            index: Of the sum. Rows of it or later ones do not count.
            coefficients: c_0, c_1, ...
            most_variance: In squares of the noise scale.
        """
        bands = len(coefficients)
        self.forget([each for each in self.remembered if each <= index - bands])
        lags = index - self.indices
        used = (self.indices != _EMPTY) & (lags > 0)
        found = np.where(used, coefficients[np.where(used, lags, 0)], 0.0)
        variance = 1.0 + float(found @ self.covariance @ found)
        if not variance <= most_variance:
            self.forget()
            return np.zeros_like(found), 1.0
        return found, variance

    def carried(
        self, weights: NDArray[np.float64], part: slice = slice(None)
    ) -> NDArray[np.float64]:
        """Return the weighted sum of the rows; exact, whatever the order of the summation.

        Args:
            weights: What each row counts.
            part: Of the coordinates.
        """
        rows = self.rows[:, part]
        total, product = np.zeros(rows.shape[1]), np.empty(_STRETCH)
        used = np.flatnonzero(weights)
        # Not by a BLAS, whose threads wait for each other where other work has the processors.
        for start in range(0, total.size, _STRETCH):
            stretch = slice(start, start + _STRETCH)
            into = total[stretch]
            for slot in used:
                into += np.multiply(rows[slot, stretch], weights[slot], out=product[: into.size])
        return total

    @contextmanager
    def remembering(
        self, index: int, weights: NDArray[np.float64], variance: float
    ) -> Iterator[NDArray[np.float64]]:
        """Give the row for an answer's deviation, from its values, in grid steps.

        What the row held counts as forgotten from then on, but is there to be read until it is
        written over. Where the block fails, nothing is remembered in its place.

        Args:
            index: Of the sum. Where a later one is remembered, nothing is kept of this one.
            weights: With which rows count in it.
            variance: The deviation's own, as `weights` found it.
        """
        if index <= self.indices.max():
            yield np.empty(self.rows.shape[1])
            return
        slot = index % len(self.indices)
        shared = -(weights @ self.covariance)
        self._clear(slot)
        try:
            yield self.rows[slot]
        except BaseException:
            self.rows[slot] = 0.0  # half of a row is no deviation
            raise
        shared[slot] = variance
        self.covariance[slot, :] = self.covariance[:, slot] = shared
        self.indices[slot] = index

    def _clear(self, slots: int | NDArray[np.bool_]) -> None:
        self.indices[slots] = _EMPTY
        self.covariance[slots, :] = 0.0
        self.covariance[:, slots] = 0.0


@dataclass(frozen=True, kw_only=True)
class BandedShare(NoiseShare):
    """A `NoiseShare` whose first segment has memory; the noise of all others is independent.

    Privacy: none that one share promises alone. For one privacy unit that takes part at indices at
    least `bands` apart, zero-out neighbours, all opened sums together are as private as one
    Gaussian of `shared_noise_multiplier(noise_scale, sensitivity, h, total_weight)` for each
    participation, against who knows all but `h` shares of each sum: whoever was late or absent at
    other indices, and whatever nodes have forgotten.

    Attributes:
        coefficients: The first column of C, integers in units of 2^-12, the first 4096.
        segments: See `GridShare`.
        noise_scale: Of the node's fresh noise; at least twice `total_weight`.
    """

    coefficients: tuple[int, ...]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If the coefficients are no such column or have no memory, there is too
                little noise, or float64 could not hold the weighted sums.
        """
        require_coefficients(self.coefficients)
        if len(self.coefficients) < 2:
            raise ValueError("noise with memory has at least 2 coefficients: use NoiseShare")
        super().__post_init__()
        if self.fine_bits < 0:
            raise ValueError(
                f"these {len(self.coefficients)} coefficients lead to sums of earlier noise that "
                "float64 can't hold: use fewer bands"
            )

    @property
    def bands(self) -> int:
        """How many sums one draw reaches, its own included."""
        return len(self.coefficients)

    @property
    def least_noise_scale(self) -> float:
        """The smallest scale at which shares with memory add up to a Gaussian, hidden ones too."""
        return LEAST_NOISE_SCALE * self.total_weight

    @cached_property
    def total_weight(self) -> float:
        """The L1 norm of a column of C."""
        return total_weight(self.coefficients)

    @property
    def sensitivity(self) -> float:
        """L2 distance, in grid steps, by which one participation moves all sums, through C."""
        updates, *others = self.segments
        moved = updates.scale * updates.clipping_norm * self.rounded + self._apart
        each = (segment.scale * segment.clipping_norm * self.rounded for segment in others)
        return math.hypot(column_norm(self.coefficients) * moved, *each)

    @property
    def stepped(self) -> float:
        """What of it is the same for values of any size: two neighbours' may be rounded apart."""
        return column_norm(self.coefficients) * self._apart

    @property
    def _apart(self) -> float:
        return 2.0**-self.fine_bits * math.sqrt(self.segments[0].size)

    @property
    def turning(self) -> int:
        """Coordinates that may be rotated: those that have memory, and no others with them."""
        return self.segments[0].size

    @property
    def largest_deviation(self) -> float:
        """Standard deviation of a node's noise in one sum, in grid steps."""
        return self.noise_scale * _USUAL_SPREAD * self._inverse_norm

    @cached_property
    def fine_bits(self) -> int:
        """Values lie on multiples of 2^-fine_bits steps, so that weighted sums are exact."""
        largest = (
            _REACH * self.noise_scale * (1.0 + _SPREAD * self.total_weight * self._inverse_norm)
        )
        room = _EXACT_INTEGERS / COEFFICIENT_ONE / (largest + self.segments[0].cap)
        return min(_FINEST_BITS, math.floor(math.log2(room)) if room > 0.0 else -1)

    @property
    def _inverse_norm(self) -> float:
        return inverse_norms(self.coefficients)[1]

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        return np.array(self.coefficients, dtype=np.float64) / COEFFICIENT_ONE

    def encode(
        self,
        values: Sequence[ArrayLike],
        rng: SecureRandom,
        memory: CarriedNoise | None = None,
        index: int | None = None,
    ) -> NDArray[np.int64]:
        """Return a node's values with its share of the noise, and remember by how much they differ.

        Args:
            values: As of `placed`.
            rng: Where the fresh noise comes from: never a key and the index, so that no answer is
                ever drawn twice.
            memory: Of the node in this training; changed.
            index: Of the sum: above all that are remembered.

        Returns:
            Integers in grid steps, shape `(size,)`; secret until they are masked.

        Raises:
            ValueError: If memory or index is missing, there is not one array of the right size a
                segment, an entry is NaN, or the noise is beyond what sums can hold; then nothing is
                remembered.
        """
        if memory is None or index is None:
            raise ValueError("noise with memory needs the node's memory and the sum's index")
        centres = self.placed(values)
        steps = centres.view(np.int64)  # each part is read before it is written over
        weights, variance = memory.weights(
            index, self._weights, _MOST_VARIANCE * self._inverse_norm**2
        )
        fine = 2.0**self.fine_bits
        reach = _REACH * self.noise_scale * math.sqrt(variance)
        with memory.remembering(index, weights, variance) as row:

            def answer(part: slice, stream: SecureRandom) -> None:
                around, deviation = centres[part], row[part]
                updates = around[: deviation.size]
                updates *= fine
                np.rint(updates, out=updates)
                updates *= 1.0 / fine
                exact = updates.copy()
                updates -= memory.carried(weights, slice(part.start, part.start + exact.size))
                drawn = self._law.sample_around(around, stream)
                np.subtract(drawn[: exact.size], exact, out=exact)
                # "not <=" instead of ">": a NaN has to fail, too.
                if exact.size and not max(exact.max(), -exact.min()) <= reach:
                    raise ValueError(
                        "the noise is larger than sums can hold: this answer stays away"
                    )
                deviation[:] = exact
                steps[part] = drawn

            # In one pass: what is read from memory is far more than what a processor's cache holds.
            rng.in_parts(centres.size, answer)
        return steps
