"""Noise with memory in a secure sum: whose turn a sum is, and what nodes are to forget.

Each unit of a node has a position, public and fixed for the training, and index t is the turn of
position t mod `groups`. So two participations of a unit are at least `groups` indices apart, and
noise that reaches no further is charged once each. A failed index is over: the next attempt has the
next index, and the next position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fl_dp.mechanisms.banded_stream import require_coefficients

from .texts import hex_bytes, require_ascending, require_integers

MOST_GROUPS = 1_000_000
_MOST_INDEX = 2**53
_MOST_PLACES = 2**32 - 1
_TRAINING_BYTES = 32
_MOST_COEFFICIENT = 2**40
MOST_BANDS = 1_000
"""Sums that one draw of noise reaches at most: nodes keep a row of a model's size for each."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The turn of a sum whose noise has memory.

    Attributes:
        training: Names the training over restarts of its server, in hex: positions are for it.
        index: Of the sum; grows within a training, and none is used twice.
        groups: Positions that take turns.
        coefficients: The first column of C, in units of 2^-12.
        dropped: Places whose answer at an earlier index is in no opened sum, by the index. Nobody
            can check it, and nothing but accuracy depends on it.
    """

    training: str
    index: int
    groups: int
    coefficients: tuple[int, ...]
    dropped: Mapping[int, tuple[int, ...]]

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ValueError: If a field is out of range, or noise reaches a unit's next turn.
        """
        hex_bytes(self.training, _TRAINING_BYTES, "training")
        require_integers(0, _MOST_INDEX, index=self.index)
        require_integers(2, MOST_GROUPS, groups=self.groups)
        require_integers(2, MOST_BANDS, coefficients=len(self.coefficients))
        for each in self.coefficients:
            require_integers(-_MOST_COEFFICIENT, _MOST_COEFFICIENT, coefficients=each)
        require_coefficients(self.coefficients)
        if len(self.coefficients) > self.groups:
            raise ValueError(
                f"{len(self.coefficients)} coefficients must be no more than the "
                f"{self.groups} positions: noise would reach a unit's next turn, which is not "
                "charged for"
            )
        earlier = range(self.index - len(self.coefficients) + 1, self.index)
        if list(self.dropped) != sorted(self.dropped) or not set(self.dropped) <= set(earlier):
            raise ValueError(f"dropped must be of the indices before {self.index}, ascending")
        for places in self.dropped.values():
            require_ascending(_MOST_PLACES, dropped=places)

    @property
    def position(self) -> int:
        """The position whose turn it is."""
        return self.index % self.groups

    def forgotten_by(self, place: int) -> list[int]:
        """Return the indices that a client, by its place, is told to forget."""
        return [index for index, places in self.dropped.items() if place in places]

    def to_dict(self) -> dict[str, Any]:
        """Return the turn as plain JSON values."""
        return {
            "training": self.training,
            "index": self.index,
            "groups": self.groups,
            "coefficients": list(self.coefficients),
            "dropped": [[index, list(places)] for index, places in self.dropped.items()],
        }

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """Read a turn.

        Raises:
            ValueError: If it is none.
        """
        if not isinstance(document, dict) or not isinstance(document.get("dropped"), list):
            raise ValueError("turn must be an object with its training, index, groups and so on")
        try:
            dropped = {index: tuple(places) for index, places in document["dropped"]}
            coefficients = tuple(document["coefficients"])
            return cls(**document | {"dropped": dropped, "coefficients": coefficients})
        except (KeyError, TypeError) as error:
            raise ValueError(f"turn is none: {error}") from error
