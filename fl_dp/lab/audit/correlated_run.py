"""What releases with correlated noise tell of canary clients.

The noise of all releases is C^-1 z. An auditor that multiplies the releases by C sees independent
noise again. A participation then stands in as many releases as there are bands, each time with its
coefficient. The best test of it is the matched filter: those releases, each times its coefficient.

    v = C y,   m_t = sum_j c_j v_(t+j) / |c|^2 = (1 if it took part at t) + noise of multiplier z

Where blocks of one client don't overlap, that is one Gaussian a participation, as it is charged.
Where they do, the releases tell more than was charged, and the filter of all participations of a
client together shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from fl_dp.mechanisms.banded_stream import COEFFICIENT_ONE

from .whole_run import SeenRound


@dataclass(frozen=True, kw_only=True, eq=False)
class WhoseTurn:
    """Public knowledge of who took part in a run; exactly one of the two is given.

    Attributes:
        asked: Which canaries were asked in each round, shape `(rounds, count)`.
        groups: The group of each canary, shape `(count,)`; it takes part by secret coins in the
            rounds of its group's turn.
        num_groups: How many groups take turns.
    """

    asked: NDArray[np.bool_] | None = None
    groups: NDArray[np.int64] | None = None
    num_groups: int = 1

    def __post_init__(self) -> None:
        """Check that one is given."""
        if (self.asked is None) == (self.groups is None):
            raise ValueError("give either who was asked, or the groups that take turns")


def seen_with_memory(
    rounds: Sequence[SeenRound],
    indices: Sequence[int],
    turn: WhoseTurn,
    *,
    coefficients: Sequence[int],
) -> list[SeenRound]:
    """Return what the releases tell of participations.

    Args:
        rounds: Every release, in order, with the multiplier of one participation.
        indices: Of the rounds, as in the ledger.
        turn: Who may have taken part.
        coefficients: The first column of C in units of 2^-12; one for independent noise.

    Returns:
        Looks at the directions for `finding_of_run`: of those who were asked one each, with a
        sampling rate of 1; of groups one a round, with the rate inside a group.

    Raises:
        ValueError: If a round is missing in the middle: its noise is unknown.
    """
    fresh, scales, column = without_memory(rounds, indices, coefficients)
    if turn.asked is not None:
        return [_of_asked(fresh, turn.asked, column, scales)]
    return _of_turns(fresh, indices, turn, column, scales)


def without_memory(
    rounds: Sequence[SeenRound], indices: Sequence[int], coefficients: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return releases whose noise is fresh again, its deviation in each, and C's first column.

    Args:
        rounds: Every release, in order, with the multiplier of one participation.
        indices: Of the rounds, as in the ledger.
        coefficients: The first column of C in units of 2^-12; one for independent noise.

    Raises:
        ValueError: If a round is missing in the middle: its noise is unknown.
    """
    in_order = list(indices) == list(range(indices[0], indices[0] + len(indices)))
    if len(coefficients) > 1 and not in_order:
        raise ValueError(
            "a round in the middle was not released, and the later ones took part of its noise "
            "away: audit a run without a crash"
        )
    column = np.array(coefficients, dtype=np.float64) / COEFFICIENT_ONE
    released = np.stack([each.along for each in rounds])
    multipliers = np.array([each.noise_multiplier for each in rounds], dtype=np.float64)
    fresh: NDArray[np.float64] = lfilter(column, [1.0], released, axis=0)
    # In units of the fresh noise; where the multiplier changes, every release has its own.
    return fresh, multipliers * float(np.linalg.norm(column)), column


def _of_asked(
    fresh: NDArray[np.float64],
    asked: NDArray[np.bool_],
    column: NDArray[np.float64],
    scales: NDArray[np.float64],
) -> SeenRound:
    """Return the matched filter of all participations of each direction."""
    # Directions without a canary are trials, too: as if they had been asked with one of those.
    whose = np.arange(fresh.shape[1]) % asked.shape[1]
    there: NDArray[np.float64] = lfilter(column, [1.0], asked[:, whose].astype(np.float64), axis=0)
    there /= scales[:, None]
    # Of a signal s in standard noise, <s, y> / |s|^2 is N(1, 1 / |s|^2), and N(0, ...) without s.
    lengths = np.square(there).sum(axis=0)
    of = lengths > 0.0
    lengths[~of] = 1.0
    along = (there * fresh / scales[:, None]).sum(axis=0) / lengths
    return SeenRound(along=along, noise_multiplier=1.0 / np.sqrt(lengths), of=of)


def _of_turns(
    fresh: NDArray[np.float64],
    indices: Sequence[int],
    turn: WhoseTurn,
    column: NDArray[np.float64],
    scales: NDArray[np.float64],
) -> list[SeenRound]:
    """Return the matched filter of one participation in each round, of its group's directions."""
    assert turn.groups is not None
    groups = np.resize(turn.groups, fresh.shape[1])
    seen = []
    for at, index in enumerate(indices):
        block = fresh[at : at + len(column)]
        weights = column[: len(block)] / scales[at : at + len(block)]
        length = float(np.square(weights).sum())
        along = (weights / scales[at : at + len(block)]) @ block / length
        seen.append(
            SeenRound(
                along=along,
                noise_multiplier=length**-0.5,
                of=groups == index % turn.num_groups,
            )
        )
    return seen
