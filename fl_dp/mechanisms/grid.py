"""Sums on a fixed integer grid, the common part of the Gaussian and the Laplace mechanism.

Floating-point noise shows through its spacing: a single coordinate can give away which of two
values it hides (Mironov 2012; Haney et al. 2022, "Precision-based attacks and interval refining").
So every summand is an integer multiple of one grid step, chosen from the configuration and never
from data. The noise is an integer, too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_dp.arguments import Arguments
from fl_dp.option_errors import OptionError, require_positive

from .clipping import Norm, clip_by_norm
from .mechanism_events import MechanismEvent
from .randomness import PART, SecureRandom
from .threads import in_blocks

NOISE_BITS = 30
"""The noise spans 2^30 to 2^31 grid steps."""

_EXACT_INTEGERS = 2.0**53
_MIN_SCALE, _MAX_SCALE = 0.05, 2.0**34  # of a law, in grid steps


class IntegerLaw(ABC):
    """A law on the integers, drawn by proposing values and accepting some."""

    def __init__(self, scale: float) -> None:
        """Check the scale, in grid steps.

        Raises:
            ValueError: If `scale` is outside [0.05, 2^34].
        """
        if not _MIN_SCALE <= scale <= _MAX_SCALE:
            raise ValueError(f"scale must lie in [{_MIN_SCALE}, {_MAX_SCALE:.0f}], got {scale}")
        self.scale = scale

    def sample(self, count: int, rng: SecureRandom) -> NDArray[np.int64]:
        """`count` independent draws, shape `(count,)`."""
        out = np.empty(count, dtype=np.int64)
        for start in range(0, count, PART):
            self.fill(out[start : start + PART], rng)
        return out

    def fill(self, out: NDArray[np.int64], rng: SecureRandom) -> None:
        """Fill `out`, of at most `PART` places, with independent draws."""
        rejected = self._propose(out, rng)
        while rejected.size:
            # An eighth more than needed: a second round of a few draws would cost as much.
            spare = np.empty(rejected.size + rejected.size // 8 + 8, dtype=np.int64)
            accepted = np.delete(spare, self._propose(spare, rng))[: rejected.size]
            out[rejected[: accepted.size]] = accepted
            rejected = rejected[accepted.size :]

    @abstractmethod
    def _propose(self, out: NDArray[np.int64], rng: SecureRandom) -> NDArray[np.intp]:
        """Fill `out` with proposals and return the rejected ones' indices, ascending."""


