"""A server that is killed at any of its steps, and noise watched meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from flwr.app import Message
from local_grid import Answer, LocalGrid

from fl_dp.mechanisms import BandedStream, SecureRandom
from fl_dp.mechanisms.grid import IntegerLaw

Dies = Callable[[], None]
"""Raises `Killed`, or does nothing."""


class Killed(BaseException):
    """Ends a process wherever it is: no handler of errors catches it."""


class Deadly(LocalGrid):
    """A grid on which the server can be killed before and after it asks, and as it looks."""

    def __init__(self, answer: Answer, num_nodes: int, dies: Dies) -> None:
        super().__init__(answer, num_nodes, introduces=True)
        self.dies = dies

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = list(messages)
        trains = bool(pushed) and pushed[0].metadata.message_type == "train"
        if trains:
            self.dies()
        ids = super().push_messages(pushed)
        if trains:
            self.dies()
        return ids

    def replies_to(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.dies()
        return super().replies_to(message_ids)


class Watched(BandedStream):
    """Notes every index that noise is drawn for; can be killed before or after it."""

    def __init__(self, bands: tuple[int, ...], drawn: list[int], dies: Dies) -> None:
        super().__init__(bands)
        self.drawn, self.dies = drawn, dies

    def _draw(self, law: IntegerLaw, size: int, rng: SecureRandom) -> np.ndarray:
        self.dies()
        self.drawn.append(self.index)
        noise = super()._draw(law, size, rng)
        self.dies()
        return noise


def unmixed(moved: np.ndarray, bands: Sequence[int]) -> np.ndarray:
    """Sums of rounds before banded noise was mixed: what the price of a unit bounds."""
    return np.array(
        [
            sum(bands[j] / bands[0] * moved[t - j] for j in range(len(bands)) if t >= j)
            for t in range(len(moved))
        ]
    )
