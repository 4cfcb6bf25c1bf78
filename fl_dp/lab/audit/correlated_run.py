"""Canary clients under correlated noise: tests of their participations.

The noise of all releases is C^-1 z. An auditor that multiplies the releases by C has independent
noise again. A participation then appears in one release per band, each time with its coefficient.
Its best test is the matched filter, which weights those releases by their coefficients:

    v = C y,   m_t = sum_j c_j v_(t+j) / |c|^2 = (1 if it took part at t) + noise of multiplier z

Where a client's blocks don't overlap, that is one Gaussian per participation, as charged. Where
they overlap, the releases show more than was charged, and the filter of all participations of a
client together reveals it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE

from .whole_run import ObservedRound


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicTurns:
    """Public knowledge of who took part in a run; exactly one of the first two is given.

    Attributes:
        asked: Which canaries were asked in each round, shape `(rounds, count)`.
        groups: Group of each canary, shape `(count,)`; secret coins decide in its group's turns.
        num_groups: Number of groups that take turns.
    """

    asked: NDArray[np.bool_] | None = None
    groups: NDArray[np.int64] | None = None
    num_groups: int = 1

    def __post_init__(self) -> None:
        """Check that one is given."""
        if (self.asked is None) == (self.groups is None):
            raise ValueError("give either who was asked, or the groups that take turns")


def matched_filters(
    rounds: Sequence[ObservedRound],
    indices: Sequence[int],
    turns: PublicTurns,
    *,
    coefficients: Sequence[int],
) -> list[ObservedRound]:
    """Return what the releases show of participations.

    `rounds` are all releases, in order, with the multiplier of one participation; `indices` are
    theirs in the ledger. `coefficients` are C's first column in units of 2^-12: one entry for
    independent noise.

    Returns:
        Rounds for `finding_of_run`. With `turns.asked`: one, for a sampling rate of 1. With
        groups: one per release, for the rate inside a group.

    Raises:
        ValueError: If a round is missing in the middle: its noise is unknown.
    """
    fresh, scales, column = with_fresh_noise(rounds, indices, coefficients)
    if turns.asked is not None:
        return [_of_asked(fresh, turns.asked, column, scales)]
    return _of_turns(fresh, indices, turns, column, scales)


def with_fresh_noise(
    rounds: Sequence[ObservedRound], indices: Sequence[int], coefficients: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Releases with independent noise, its deviation in each, and C's first column.

    For arguments and errors see `matched_filters`.
    """
    in_order = list(indices) == list(range(indices[0], indices[0] + len(indices)))
    if len(coefficients) > 1 and not in_order:
        raise ValueError(
            "a round in the middle was not released, and the later ones took part of its noise "
            "away: audit a run without a crash"
        )
    column = np.array(coefficients, dtype=np.float64) / COEFFICIENT_ONE
    released = np.stack([release.along for release in rounds])
    multipliers = np.array([release.noise_multiplier for release in rounds], dtype=np.float64)
    fresh: NDArray[np.float64] = lfilter(column, [1.0], released, axis=0)
    # In units of the fresh noise; where the multiplier changes, every release has its own.
    return fresh, multipliers * float(np.linalg.norm(column)), column


def _of_asked(
    fresh: NDArray[np.float64],
    asked: NDArray[np.bool_],
    column: NDArray[np.float64],
    scales: NDArray[np.float64],
) -> ObservedRound:
    """The matched filter of all of a direction's participations."""
    # Directions without a canary are trials, too: as if they had been asked with one of those.
    canary = np.arange(fresh.shape[1]) % asked.shape[1]
    turns = asked[:, canary].astype(np.float64)
    signal: NDArray[np.float64] = lfilter(column, [1.0], turns, axis=0)
    signal /= scales[:, None]
    # Of a signal s in standard noise, <s, y> / |s|^2 is N(1, 1 / |s|^2), and N(0, ...) without s.
    lengths = np.square(signal).sum(axis=0)
    eligible = lengths > 0.0
    lengths[~eligible] = 1.0
    along = (signal * fresh / scales[:, None]).sum(axis=0) / lengths
    return ObservedRound(along=along, noise_multiplier=1.0 / np.sqrt(lengths), eligible=eligible)


def _of_turns(
    fresh: NDArray[np.float64],
    indices: Sequence[int],
    turns: PublicTurns,
    column: NDArray[np.float64],
    scales: NDArray[np.float64],
) -> list[ObservedRound]:
    """The matched filter of one participation in each round, of its group's directions."""
    assert turns.groups is not None
    groups = np.resize(turns.groups, fresh.shape[1])
    filtered = []
    for row, index in enumerate(indices):
        block = fresh[row : row + len(column)]
        weights = column[: len(block)] / scales[row : row + len(block)]
        length = float(np.square(weights).sum())
        along = (weights / scales[row : row + len(block)]) @ block / length
        filtered.append(
            ObservedRound(
                along=along,
                noise_multiplier=length**-0.5,
                eligible=groups == index % turns.num_groups,
            )
        )
    return filtered
