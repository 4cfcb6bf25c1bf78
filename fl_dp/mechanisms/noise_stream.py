"""Noise of one release after another: the place for noise with memory.

The noise of every round's sum comes from one stream. `WhiteStream` draws all of it afresh. A
stream with memory subtracts a part of earlier noise again, so the errors of many rounds cancel in
the model. Such noise is charged differently, and the plan has to say so.

    >>> stream = WhiteStream()
    >>> noise = stream.next(mechanism.law, total.size, rng, index=reservation.index)
    >>> released_sum = mechanism.release(total, noise)

A stream carries the updates' noise alone. The same round's counts, bits and metrics get fresh
noise (`GaussianBundle.scalar_noise`).

References: Denisov et al. 2022, "Improved Differential Privacy for SGD via Optimal Private Linear
Operators on Adaptive Streams"; Choquette-Choo et al. 2023, "(Amplified) Banded Matrix
Factorization", for correlated noise whose memory is short.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Never, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from . import threads
from .grid import IntegerLaw
from .randomness import SecureRandom

Sample: TypeAlias = Callable[[IntegerLaw, int, SecureRandom], NDArray[np.int64]]
"""Returns independent draws of a law, as `IntegerLaw.sample`."""

_WORTH_A_THREAD = 1 << 17  # coordinates; fewer are drawn within two milliseconds


@dataclass(frozen=True, kw_only=True)
class _Ahead:
    """Noise that a thread draws before it is asked for."""

    index: int
    law: IntegerLaw
    size: int
    drawing: Future[NDArray[np.int64]]

    def noise(self, law: IntegerLaw, size: int) -> NDArray[np.int64]:
        """Wait for the noise of the sum it was drawn for."""
        if (type(law), law.scale, size) != (type(self.law), self.law.scale, self.size):
            raise ValueError(
                f"noise for release {self.index} was drawn ahead for {self.size} coordinates of "
                f"scale {self.law.scale}, and asked for {size} of scale {law.scale}"
            )
        return self.drawing.result()

    def forget(self) -> None:
        """Overwrite the noise, once drawn: no thread may go on with the memory of a cut."""
        if not self.drawing.cancel() and self.drawing.exception() is None:
            self.drawing.result().fill(0)


class NoiseStream(ABC):
    """Noise for releases counted by an index, each index at most once.

    Privacy: none of its own; the event that a round is charged as has to cover the stream. A
    stream's memory is as secret as the sums that its noise has hidden: an adversary who knows a
    release's noise can subtract it. So a stream stays in the memory of one process: it can't be
    pickled or copied, and is saved nowhere. A restart begins a new one.

    The index is the ledger's (`Reservation.index`): a round that failed, or that another process
    reserved, leaves a gap. A gap cuts the memory, as a stream with memory makes its promise to
    units that take part a number of indices apart.
    """

    def __init__(self) -> None:
        """Begin without memory."""
        self._index = -1
        self._process = os.getpid()
        self._ahead: _Ahead | None = None

    @property
    def index(self) -> int:
        """The last index with drawn noise; -1 before the first."""
        return self._index

    @final
    def draw_ahead(self, law: IntegerLaw, size: int, rng: SecureRandom, *, index: int) -> None:
        """Begin to draw one release's noise in a thread, while its replies are awaited.

        `next` with the same arguments returns it, from a branch of `rng`, and draws short vectors
        itself. If anything else is asked for first, or the stream is cut, the noise is
        overwritten: the index is spent without a release.

        Raises:
            ValueError: As `next` does. `next` raises the draw's own errors.
        """
        if size < _WORTH_A_THREAD:
            return
        self._begin(index)
        drawing = threads.submit(self._draw, law, size, rng.branch())
        self._ahead = _Ahead(index=index, law=law, size=size, drawing=drawing)

    @final
    def next(
        self, law: IntegerLaw, size: int, rng: SecureRandom, *, index: int
    ) -> NDArray[np.int64]:
        """Draw one release's noise, or return what was drawn ahead.

        `law` is the fresh noise's, in steps of the sum's grid (`GridMechanism.law`). `index` is
        the release's among all reservations, larger than any before.

        Returns:
            Integers in grid steps, shape `(size,)`, for this release alone.

        Raises:
            ValueError: If noise was drawn before for this index or a later one, or ahead for
                another sum.
        """
        ahead = self._ahead if self._process == os.getpid() else None
        if ahead is None or ahead.index != index:
            ahead = None
            self._begin(index)
        try:
            noise = self._draw(law, size, rng) if ahead is None else ahead.noise(law, size)
        except BaseException:
            # The index is spent without a noise: with memory kept, the releases around it would
            # be nearer to each other than their indices say.
            self.cut()
            raise
        self._ahead = None
        return noise

    def _begin(self, index: int) -> None:
        """Spend an index before the draw, which may fail."""
        if index <= self._index:
            # Two sums with related noise: their difference would show what neither does.
            raise ValueError(
                f"noise for release {index} was asked for after release {self._index}: a release "
                "gets its noise once; reserve a new round in the ledger and release that"
            )
        # Unused noise that was drawn ahead is a gap, too. A fork is a copy: only one of two
        # processes may go on with their common memory.
        follows = index == self._index + 1 and self._ahead is None
        if not follows or os.getpid() != self._process:
            self.cut()
        self._index, self._process = index, os.getpid()

    @final
    def cut(self) -> None:
        """Overwrite and forget all earlier noise: later noise does not depend on it.

        It costs accuracy, never privacy, unless its moment depends on visible noise.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and os.getpid() == self._process:  # a fork has no such thread
            ahead.forget()
        self._forget()

    @abstractmethod
    def _forget(self) -> None:
        """Overwrite and forget all noise that `_draw` has kept; see `cut`."""

    @abstractmethod
    def _draw(self, law: IntegerLaw, size: int, rng: SecureRandom) -> NDArray[np.int64]:
        """Draw the noise that follows the draws since the last cut; see `next`.

        It may run in another thread; nothing else touches the memory meanwhile. With memory:
        refuse a law or size that differs from the last one's, as carried noise is in steps of one
        grid.
        """

    @final
    def __reduce_ex__(self, protocol: object) -> Never:
        """Refuse pickling and copying: `copy` and `deepcopy` call this."""
        raise TypeError(
            f"a {type(self).__name__} can't be pickled or copied, as it may hold noise that hides "
            "what was released: leave it out and begin a new stream, which costs no privacy"
        )

    def __repr__(self) -> str:
        """Show the index alone, never noise."""
        return f"{type(self).__name__}(index={self._index})"


class WhiteStream(NoiseStream):
    """Fresh noise for every release, independent of all before.

    Privacy: each release has its mechanism's own guarantee, and releases compose.
    """

    def __init__(self, sample: Sample = IntegerLaw.sample) -> None:
        """Begin; `sample` draws the noise of a law, on the host by default."""
        super().__init__()
        self._sample = sample

    def _forget(self) -> None:
        """Do nothing: nothing is remembered."""

    def _draw(self, law: IntegerLaw, size: int, rng: SecureRandom) -> NDArray[np.int64]:
        return self._sample(law, size, rng)
