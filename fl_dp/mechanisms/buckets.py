"""Integers drawn by buckets of equal width: exact proposals, some of which are accepted.

The buckets have one power-of-two width. Exact 64-bit integer weights draw a bucket, the offset
inside is uniform, and the pair is accepted with the ratio of target to proposal. Acceptance thus
undoes the weights' rounding; only the float64 error of the target's density remains.

Nearly every draw takes one word and two table look-ups: upper bits give the bucket, lower ones the
offset, those between toss the coin. More bits decide the few open cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .randomness import CHUNK, SecureRandom
from .threads import WorkArrays

BUCKETS_A_SCALE = 5
"""A bucket is a power of two, between 2^-6 and 2^-5 of the law's scale."""

Odds: TypeAlias = Callable[
    [NDArray[np.int64], NDArray[np.intp], NDArray[np.intp]], NDArray[np.float64]
]
"""Returns density over envelope, at most 1, given values, their buckets and the draws' indices."""

SLOT_BITS = 14
"""Upper bits of a word, which give the slot: the two tables stay in the cache."""

REST_BITS = np.uint64(64 - SLOT_BITS)


_work = WorkArrays(4, CHUNK + 2)  # the cipher needs room for two words more


class Buckets:
    """A table of buckets, and draws from it.

    Attributes:
        low: Each bucket's smallest integer.
        cap: Each bucket's real weight over its integer one: acceptance is at most this.
        ends: Where each bucket but the last ends, of 2^64.
        bucket: The bucket in which each slot begins.
        slot_low: The smallest integer of that bucket.
        torn: Whether a slot has several buckets.
        sure_below: A proposal of this slot is accepted if its masked coin is below.
        offset: Mask of a word's offset in the bucket.
        coin: Mask of its coin.
        coin_shift: Bits below the coin.
        coin_bits: Bits of the coin, at least 20.
    """

    def __init__(
        self,
        mass: NDArray[np.float64],
        least: NDArray[np.float64],
        *,
        first: int,
        width_bits: int,
    ) -> None:
        """Build the table.

        Args:
            mass: The envelope's mass in each bucket, up to a common factor; the middle one is
                large.
            least: Lower bound on density over envelope in each bucket; 0 always computes it.
            first: Number of the first bucket, which begins at `first << width_bits`.
            width_bits: The buckets' width as a power of two, at most 30.
        """
        self.low = (np.arange(mass.size, dtype=np.int64) + first) << width_bits
        weights, ideal = _integer_weights(mass)
        # Undoes the rounding of the weights.
        self.cap = ideal / np.array(weights, dtype=np.float64)
        self.ends = np.array(list(itertools.accumulate(weights))[:-1], dtype=np.uint64)
        shift, slots = np.uint64(width_bits), np.arange(1 << SLOT_BITS, dtype=np.uint64)
        begin = slots << REST_BITS
        bucket = self._bucket_at(begin)
        self.torn = bucket != self._bucket_at(begin | np.uint64((1 << int(REST_BITS)) - 1))
        self.bucket, self.slot_low = bucket, self.low[bucket]
        self.offset = np.uint64((1 << width_bits) - 1)
        self.coin_bits = int(REST_BITS) - width_bits
        self.coin_shift = shift
        self.coin = np.uint64(((1 << self.coin_bits) - 1) << width_bits)
        # A coin below the least ratio in its bucket is accepted without computing its own; the
        # margin covers the rounding of that least ratio. Where the bucket is open, none is.
        sure_below = (self.cap * least * (1 - 1e-9) * 2.0**self.coin_bits).astype(np.uint64)
        self.sure_below = np.where(self.torn, np.uint64(0), sure_below[bucket] << shift)
        self._unsure_from = begin | self.sure_below  # the same of the whole word

    def propose(self, out: NDArray[np.int64], rng: SecureRandom, odds: Odds) -> NDArray[np.intp]:
        """Fill `out` with proposals, and return the rejected ones' indices, ascending.

        A rejected one's place says nothing of the accepted values: fill it with another draw.
        """
        open_draws, open_words = [], []
        for start in range(0, out.size, CHUNK):
            value = out[start : start + CHUNK]
            room, *others = (array.view(np.uint64) for array in _work.first(value.size + 2))
            bits, unsure_from, coins = (other[: value.size] for other in others)
            words, slot = rng.words(value.size, room=room), bits.view(np.int64)
            np.right_shift(words, REST_BITS, out=bits)
            self.slot_low.take(slot, mode="clip", out=value)
            self._unsure_from.take(slot, mode="clip", out=unsure_from)
            unsure = coins.view(np.bool_)[: value.size]
            np.greater_equal(words, unsure_from, out=unsure)
            if self.offset:
                np.bitwise_and(words, self.offset, out=bits)
                value += slot
            draws = np.flatnonzero(unsure)
            open_words.append(words[draws])
            open_draws.append(draws + start)
        if not open_draws:
            return np.empty(0, dtype=np.intp)
        # All together: there are few, and each call of NumPy's costs as much as hundreds of them.
        return self._decide(out, np.concatenate(open_draws), np.concatenate(open_words), rng, odds)

    def _decide(
        self,
        out: NDArray[np.int64],
        draws: NDArray[np.intp],
        words: NDArray[np.uint64],
        rng: SecureRandom,
        odds: Odds,
    ) -> NDArray[np.intp]:
        """Propose the open draws by more bits than their words, and return the rejected ones."""
        slot = (words >> REST_BITS).view(np.int64)
        bucket = self.bucket[slot]
        torn = np.flatnonzero(self.torn[slot])
        if torn.size:
            upper = words[torn] >> REST_BITS << REST_BITS
            position = upper | rng.words(torn.size) >> np.uint64(SLOT_BITS)
            first = bucket[torn]
            first += position >= self.ends[first]
            # Few slots have three buckets; after the last one no end is left.
            farther = np.flatnonzero(position >= self.ends.take(first, mode="clip"))
            first[farther] = self._bucket_at(position[farther])
            bucket[torn] = first
        candidates = self.low[bucket] + (words & self.offset).view(np.int64)
        out[draws] = candidates
        # The same coin with 53 more bits: it was at least `sure_below`, and that has to count.
        coin = ((words & self.coin) >> self.coin_shift).astype(np.float64)
        fine = (coin + rng.uniforms(draws.size)) * 2.0**-self.coin_bits
        return draws[fine >= self.cap[bucket] * odds(candidates, bucket, draws)]

    def _bucket_at(self, position: NDArray[np.uint64]) -> NDArray[np.intp]:
        """The bucket that holds a position of 2^64."""
        return np.searchsorted(self.ends, position, side="right")


def width_bits(scale: float) -> int:
    """The buckets' width for a law's scale, as a power of two."""
    return max(0, int(np.floor(np.log2(scale))) - BUCKETS_A_SCALE)


def _integer_weights(mass: NDArray[np.float64]) -> tuple[list[int], NDArray[np.float64]]:
    """Integer weights that sum to 2^64, and real ones, each at most its integer."""
    ideal = mass * (2.0**64 * (1 - 2.0**-20) / float(mass.sum()))
    # Rounded up, so that no acceptance ratio exceeds 1; the 2^-20 leaves room for it.
    weights = [int(weight) + 1 for weight in ideal]
    weights[len(weights) // 2] += (1 << 64) - sum(weights)
    return weights, ideal
