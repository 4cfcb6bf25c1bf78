"""Gaussian noise that later releases partly subtract again.

Every release gets fresh noise minus a weighted sum of the last releases' noise, in integers:

    carried_t = floor(sum_j c_j zeta_(t-j) + 1/2), j from 1 to bands - 1
    zeta_t = z_t - carried_t

So the noise of all releases is C^-1 z, rounded; C is lower triangular with c_0 = 1, c_1, ... below
its diagonal. Neighbouring releases' noise mostly has opposite signs: a model that adds them up
keeps less of it than of independent noise.

    >>> stream = BandedStream((4096, 2895, 2486, 2151))
    >>> noise = stream.next(mechanism.law, total.size, rng, index=reservation.index)

Coefficients are integers in units of 2^-12, so float64 holds the weighted sum exactly: its order
does not matter, and one BLAS product computes it. Given all earlier releases, each release is
therefore an integer Gaussian around an integer; no floating-point trace reveals what it hides.

References: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"; Kalinin and
Lampert 2024, "Banded Square Root Matrix Factorization for Differentially Private Model Training".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from fl_dp.arguments import read_fields
from fl_dp.option_errors import require_count

from .discrete_gaussian import TAIL, DiscreteGaussian, discrete_gaussian
from .gaussian import GaussianMechanism
from .grid import NOISE_BITS, IntegerLaw
from .noise_stream import NoiseStream
from .randomness import SecureRandom

COEFFICIENT_ONE = 1 << 12
"""Value of the coefficient 1: coefficients are multiples of 2^-12."""

_EXACT_INTEGERS = 2.0**53
_LEAST_BITS = 20  # below it rounding would cost more than a hair
_ROUNDING = 1.0 + 2.0**-5  # what rounding may add to a grid's noise
_REACH = TAIL + 0.25  # of a draw, in scales: the last buckets end a little over the tail
_DIVISION = 2.0**-40  # more than the rounding of vectors on a grid lengthens them
_NEGLIGIBLE = 2.0**-20
_BLOCK = 1 << 15  # coordinates that pass the processor's caches at a time
_MOST_STEPS = 20_000  # of the inverse: the best coefficients are done after some thousands


def require_coefficients(coefficients: Sequence[int]) -> None:
    """Refuse what can't be the first column of a correlation.

    Raises:
        ValueError: If they are no integers, the first is not 4096 (that is 1), or the last is 0.
    """
    if not coefficients or any(type(coefficient) is not int for coefficient in coefficients):
        raise ValueError(
            f"coefficients must be integers in units of 1/{COEFFICIENT_ONE}, got {coefficients}"
        )
    if coefficients[0] != COEFFICIENT_ONE:
        raise ValueError(
            f"the first coefficient must be {COEFFICIENT_ONE}, which is 1, got {coefficients[0]}"
        )
    if coefficients[-1] == 0:
        raise ValueError(
            "the last coefficient is 0: leave it out, so that no memory is kept for it"
        )


def column_norm(coefficients: Sequence[int]) -> float:
    """The L2 norm of a column of C: the noise's standard deviation per unit of privacy."""
    # Python's integers: exact before the root.
    squares = sum(coefficient * coefficient for coefficient in coefficients)
    return math.sqrt(squares) / COEFFICIENT_ONE


