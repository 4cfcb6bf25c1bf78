"""Fixed time slots for a node's units: the time of one must not decide about another.

A node with secret coins answers at a fixed time. If that cut off all its work, one slow unit would
decide whether all others are in the sum. So each unit has its own slot, of equal length and fixed
start, whether its coin came up or not.
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
    """A slot began late, because of other work than a unit's own training."""


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
        """Return the slots of work between two times, with some time before and after them."""
        margin = _MARGIN * (until - began)
        return cls(begin=began + margin, end=until - margin, until=until)

    def waited(self, count: int) -> Iterator[tuple[int, float]]:
        """Wait for the start of each of `count` slots in turn; yield its number and end of use.

        The number of slots is public.

        Raises:
            Overrun: A start has passed.
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
    """The node's slots; None where its time reveals nothing."""
    return _present.get()


@contextmanager
def working_in(slots: Slots) -> Iterator[None]:
    """Set the slots of the block's work."""
    token = _present.set(slots)
    try:
        yield
    finally:
        _present.reset(token)
