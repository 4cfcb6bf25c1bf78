"""A node's memory of turns: positions of its units, the list of its records, and visits.

Positions are for one training, over all runs of its server: a unit that changed its position would
be visited again before the noise of its last visit has left the sums. Forgetting any of it makes
the node charge more, never less.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress

from .store import Mark, SQLiteStore
from .terms import Refused
from .texts import canonical
from .turn import Turn

_ROLE, _CHARGE = "turn", "turn-charge"  # of marks: the index of a sum, and one
_TRAINING = "training"  # of a run
_POSITIONS, _RECORDS, _VISITS = "positions", "records", "visits"  # and the training


class Turns:
    """What a node remembers of the training that a turn is of."""

    def __init__(self, store: SQLiteStore, run: int, turn: Turn) -> None:
        """Look at a turn.

        Args:
            store: The node's.
            run: Of the turn's sum.
            turn: Of the sum.
        """
        self._store, self._run, self._turn = store, run, turn

    def check(self, rank: int, nodes: int) -> None:
        """Refuse another number of positions than the training had, and fix the node's own first.

        Args:
            rank: Of the node among all, in an order that lasts.
            nodes: How many there are.

        Raises:
            Refused: `terms`.
        """
        first = rank * self._turn.groups // nodes
        own = canonical([self._turn.groups, first]).encode()
        groups, _ = json.loads(self._store.first(self._key(_POSITIONS), own))
        if groups != self._turn.groups:
            raise Refused(
                "terms", f"this training had {groups} positions, and now {self._turn.groups}"
            )

    def take(self, terms_hash: bytes) -> None:
        """Mark the index as used: neither it nor any before it is answered again in this run.

        Raises:
            Refused: `stale`, if it was.
        """
        self._store.put(self._run, _TRAINING, self._turn.training.encode())
        self._store.mark(self._run, _ROLE, self._turn.index + 1, Mark(terms_hash))

    @property
    def first(self) -> int:
        """The position of the node's first unit; that of its j-th is j further on."""
        kept = self._store.get(None, self._key(_POSITIONS))
        assert kept is not None  # since `check`
        return int(json.loads(kept)[1])

    @property
    def costs(self) -> bool:
        """Whether this visit makes more of its position than was charged: of others it is part.

        A visit that was marked and never charged, by a crash, counts as one all the same.
        """
        training = self._turn.training
        visits, charges = _carried_over(self._store, training)
        for run in self._store.runs():
            if self._store.get(run, _TRAINING) == training.encode():
                before = self._turn.index if run == self._run else None
                visits += _visits_of(self._store, run, self._turn.groups, before=before)
                charges += len(self._store.marks(run, _CHARGE))
        return visits[self._turn.position] + 1 > charges

    def charged(self, terms_hash: bytes) -> None:
        """Note that a visit was charged, once that is on disk."""
        with suppress(Refused):  # of two at once the earlier one is charged and not counted
            self._store.mark(self._run, _CHARGE, self._turn.index + 1, Mark(terms_hash))

    def require_same_records(self, fingerprint: str) -> None:
        """Refuse another list of records than the training began with.

        Args:
            fingerprint: Of the list, its order included.

        Raises:
            Refused: `policy`.
        """
        if self._store.first(self._key(_RECORDS), fingerprint.encode()) != fingerprint.encode():
            raise Refused(
                "policy",
                "the node's records are not those that this training began with: with noise that "
                "has memory each record has its turns by its place in the list. Put them back, or "
                "start another training",
            )

    def _key(self, what: str) -> str:
        return f"{what} {self._turn.training}"


def forget_turns(store: SQLiteStore, run: int) -> None:
    """Forget the training of a run that ends, unless another run goes on with it."""
    kept = store.get(run, _TRAINING)
    if kept is None:
        return
    training = kept.decode()
    if any(store.get(each, _TRAINING) == kept for each in store.runs() if each != run):
        # Visits and charges of both count together.
        groups = json.loads(store.get(None, f"{_POSITIONS} {training}") or b"[1, 0]")[0]
        visits, charges = _carried_over(store, training)
        visits += _visits_of(store, run, groups)
        charges += len(store.marks(run, _CHARGE))
        told = canonical([sorted(visits.items()), charges])
        store.put(None, f"{_VISITS} {training}", told.encode())
        return
    for what in (_POSITIONS, _RECORDS, _VISITS):
        store.drop(f"{what} {training}")


def _visits_of(
    store: SQLiteStore, run: int, groups: int, *, before: int | None = None
) -> Counter[int]:
    """Return the visits of each position in a run, before an index if one is given."""
    indices = (number - 1 for number in store.marks(run, _ROLE))
    return Counter(index % groups for index in indices if before is None or index < before)


def _carried_over(store: SQLiteStore, training: str) -> tuple[Counter[int], int]:
    """Return the visits of each position in runs that are over, and the charges."""
    kept = store.get(None, f"{_VISITS} {training}")
    visits, charges = ([], 0) if kept is None else json.loads(kept)
    return Counter(dict(visits)), int(charges)