class BandedStream(NoiseStream):
    """Noise that later releases partly subtract: zeta_t = z_t - floor(sum_j c_j zeta_(t-j) + 1/2).

    Privacy: if units take part at least `bands` indices apart, and fresh noise has the scale of
    `BandedGaussianMechanism`, releases are as private as if each participation were one Gaussian
    release of multiplier z, for one unit, zero-out neighbours, against anyone who sees all
    releases. A cut keeps that. Memory holds the noise of the last `bands - 1` releases: an intruder
    there can open as many sums.

    Attributes:
        coefficients: c_0, c_1, ... in units of 2^-12; c_0 = 4096.
        cuts: How often memory was cleared.
    """

    def __init__(self, coefficients: Sequence[int]) -> None:
        """Begin without memory, with coefficients as from `accounting.optimal_coefficients`.

        Raises:
            ValueError: As by `require_coefficients`, or if float64 could not hold the weighted
                sums.
        """
        require_coefficients(coefficients)
        super().__init__()
        self.coefficients = tuple(coefficients)
        self.cuts = 0
        self._largest_scale = 2.0 ** (noise_bits(self.coefficients) + 1) * _ROUNDING
        # A power of two: the weighted sums are as exact as those of the integers.
        self._weights = np.array(self.coefficients[1:], dtype=np.float64) / COEFFICIENT_ONE
        self._memory: NDArray[np.float64] | None = None
        self._law: tuple[float, int] | None = None
        self._since_cut = 0

    @property
    def bands(self) -> int:
        """Number of releases that one draw affects, its own included; 1: independent noise."""
        return len(self.coefficients)

    @property
    def remembered(self) -> int:
        """Number of releases whose noise is in memory; it is as secret as the sums it hides."""
        return min(self._since_cut, self.bands - 1)

    def _forget(self) -> None:
        """Overwrite all earlier noise, and count the cut."""
        if self._memory is not None:
            self._memory.fill(0.0)
        self._memory, self._law, self._since_cut = None, None, 0
        self.cuts += 1

    def _draw(self, law: IntegerLaw, size: int, rng: SecureRandom) -> NDArray[np.int64]:
        if not isinstance(law, DiscreteGaussian) or law.scale > self._largest_scale:
            raise ValueError(
                f"correlated noise is Gaussian, of at most {self._largest_scale:.0f} grid steps, "
                f"got {type(law).__name__} of {law.scale:.0f}"
            )
        if self._law is None:
            self._law = (law.scale, size)
        if self._law != (law.scale, size):
            raise ValueError(
                f"a stream with memory has one law and one size, got scale {law.scale} and "
                f"{size} coordinates after {self._law[0]} and {self._law[1]}: cut it first"
            )
        fresh = law.sample(size, rng)
        if self.bands == 1:
            self._since_cut += 1
            return fresh
        if self._memory is None:
            self._memory = np.zeros((self.bands - 1, size))
        rows = self.bands - 1
        # The memory is a ring: its rows stay where they are, and the weights turn.
        weights = self._weights[(self._since_cut - 1 - np.arange(rows)) % rows]
        row: NDArray[np.float64] = self._memory[self._since_cut % rows]
        for start in range(0, size, _BLOCK):
            block = slice(start, start + _BLOCK)
            fresh[block] -= _carried(weights, self._memory[:, block])
            row[block] = fresh[block]
        self._since_cut += 1
        return fresh


def _carried(weights: NDArray[np.float64], memory: NDArray[np.float64]) -> NDArray[np.int64]:
    """What the next release subtracts; known before anybody is asked."""
    carried: NDArray[np.float64] = weights @ memory
    carried += 0.5
    return np.floor(carried, out=carried).astype(np.int64)


@lru_cache(maxsize=64)
def noise_bits(coefficients: tuple[int, ...]) -> int:
    """The n at which fresh noise may span 2^n to 2^(n+1) grid steps: 30, or less if need be.

    Float64 has to hold every weighted sum of earlier noise, in units of 2^-12 steps.

    Raises:
        ValueError: If large sums would need too coarse a grid.
    """
    spread = _spread(coefficients)
    for bits in range(NOISE_BITS, _LEAST_BITS - 1, -1):
        one_draw = _REACH * 2.0 ** (bits + 1) * _ROUNDING + 1.0  # rounding: up to one half
        # One more: rounding adds one half to the sum, after it was scaled back.
        if COEFFICIENT_ONE * (spread * one_draw + 1.0) < _EXACT_INTEGERS:
            return bits
    raise ValueError(
        f"these {len(coefficients)} coefficients lead to sums of earlier noise {spread:.3g} times "
        "as large as one draw, too large for float64 to hold exactly: use fewer bands, or the "
        "coefficients of optimal_coefficients"
    )


