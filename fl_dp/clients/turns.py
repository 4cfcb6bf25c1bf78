"""The turn of a node's units, where the noise of secure sums has memory.

Whoever sums the units finds it here, as it finds its slots: it is the node's own, and no message
says where a node's first unit stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from fl_dp.secagg import Refused


@dataclass(kw_only=True)
class UnitsInTurn:
    """Units whose turn it is.

    Attributes:
        position: Whose turn it is.
        groups: Positions in all.
        first: Position of the node's first unit.
        check: Of a fingerprint of the list of records, which stays the same for the training.
        followed: Whether the work has asked whose turn it is.
        changed: Whether the list was found to be another one.
    """

    position: int
    groups: int
    first: int
    check: Callable[[str], None]
    followed: bool = False
    changed: bool = False

    def require_same(self, fingerprint: str) -> None:
        """Check a fingerprint of the list of records.

        Raises:
            Refused: `policy`, if it is not the one that the training began with.
        """
        try:
            self.check(fingerprint)
        except Refused:
            self.changed = True  # user code could raise the same, for a reason in its data
            raise

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