@dataclass(frozen=True, kw_only=True)
class GridMechanism(Arguments, ABC):
    """Release a sum of clipped vectors with integer noise on a public grid.

    Encoding rounds towards zero: it never lengthens a clipped vector in any norm.

    Attributes:
        noise_multiplier: Scale of the noise on the *sum*, divided by `clipping_norm`.
        clipping_norm: Bound on each vector, the sensitivity of the sum.
    """

    noise_multiplier: float
    clipping_norm: float

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is not positive and finite.
        """
        super().__post_init__()
        require_positive(
            noise_multiplier=self.noise_multiplier,
            clipping_norm=self.clipping_norm,
            noise_scale=self.noise_scale,
        )
        if self.max_units < 1:
            raise OptionError(
                f"noise_multiplier={self.noise_multiplier} is so small that float64 can't "
                "hold a vector on the noise's grid: use at least "
                f"{least_noise_multiplier(1, self.clipping_norm)}",
                option="noise_multiplier",
            )

    @property
    @abstractmethod
    def clipping(self) -> Norm:
        """The norm that `clipping_norm` bounds."""

    @abstractmethod
    def event(self) -> MechanismEvent:
        """The event that one release over all units is charged as; `law` must match it."""

    @property
    @abstractmethod
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum."""

    @property
    @abstractmethod
    def law(self) -> IntegerLaw:
        """The law of the noise on each coordinate of the sum, in grid steps."""

    @property
    def noise_scale(self) -> float:
        """Scale parameter of the noise on each coordinate of the sum."""
        return self.noise_multiplier * self.clipping_norm

    @property
    def grid(self) -> float:
        """The grid step, a power of two between 2^-31 and 2^-30 noise scales."""
        return 2.0 ** (math.floor(math.log2(self.noise_scale)) - NOISE_BITS)

    @property
    def max_units(self) -> int:
        """Most vectors that can be summed before float64 stops holding every integer."""
        # An encoded coordinate is at most clipping_norm / grid steps; float64 is exact to 2^53.
        return int(min(_EXACT_INTEGERS * self.grid / self.clipping_norm, _EXACT_INTEGERS))

    def encode(self, update: ArrayLike) -> NDArray[np.float64]:
        """Clip one unit's vector, as by `clip_by_norm`, and round it to the grid.

        Returns:
            Integer-valued float64 of the same shape, in grid steps. Sums of up to `max_units` are
            exact, in any order.
        """
        steps = clip_by_norm(update, self.clipping_norm, self.clipping)
        steps *= 1.0 / self.grid  # exact: the grid is a power of two
        return np.trunc(steps, out=steps)

    def noise(self, size: int, rng: SecureRandom) -> NDArray[np.int64]:
        """Draw fresh noise for one release of a sum of `size` coordinates.

        Returns:
            Independent draws of `law`, in grid steps, shape `(size,)`. They are secret, also after
            the release: their reader can subtract them again.
        """
        return self.law.sample(size, rng)

    def release(
        self,
        total: NDArray[np.float64],
        noise: NDArray[np.int64],
        *,
        divided_by: float = 1.0,
        out: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Add noise that was drawn for this sum alone.

        Privacy: the class's, if `noise` is from `noise`, or from a `NoiseStream` that was charged
        for, and is used for no other release: the difference of two releases with the same noise
        has none.

        Args:
            total: Sum of `encode`d vectors, in grid steps.
            noise: Integers in grid steps, one per coordinate, shape `(total.size,)`.
            divided_by: Divisor of the private sum.
            out: Memory of the sum's shape: `noise.view(np.float64)` leaves no noise behind.

        Returns:
            The private sum in the updates' units, float64; every entry is a multiple of `grid`
            unless divided.

        Raises:
            ValueError: If the noise is not one integer per coordinate of the sum.
        """
        drawn = np.asarray(noise)
        # Broadcasting would hide all coordinates behind the noise of one; fractions leave the grid.
        if drawn.shape != (total.size,) or not np.issubdtype(drawn.dtype, np.integer):
            raise ValueError(
                f"a sum of {total.size} coordinates is released with as many integers of noise, "
                f"got {drawn.dtype} of shape {drawn.shape}: draw them with noise(total.size, rng)"
            )
        released = np.empty(total.shape, dtype=np.float64) if out is None else out
        exact, flat = np.asarray(total).reshape(-1), released.reshape(-1)
        divisor = divided_by / self.grid  # exact: the grid is a power of two

        def add(part: slice) -> None:
            # One conversion: NumPy's mixed addition is slower. The sum takes the noise's place.
            block = drawn[part].astype(np.float64)
            block += exact[part]
            np.divide(block, divisor, out=flat[part])

        in_blocks(total.size, add)
        return released

    def privatize(self, update: ArrayLike, rng: SecureRandom) -> NDArray[np.float64]:
        """Clip one unit's vector and release it alone (local privacy), in its units and shape."""
        steps = self.encode(update)
        return self.release(steps, self.noise(steps.size, rng))


def least_noise_multiplier(units: int, clipping_norm: float) -> float:
    """The least noise multiplier, rounded up to 3 digits, at which `units` vectors sum exactly."""
    # 2^53 grid / clipping_norm >= units, solved for the exponent of the grid.
    smallest_grid = math.ceil(math.log2(units * clipping_norm / _EXACT_INTEGERS))
    exact = 2.0 ** (smallest_grid + NOISE_BITS) / clipping_norm
    digits = 2 - math.floor(math.log10(exact))
    # One step further where rounding would fall short of it.
    return float(f"{(math.floor(exact * 10.0**digits) + 1) * 10.0**-digits:.2e}")