def _spread(coefficients: tuple[int, ...]) -> float:
    """The largest weighted sum, divided by the largest draw."""
    # A release's noise is at most |1, r_1, r_2, ..|_1 times one draw; C^-1 has the r_i in a column.
    return (total_weight(coefficients) - 1.0) * inverse_norms(coefficients)[0]


def total_weight(coefficients: Sequence[int]) -> float:
    """The L1 norm of a column of C, which bounds C's norm."""
    return sum(abs(coefficient) for coefficient in coefficients) / COEFFICIENT_ONE


@lru_cache(maxsize=64)
def inverse_norms(coefficients: tuple[int, ...]) -> tuple[float, float]:
    """The L1 and L2 norms of the first column of C^-1; infinite if it does not end."""
    weights = np.array(coefficients[1:], dtype=np.float64) / COEFFICIENT_ONE
    if not weights.size:
        return 1.0, 1.0
    sums = total_weight(coefficients) - 1.0
    total, squares = 1.0, 1.0
    newest_first = np.zeros(weights.size)
    newest_first[0] = 1.0
    for _ in range(_MOST_STEPS):
        entry = -float(weights @ newest_first)
        newest_first[1:] = newest_first[:-1]
        newest_first[0] = entry
        total += abs(entry)
        squares += entry * entry
        # The rest of the column is at most this product, relative to the total.
        if float(np.abs(newest_first).sum()) * sums < _NEGLIGIBLE:
            return total / (1.0 - _NEGLIGIBLE), math.sqrt(squares) / (1.0 - _NEGLIGIBLE)
        if not total < _EXACT_INTEGERS:
            break
    return math.inf, math.inf


@dataclass(frozen=True, kw_only=True)
class BandedGaussianMechanism(GaussianMechanism):
    """The Gaussian mechanism whose noise comes from a `BandedStream`.

    `law` is the fresh noise's, wider than a lone release's: a participation moves as many releases
    as there are bands, by the norm of a column of C, and rounding by a hair more.

    Privacy: as `BandedStream` says; a release with other noise is not private.

    Attributes:
        noise_multiplier: Noise multiplier z of one participation. Noise on the sum is larger by
            the column's norm.
        coefficients: The stream's.
        size: Number of coordinates of the sum.
    """

    coefficients: tuple[int, ...]
    size: int

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range.
        """
        read_fields(self)
        require_coefficients(self.coefficients)
        require_count(size=self.size)
        super().__post_init__()

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the fresh noise without rounding's part; it sets the grid."""
        return self.noise_multiplier * column_norm(self.coefficients) * self.clipping_norm

    @property
    def grid(self) -> float:
        """The grid step: a power of two of the clipping norm.

        A stream has one law in grid steps. Where the norm follows a quantile, the step follows the
        norm, and carried noise is in units of the step.
        """
        per_norm = self.noise_multiplier * column_norm(self.coefficients)
        bits = noise_bits(self.coefficients)
        return self.clipping_norm * 2.0 ** (math.floor(math.log2(per_norm)) - bits)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the fresh noise on each coordinate of the sum."""
        return self.law.scale * self.grid

    @cached_property
    def law(self) -> DiscreteGaussian:
        """The law of the fresh noise on each coordinate of the sum, in grid steps."""
        # Dividing by the step rounds, but for a power of two: one law must do for all norms.
        return discrete_gaussian(
            banded_noise_scale(
                self.noise_multiplier,
                self.clipping_norm / self.grid * (1.0 + _DIVISION),
                coefficients=self.coefficients,
                size=self.size,
            )
        )


def banded_noise_scale(
    noise_multiplier: float, clipping_steps: float, *, coefficients: Sequence[int], size: int
) -> float:
    """The fresh noise's scale, in grid steps, at which a participation costs one Gaussian event.

    Given the releases so far, one participation moves the centres by its column of C times the
    update, and by less than one step per coordinate for rounding, in each of the next releases
    within the bands: together `|c| K + sqrt((bands - 1) size)`. K is `clipping_steps`, the bound
    on one unit's vector in grid steps; `noise_multiplier` is the event's.
    """
    moved = column_norm(coefficients) * clipping_steps
    return noise_multiplier * (moved + math.sqrt((len(coefficients) - 1) * size))
