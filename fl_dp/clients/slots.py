"""Fixed times for the units of a node, where the time of one may not decide about another.

A node with secret coins answers at a fixed time. If all its work were cut off there, one slow unit
would decide whether all others are in the sum. So each has a slot of its own, of equal length and
at a fixed start, whether its coin came up or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from fl_dp import clock

_MARGIN = 0.125  # share of the time before the slots (preparation) and after them (adding up)
_USED = 0.8  # share of a slot; the rest is for ending work that overran it


class Overrun(Exception):
    """Other work than a unit's own training took so long that a slot began late."""


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Times of the slots, by `clock.now`.

    Attributes:
        begin: Start of the first slot.
        end: End of the last slot.
        until: End of the node's work.
    """

    begin: float
    end: float
    until: float

    @classmethod
    def within(cls, began: float, until: float) -> Slots:
        """Return the slots of a node's work, with some time before and after them."""
        margin = _MARGIN * (until - began)
        return cls(begin=began + margin, end=until - margin, until=until)

    def waited(self, count: int) -> Iterator[tuple[int, float]]:
        """Wait for the start of each slot in turn, and yield its number and the end of its use.

        Args:
            count: Number of slots, a public number.

        Raises:
            Overrun: A start has passed already.
        """
        length = (self.end - self.begin) / count
        for number in range(count):
            start = self.begin + number * length
            _wait(start)
            yield number, start + _USED * length
        _wait(self.end)


def _wait(until: float) -> None:
    remaining = until - clock.now()
    if remaining < 0.0:
        raise Overrun(f"{-remaining:.3g} s late for a slot")
    clock.sleep(remaining)


_present: ContextVar[Slots | None] = ContextVar("slots", default=None)


def present_slots() -> Slots | None:
    """Return the slots of the node's work; None where its time reveals nothing."""
    return _present.get()


@contextmanager
def working_in(slots: Slots) -> Iterator[None]:
    """Set the slots of the block's work."""
    token = _present.set(slots)
    try:
        yield
    finally:
        _present.reset(token)
