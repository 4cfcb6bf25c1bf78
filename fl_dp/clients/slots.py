"""Fixed times for the units of a node, where the time of one may not decide about another.

A node whose coins are secret answers at a fixed time. Cut off there as a whole, one slow unit would
decide whether all others are in the sum. So each has a slot of its own, as long as everybody's and
at a fixed start, whether its coin came up or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from fl_dp import clock

_APART = 0.125  # of the time, before the slots and behind them: to make ready, and to add up
_USED = 0.8  # of a slot; the rest is for ending what overran it


class Overrun(Exception):
    """Something besides a unit's own training took so long that a slot began late."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Times of the slots, by `clock.now`.

    Attributes:
        begin: Of the first.
        end: Of the last.
        until: When the node's work is over.
    """

    begin: float
    end: float
    until: float

    @classmethod
    def within(cls, began: float, until: float) -> Slots:
        """Return the slots of a node's work, which has some time before them and behind them."""
        margin = _APART * (until - began)
        return cls(begin=began + margin, end=until - margin, until=until)

    def waited(self, count: int) -> Iterator[tuple[int, float]]:
        """Wait for the start of each slot in turn, and yield its number and when its use ends.

        Args:
            count: Of slots, a public number.

        Raises:
            Overrun: If it is past a start already.
        """
        length = (self.end - self.begin) / count
        for number in range(count):
            start = self.begin + number * length
            _wait(start)
            yield number, start + _USED * length
        _wait(self.end)


def _wait(until: float) -> None:
    left = until - clock.now()
    if left < 0.0:
        raise Overrun(f"{-left:.3g} s late for a slot")
    clock.sleep(left)


_present: ContextVar[Slots | None] = ContextVar("slots", default=None)


def present_slots() -> Slots | None:
    """Return the slots of the node's work; None where its time tells nobody anything."""
    return _present.get()


@contextmanager
def working_in(slots: Slots) -> Iterator[None]:
    """Say which slots the block's work has."""
    token = _present.set(slots)
    try:
        yield
    finally:
        _present.reset(token)
