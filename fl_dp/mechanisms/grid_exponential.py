"""The exponential mechanism over a public grid, coordinate by coordinate: a local noise scheme.

A client's vector is clipped, and one of a few public points replaces each coordinate, nearer ones
being likelier. Only its probability distinguishes one vector's message from another's: it has no
low-order bits to look at, and a coordinate fits into `log2(levels)` bits.

    >>> mechanism = GridExponentialMechanism(noise_multiplier=1.0, clipping_norm=1.0)
    >>> sent = mechanism.privatize(update, SecureRandom())
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_dp.arguments import Arguments
from fl_dp.option_errors import OptionError, require_positive

from .clipping import Norm, clip_by_norm
from .laplace import DiscreteLaplace
from .mechanism_events import ZcdpEvent
from .randomness import CHUNK, PART, SecureRandom
from .threads import WorkArrays

_MAX_LEVELS = 1 << 20
_SMALLEST_STEP = 2.0**-16  # log-odds between neighbours: below it, rounding would show
_LARGEST_STEP = 0.5  # above it, a coordinate is lost between two points: the gain is x / sinh(x)
_PIECES = 1024  # of the grid, where it has fewer cells: their table stays in the fastest cache
_work, _laplace_work = WorkArrays(4, CHUNK + 2), WorkArrays(1, PART)


@dataclass(frozen=True, kw_only=True)
class GridExponentialMechanism(Arguments):
    """Replace each coordinate `x` by a grid point `g`, `P[g]` proportional to `exp(-rate |x - g|)`.

    Privacy: one vector's release is `1 / (2 noise_multiplier^2)`-zCDP, as that of a Gaussian
    mechanism of this noise multiplier, for the unit that sends it, zero-out neighbours (its vector
    becomes zero), against anyone who sees the message, the server included.

    Proof: replacing a coordinate `x` by 0 moves each utility `-|x - g|` by at most `|x|` either
    way, so the two laws' log-ratio has a range of at most `2 rate |x|`. A draw of that bounded
    range is `(2 rate |x|)^2 / 8 = rate^2 x^2 / 2`-zCDP (Dong, Durfee and Rogers 2020). Coordinates
    are drawn independently, so these add up to `rate^2 ||x||_2^2 / 2`, whatever the dimension;
    `||x||_2 <= clipping_norm` and `rate = 1 / (noise_multiplier clipping_norm)`. Clamping a
    coordinate into the grid's range only shortens the vector.

    Drawn points are divided by the public `gain`: small coordinates are then right on average,
    large ones are pulled towards zero, as the grid ends.

    Attributes:
        noise_multiplier: `1 / (rate * clipping_norm)`; corresponds to the Gaussian's.
        clipping_norm: L2 bound on the vector, over all coordinates jointly.
        levels: Number of equally spaced grid points, at least 2.
        half_width: The grid spans `[-half_width, half_width]`, in the vector's units; None:
            `clipping_norm`.
    """

    noise_multiplier: float
    clipping_norm: float
    levels: int = 65
    half_width: float | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a number is not positive and finite, `levels` is not in [2, 2^20], or
                the noise is so large that float64 can't distinguish neighbouring points'
                probabilities, or so small that it disappears between them.
        """
        super().__post_init__()
        require_positive(
            noise_multiplier=self.noise_multiplier,
            clipping_norm=self.clipping_norm,
            half_width=self._reach,
            noise_scale=self.noise_multiplier * self.clipping_norm,
        )
        if not 2 <= self.levels <= _MAX_LEVELS:
            raise OptionError(
                f"levels must lie in [2, {_MAX_LEVELS}], got {self.levels}", option="levels"
            )
        setting = (
            f"{self.levels} levels over a half_width of {self._reach} at "
            f"noise_multiplier={self.noise_multiplier}"
        )
        if self._step < _SMALLEST_STEP:
            raise OptionError(
                f"{setting} make neighbouring points equally likely to within rounding: write "
                "fewer levels or a larger half_width",
                option="levels",
            )
        if self._step > _LARGEST_STEP and self.levels > 2:
            raise OptionError(
                f"{setting} are too coarse a grid for so little noise: write at least "
                f"levels={math.ceil(2.0 * self.rate * self._reach / _LARGEST_STEP) + 1}",
                option="levels",
            )
        require_positive(rate=self.rate, step=self._step)

    @property
    def clipping(self) -> Norm:
        """The norm that `clipping_norm` bounds: always L2."""
        return Norm.L2

    @property
    def rate(self) -> float:
        """Fall of log-probabilities per unit of distance, `1 / (multiplier * norm)`."""
        return 1.0 / (self.noise_multiplier * self.clipping_norm)

    @property
    def zcdp_rho(self) -> float:
        """One release's zCDP, `1 / (2 noise_multiplier^2)`."""
        return 0.5 / self.noise_multiplier**2

    def event(self) -> ZcdpEvent:
        """The event that one vector's release is charged as."""
        return ZcdpEvent(rho=self.zcdp_rho)

    @property
    def points(self) -> NDArray[np.float64]:
        """The grid, ascending, in the vector's units, shape `(levels,)`."""
        return self._offsets * self._spacing

    @cached_property
    def gain(self) -> float:
        """Slope, at zero, of the mean drawn point as a function of the coordinate.

        `dE[g|x]/dx = -rate Cov(g, sign(x - g))`, at 0 `rate E|g|`. With an even number of levels,
        0 lies between two points and nothing has a kink there. With an odd number it is a point,
        and the term whose sign jumps has the factor `g = 0`.
        """
        return self.rate * float(self._law_at_zero @ np.abs(self.points))

    @cached_property
    def noise_std(self) -> float:
        """Standard deviation of the message for a coordinate that is zero."""
        return math.sqrt(float(self._law_at_zero @ self.points**2)) / self.gain

    def log_probabilities(self, coordinate: float) -> NDArray[np.float64]:
        """Each grid point's log-probability for one coordinate, shape `(levels,)`.

        These are not private: they are for tests and for explaining the mechanism.
        """
        clamped = min(max(coordinate, -self._reach), self._reach)
        logits = -self.rate * np.abs(clamped - self.points)
        logits -= logits.max()
        log_probabilities: NDArray[np.float64] = logits - np.log(np.exp(logits).sum())
        return log_probabilities

    def privatize(self, update: ArrayLike, rng: SecureRandom) -> NDArray[np.float64]:
        """Clip one unit's vector, as by `clip_by_norm`, and draw a grid point per coordinate.

        Returns:
            One of `points / gain` per coordinate, float64 in the update's units and shape.
        """
        clipped = clip_by_norm(update, self.clipping_norm)
        flat = clipped.reshape(-1)  # a copy of some arrays: then that is what is sent
        sent = self.points / self.gain
        sent = np.concatenate([sent, sent[:0:-1]])  # see `_draw`
        for start in range(0, flat.size, PART):
            part = flat[start : start + PART]
            (memory,) = _laplace_work.first(part.size)
            laplace = memory.view(np.int64)
            _geometric(self._step).fill(laplace, rng)
            for begin in range(0, part.size, CHUNK):
                chunk = slice(begin, begin + CHUNK)
                # Drawn points take their coordinates' places.
                drawn = self._draw(part[chunk], laplace[chunk], rng)
                sent.take(drawn, out=part[chunk], mode="clip")
        return flat.reshape(clipped.shape)

    def _draw(
        self, coordinates: NDArray[np.float64], laplace: NDArray[np.int64], rng: SecureRandom
    ) -> NDArray[np.intp]:
        """A grid point for each coordinate, given as many draws of `_geometric`.

        From the grid point just left of a coordinate, a geometric series runs to the left end;
        from the one just right, another runs to the right end. A coin weighted by their masses
        picks the side. Position `k` of a series of `n` has probability proportional to
        `exp(-step k)`: it is `k modulo n` of an endless geometric.

        Returns:
            A left series' point by its index, the `k`-th point from the right end of a right
            series as `levels + k`; work memory, until the next call.
        """
        count, last = coordinates.size, float(self.levels - 1)
        room, *others = _work.first(count + 2)  # the cipher needs room for two words more
        position, head, spare = (other[:count] for other in others)
        a_cell = 2.0**self._piece_bits
        np.divide(coordinates, self._spacing / a_cell, out=position)
        position += 0.5 * last * a_cell
        np.clip(position, 0.0, math.nextafter(last * a_cell, 0.0), out=position)
        pieces = spare.view(np.intp)
        pieces[...] = position
        words = rng.words((count + 1) // 2, room=room.view(np.uint64)).view(np.uint32)[:count]
        beyond, (below, most_open) = head.view(np.uint32)[:count], self._sure_words
        below.take(pieces, out=beyond, mode="clip")
        goes_right = np.less(words, beyond)
        np.subtract(words, beyond, out=beyond)
        open_draws = np.flatnonzero(np.less_equal(beyond, most_open))
        if open_draws.size:
            goes_right[open_draws] = self._goes_right(
                position[open_draws], pieces[open_draws], words[open_draws], rng
            )
        # Halves below 2^52: every step from here on is exact. The arrays are used again under other
        # names, as they are all the cache holds.
        drawn, series, steps = room[:count], head, position
        drawn[...] = goes_right
        drawn *= last + 1.0
        np.add(np.right_shift(pieces, self._piece_bits, out=pieces), 1.0, out=series)
        series -= drawn
        np.abs(series, out=series)
        # 0, 1, 2, ... of the symmetric law and -1, -2, -3, ... fall alike: both are geometric.
        np.add(laplace, 0.5, out=steps)  # the geometric and a half, which the last line drops
        np.abs(steps, out=steps)
        rounds = np.divide(steps, series, out=spare)
        np.floor(rounds, out=rounds)
        rounds *= series
        steps -= rounds
        series -= steps
        drawn += series
        indices = spare.view(np.intp)
        indices[...] = drawn
        return indices

    def _goes_right(
        self,
        position: NDArray[np.float64],
        pieces: NDArray[np.intp],
        words: NDArray[np.uint32],
        rng: SecureRandom,
    ) -> NDArray[np.bool_]:
        """Whether each word, of 2^32 and with fresh bits after it, is below the right probability.

        A coordinate's own: the mass of its right series, of the two series' mass.
        """
        fine = words.astype(np.uint64) << np.uint64(32) | rng.words(words.size) >> np.uint64(32)
        log_odds = self._right_log_odds[pieces] + self._rise * (position - pieces)
        right_likelier = log_odds >= 0.0
        # The rarer side is the one whose probability has to be right however small it is.
        rarer = np.exp(-np.abs(log_odds))
        rarer /= rarer + 1.0
        return rng.coins(rarer, np.where(right_likelier, ~fine, fine)) ^ right_likelier

    @property
    def _reach(self) -> float:
        return self.clipping_norm if self.half_width is None else self.half_width

    @property
    def _spacing(self) -> float:
        """Distance between neighbouring points, in the vector's units."""
        return 2.0 * self._reach / (self.levels - 1)

    @property
    def _step(self) -> float:
        """Log-odds between neighbouring points on the same side of a coordinate."""
        return self.rate * self._spacing

    @property
    def _offsets(self) -> NDArray[np.float64]:
        """The grid in spacings from its middle: exact and symmetric."""
        return np.arange(self.levels, dtype=np.float64) - 0.5 * (self.levels - 1)

    @cached_property
    def _law_at_zero(self) -> NDArray[np.float64]:
        law: NDArray[np.float64] = np.exp(self.log_probabilities(0.0))
        return law

    @property
    def _piece_bits(self) -> int:
        """Cells between grid points have 2^this pieces: in one, probabilities differ little."""
        return max((_PIECES // (self.levels - 1)).bit_length() - 1, 0)

    @property
    def _rise(self) -> float:
        """Rise of the right series' log-odds over one piece."""
        return 2.0 * self._step / 2.0**self._piece_bits

    @cached_property
    def _right_log_odds(self) -> NDArray[np.float64]:
        """Log of the right series' mass over the left's at each piece's left end."""
        # The mass of k terms is (1 - e^(-step k)) / (1 - e^-step); expm1 keeps small steps precise.
        log_mass = np.log(-np.expm1(-self._step * np.arange(1.0, self.levels)))
        of_cells = log_mass[::-1] - log_mass - self._step
        log_odds: NDArray[np.float64] = np.add.outer(
            of_cells, self._rise * np.arange(2.0**self._piece_bits)
        ).reshape(-1)
        return log_odds

    @cached_property
    def _sure_words(self) -> tuple[NDArray[np.uint32], np.uint32]:
        """Below which words all of a piece's coordinates go right, and how many more are open.

        All coordinates go left after the open ones. The margin covers the rounding of a
        coordinate's own probability.
        """
        least, most = (
            2.0**32 * np.exp(-np.logaddexp(0.0, -self._right_log_odds - rise))
            for rise in (0.0, self._rise)
        )
        below = np.floor(least * (1.0 - 1e-9))
        most_open = (np.ceil(most * (1.0 + 1e-9)) - below).max() - 1.0
        return below.astype(np.uint32), np.uint32(min(most_open, 2.0**32 - 1.0))


@lru_cache(maxsize=8)  # a table costs more than a short vector's draws
def _geometric(step: float) -> DiscreteLaplace:
    """The law that falls by `exp(-step)`; with two levels no series has a second point."""
    return DiscreteLaplace(1.0 / min(step, _LARGEST_STEP))
