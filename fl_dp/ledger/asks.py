"""Units that were asked for one contribution each, and what became of it: no disk, no lock.

An ask is written down before it is sent, and a contribution before it is added. So a unit is never
asked again while its answer can still arrive, and each index holds at most one of its answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(eq=False)
class Asks:
    """Asks that are under way, and the contributions of the open index.

    Attributes:
        asked: The index at which each unit was asked whose answer has not arrived.
        folded: How many contributions the open index has.
    """

    asked: dict[str, int] = field(default_factory=dict)
    folded: int = 0

    def open(self) -> None:
        """Begin with an index: nothing was folded into it, and who was asked still is."""
        self.folded = 0

    def forget(self) -> list[str]:
        """Give up every ask that is under way, as its server is gone, and return whose."""
        lost = list(self.asked)
        self.asked.clear()
        return lost

    def ask(self, units: Collection[str], index: int) -> None:
        """Take note of units that are asked at an index.

        Raises:
            ValueError: As `require_idle` does.
        """
        self.require_idle(units)
        self.asked |= dict.fromkeys(units, index)

    def fold(self, units: Collection[str], *, room: int) -> None:
        """Take note of units whose contributions are added.

        Raises:
            ValueError: As `require_asked` does.
        """
        self.require_asked(units, room=room)
        self.folded += len(units)
        for unit in units:
            del self.asked[unit]

    def require_idle(self, units: Collection[str]) -> None:
        """Check that units wait for no answer of an earlier ask.

        Raises:
            ValueError: If one does, or is named twice.
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
            ValueError: If one was not, is named twice, or is one too many.
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
    twice = [unit for unit, count in Counter(units).items() if count > 1]
    if twice:
        raise ValueError(f"a unit has one contribution, and {twice[0]} is named twice")
