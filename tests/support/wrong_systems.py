"""Parts of systems whose fault no single release shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl_dp.accounting import PoissonSampling
from fl_dp.mechanisms import NoiseStream, SecureRandom, WhiteStream
from fl_dp.mechanisms.grid import IntegerLaw
from fl_dp.strategies import Draw, PrivateLoop, Selection, Unit

Draws: TypeAlias = Callable[[IntegerLaw, int, SecureRandom], NDArray[np.int64]]


def stream_by(draw: Draws) -> NoiseStream:
    """A stream whose noise is drawn that way."""

    class Stream(WhiteStream):
        def _draw(self, law: IntegerLaw, size: int, rng: SecureRandom) -> NDArray[np.int64]:
            return draw(law, size, rng)

    return Stream()


def noise_by(draw: Draws, base: type[PrivateLoop] = PrivateLoop) -> Any:
    """A loop that draws its noise that way."""

    class Wrong(base):  # type: ignore[valid-type,misc]  # given
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.noise_stream = stream_by(draw)

    return Wrong


def one_draw_for_both_halves(law: IntegerLaw, size: int, rng: SecureRandom) -> NDArray[np.int64]:
    return np.tile(law.sample((size + 1) // 2, rng), 2)[:size]


class ShuffledDeck(Selection):
    """Deals binomial hands from a shuffled deck, shuffled again when used up."""

    def __init__(self, rate: float) -> None:
        self.sampling: Any = PoissonSampling(sampling_rate=rate)
        self.deck: list[Unit] = []

    def select(self, draw: Draw) -> list[Unit]:
        hand: list[Unit] = []
        for _ in range(
            int(draw.rng.bernoulli(self.sampling.sampling_rate, len(draw.roster)).sum())
        ):
            if not self.deck:
                order = np.argsort(draw.rng.uniforms(len(draw.roster)))
                self.deck = [draw.roster[index] for index in order]
            hand.append(self.deck.pop())
        return list(dict.fromkeys(hand))
