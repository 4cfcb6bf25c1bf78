"""The turn of a node's units, where the noise of secure sums has memory.

Whoever sums the units finds it here, as it finds its slots: it is the node's own, and no message
says where a node's first unit stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(kw_only=True)
class UnitsInTurn:
    """Units whose turn it is.

    Attributes:
        position: Whose turn it is.
        groups: Positions in all.
        first: Position of the node's first unit.
        require_same: Checks a fingerprint of the list of records, which stays the same for the
            training.
        followed: Whether the work has asked whose turn it is.
    """

    position: int
    groups: int
    first: int
    require_same: Callable[[str], None]
    followed: bool = False

    def of(self, count: int) -> range:
        """Return the numbers of the units in turn, of `count` that the node has."""
        self.followed = True
        return range((self.position - self.first) % self.groups, count, self.groups)


_present: ContextVar[UnitsInTurn | None] = ContextVar("turn", default=None)


def present_turn() -> UnitsInTurn | None:
    """Return whose turn it is; None where units take part by coins, or all."""
    return _present.get()


@contextmanager
def in_turn(turn: UnitsInTurn | None) -> Iterator[None]:
    """Say whose turn it is in the block's work."""
    token = _present.set(turn)
    try:
        yield
    finally:
        _present.reset(token)
