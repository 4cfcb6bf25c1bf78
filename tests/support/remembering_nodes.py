"""Nodes of secure sums that remember their noise, and what their opened sums must look like."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fl_dp.mechanisms import SecureRandom, Segment
from fl_dp.mechanisms.banded_share import BandedShare, CarriedNoise

Opened = Mapping[int, Collection[int]]
"""The nodes in the opened sum of each index."""


class Noting(CarriedNoise):
    """A memory that notes with which weight earlier indices counted at each: C, row by row."""

    log: dict[int, dict[int, float]]

    @contextmanager
    def remembering(self, index: int, weights: np.ndarray, variance: float) -> Iterator[np.ndarray]:
        pairs = zip(self.indices.tolist(), weights.tolist(), strict=True)
        self.log[index] = {earlier: weight for earlier, weight in pairs if weight}
        with super().remembering(index, weights, variance) as row:
            yield row


def share_of(
    coefficients: tuple[int, ...], *, size: int = 1, noise_scale: float = 40.0
) -> BandedShare:
    """A share with one segment, a step a unit of value."""
    updates = Segment("updates", size, 1.0, 1000.0, 1.0)
    return BandedShare(segments=(updates,), noise_scale=noise_scale, coefficients=coefficients)


class RememberingNode:
    """One node: what it answers, by the code that nodes run."""

    def __init__(self, share: BandedShare, memory: type[Noting] = Noting) -> None:
        self.share = share
        self.memory: Any = memory.empty(bands=share.bands, size=share.segments[0].size)
        self.memory.log = {}
        self.rng = SecureRandom()

    @property
    def log(self) -> dict[int, dict[int, float]]:
        return dict(self.memory.log)

    def answer(
        self, index: int, value: float | np.ndarray = 0.0, *, crashes: bool = False
    ) -> np.ndarray:
        """What it sends; a crash between the draw and the write keeps the answer and the row."""
        kept = self.memory.indices.copy(), self.memory.covariance.copy(), self.memory.rows.copy()
        size = self.share.segments[0].size
        sent = self.share.encode([np.full(size, value)], self.rng, self.memory, index)
        if crashes:
            self.memory.indices, self.memory.covariance, self.memory.rows = kept
            del self.memory.log[index]
        return sent


def covariance_of_sums(
    logs: Sequence[Mapping[int, Mapping[int, float]]], opened: Opened
) -> np.ndarray:
    """Of the opened sums, in squares of the scale: each node's C^-1 C^-T where it is in them."""
    place = {index: row for row, index in enumerate(opened)}
    total = np.zeros((len(opened), len(opened)))
    for node, log in enumerate(logs):
        at = sorted(log)
        own = np.eye(len(at))
        for row, index in enumerate(at):
            for earlier, weight in log[index].items():
                own[row, at.index(earlier)] = weight
        inverse = np.linalg.inv(own)
        here = [row for row, index in enumerate(at) if node in opened.get(index, ())]
        rows = [place[at[row]] for row in here]
        total[np.ix_(rows, rows)] += (inverse @ inverse.T)[np.ix_(here, here)]
    return total


def distance_squared(covariance: np.ndarray, opened: Opened, indices: Collection[int]) -> float:
    """The most that updates of norm 1 at these indices are apart in the sums, squared."""
    at = [row for row, index in enumerate(opened) if index in indices]
    if not at:
        return 0.0
    return float(np.abs(np.linalg.inv(covariance)[np.ix_(at, at)]).sum())
