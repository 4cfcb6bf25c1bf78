"""Noise of one release after another: the place for noise that remembers.

A training releases a sum every round, and the noise of each sum comes from one stream.
`WhiteStream` draws all of it afresh. A stream with memory takes part of earlier noise away again,
so that the errors of many rounds cancel in the model; such noise is charged differently, and the
plan has to say so.

    >>> stream = WhiteStream()
    >>> noise = stream.next(mechanism.law, total.size, rng, index=reservation.index)
    >>> released_sum = mechanism.release(total, noise)

A stream carries the updates' noise alone. Counts, bits and metrics of the same round have laws and
grids of their own and get fresh noise (`GaussianBundle.scalar_noise`).

References: Denisov et al. 2022, "Improved Differential Privacy for SGD via Optimal Private Linear
Operators on Adaptive Streams"; Choquette-Choo et al. 2023, "(Amplified) Banded Matrix
Factorization", for correlated noise whose memory is short.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Never, final

import numpy as np
from numpy.typing import NDArray

from .grid import IntegerLaw
from .randomness import SecureRandom


class NoiseStream(ABC):
    """Noise for releases that are counted by an index, each index at most once.

    Privacy: none of its own; the event that a round is charged as has to cover the stream. What a
    stream remembers is as secret as the sums that it has hidden: an adversary who knows the
    noise of a release can take it away. So a stream stays in the memory of one process: it can't be
    pickled or copied, and is saved nowhere. A restart begins a new one.

    The index is the ledger's (`Reservation.index`), so that a round that was reserved by another
    process, or failed, leaves a gap. Where indices are not consecutive, memory is cut: a stream
    with memory promises something to units that take part a number of indices apart.
    """

    def __init__(self) -> None:
        """Begin with nothing remembered."""
        self._index = -1
        self._process = os.getpid()

    @property
    def index(self) -> int:
        """The last index that noise was drawn for; -1 before the first."""
        return self._index

    @final
    def next(
        self, law: IntegerLaw, size: int, rng: SecureRandom, *, index: int
    ) -> NDArray[np.int64]:
        """Draw the noise of one release.

        Args:
            law: Of the fresh noise, in the steps of the sum's grid (`GridMechanism.law`).
            size: How many coordinates the sum has.
            rng: Where fresh noise comes from.
            index: The release's place among all that were reserved, larger than any before.

        Returns:
            Integers in grid steps, shape `(size,)`, for this release alone.

        Raises:
            ValueError: If noise was drawn for this index, or a later one, before.
        """
        if index <= self._index:
            # Two sums with related noise: their difference would show what neither does.
            raise ValueError(
                f"noise for release {index} was asked for after release {self._index}: a release "
                "gets its noise once; reserve a new round in the ledger and release that"
            )
        # A fork is a copy: only one of two processes may go on with what both remember.
        if index != self._index + 1 or os.getpid() != self._process:
            self.cut()
        # Before the draw: an index whose draw fails is spent.
        self._index, self._process = index, os.getpid()
        try:
            return self._draw(law, size, rng)
        except BaseException:
            # The index is spent without a noise: with memory kept, the releases around it would
            # be nearer to each other than their indices say.
            self.cut()
            raise

    @abstractmethod
    def cut(self) -> None:
        """Overwrite and forget all earlier noise; what comes next does not depend on it.

        It costs accuracy and never privacy, unless its moment depends on noise that was seen.
        """

    @abstractmethod
    def _draw(self, law: IntegerLaw, size: int, rng: SecureRandom) -> NDArray[np.int64]:
        """Draw the noise that follows what was drawn since the last cut; see `next`.

        With memory: refuse a law or a size that differs from the last one's, as what is carried
        over is in the steps of one grid.
        """

    @final
    def __reduce_ex__(self, protocol: object) -> Never:
        """Refuse to be pickled, and so to be copied: `copy` and `deepcopy` come through here."""
        raise TypeError(
            f"a {type(self).__name__} can't be pickled or copied, as it may hold noise that hides "
            "what was released: leave it out and begin a new stream, which costs no privacy"
        )

    def __repr__(self) -> str:
        """Show the index alone, never noise."""
        return f"{type(self).__name__}(index={self._index})"


class WhiteStream(NoiseStream):
    """Fresh noise for every release, independent of all before: a stream without memory.

    Privacy: each release has its mechanism's own guarantee, and releases compose.
    """

    def cut(self) -> None:
        """Do nothing: nothing is remembered."""

    def _draw(self, law: IntegerLaw, size: int, rng: SecureRandom) -> NDArray[np.int64]:
        return law.sample(size, rng)
