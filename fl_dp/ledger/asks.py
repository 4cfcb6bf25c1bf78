"""Units asked for one contribution each, and the contributions. No disk, no lock.

An ask is written down before it is sent, a contribution before it is added. So no unit is asked
again while its answer can still arrive, and an index holds at most one answer per unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(eq=False)
class Asks:
    """Open asks, and the contributions of the open index.

    Attributes:
        asked: Units that owe an answer, with the index at which each was asked.
        folded: Number of contributions in the open index.
    """

    asked: dict[str, int] = field(default_factory=dict)
    folded: int = 0

    def open(self) -> None:
        """Begin an empty index; open asks stay open."""
        self.folded = 0

    def forget(self) -> list[str]:
        """Drop open asks, as their server is gone, and return their units."""
        units = list(self.asked)
        self.asked.clear()
        return units

    def ask(self, units: Collection[str], index: int) -> None:
        """Record units asked at an index.

        Raises:
            ValueError: As `require_idle`.
        """
        self.require_idle(units)
        self.asked |= dict.fromkeys(units, index)

    def fold(self, units: Collection[str], *, room: int) -> None:
        """Record units whose contributions are added.

        Raises:
            ValueError: As `require_asked`.
        """
        self.require_asked(units, room=room)
        self.folded += len(units)
        for unit in units:
            del self.asked[unit]

    def require_idle(self, units: Collection[str]) -> None:
        """Check that no unit owes an answer.

        Raises:
            ValueError: One does, or is named twice.
        """
        _require_once(units)
        busy = [unit for unit in units if unit in self.asked]
        if busy:
            raise ValueError(
                f"{len(busy)} of the units were asked before and have not answered; the first is "
                f"{busy[0]}, at index {self.asked[busy[0]]}"
            )

    def require_asked(self, units: Collection[str], *, room: int) -> None:
        """Check that contributions were asked for and fit into the buffer.

        Raises:
            ValueError: One was not, is named twice, or is one too many.
        """
        _require_once(units)
        strangers = [unit for unit in units if unit not in self.asked]
        if strangers:
            raise ValueError(
                f"{len(strangers)} of the contributions were not asked for, or the ledger was "
                f"opened again since; the first is of {strangers[0]}"
            )
        if self.folded + len(units) > room:
            raise ValueError(
                f"a buffer of {room} has {self.folded} contributions: {len(units)} more do not fit"
            )


def _require_once(units: Collection[str]) -> None:
    repeated = [unit for unit, count in Counter(units).items() if count > 1]
    if repeated:
        raise ValueError(f"a unit has one contribution, and {repeated[0]} is named twice")
