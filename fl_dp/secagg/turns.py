"""A node's memory of turns: positions of its units, the list of its records, and visits.

Positions are for one training, over all runs of its server: a unit that changed its position would
be visited again before the noise of its last visit has left the sums, and more often than the
server has charged. A training stays known when its runs have ended: it may go on. Forgetting any of
it makes the node charge more, never less.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from .store import Mark, SQLiteStore
from .terms import Refused
from .texts import canonical
from .turn import Turn

_ROLE, _VISIT, _CHARGE = "turn", "turn-visit", "turn-charge"  # of marks: the index of a sum, and 1
_TRAINING = "training"  # of a run
_POSITIONS, _RECORDS, _VISITS = "positions", "records", "visits"  # and the training

Price = tuple[str, float]
"""What is charged for besides noise (unit, neighbours), and the noise multiplier."""


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
        """Fix a run's training, and the node's own position in it; refuse others from then on.

        In another training of the same run a unit would have another position, and be visited again
        before the noise of its last visit has left the sums.

        Args:
            rank: Of the node among all, in an order that lasts.
            nodes: How many there are.

        Raises:
            Refused: `terms`, for another training, or another number of positions.
        """
        training = self._turn.training.encode()
        if self._store.first(_TRAINING, training, run=self._run) != training:
            raise Refused("terms", "this run is of another training, whose positions differ")
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
        self._store.mark(self._run, _ROLE, self._turn.index + 1, Mark(terms_hash))

    @property
    def first(self) -> int:
        """The position of the node's first unit; that of its j-th is j further on."""
        kept = self._store.get(None, self._key(_POSITIONS))
        assert kept is not None  # since `check`
        return int(json.loads(kept)[1])

    def costs(self, terms_hash: bytes, price: Price) -> bool:
        """Note a visit, and return whether no earlier charge of other positions' visits covers it.

        Each visit of a position has a charge to itself, of as little noise or less, and charges of
        one position do for all others. A visit that was noted and never charged, by a crash or a
        budget that ended, needs one all the same.

        Raises:
            Refused: `stale`, if a later visit was noted.
        """
        kind, multiplier = price
        self._store.mark(self._run, _VISIT, self._turn.index + 1, _mark_of(terms_hash, price))
        visits, charges = self._visits_and_charges()
        position = self._turn.position
        same = [each[1] for at, each in visits if at == position and each[0] == kind]
        paid = [each for what, each in charges if what == kind]
        return any(
            sum(each <= level for each in same) > sum(each <= level for each in paid)
            for level in same
            if level >= multiplier
        )

    def charged(self, terms_hash: bytes, price: Price) -> None:
        """Note that a visit was charged, once that is on disk."""
        with suppress(Refused):  # of two at once the earlier one is charged and not counted
            mark = _mark_of(terms_hash, price)
            self._store.mark(self._run, _CHARGE, self._turn.index + 1, mark)

    def _visits_and_charges(self) -> tuple[list[tuple[int, Price]], list[Price]]:
        """Return the visits of positions in all runs of the training, and the charges."""
        training = self._turn.training
        found = {
            key: json.loads(self._store.get(None, key) or b"[[], []]")
            for key in self._store.lasting_keys()
            if key.startswith(f"{_VISITS} {training} ")
        }
        for run in {self._run, *self._store.runs()}:  # what was kept of one that ends is of less
            if run == self._run or self._store.get(run, _TRAINING) == training.encode():
                found[f"{_VISITS} {training} {run}"] = _of_run(self._store, run)
        visits = [
            (index % self._turn.groups, _price_of(text))
            for indices, _ in found.values()
            for index, text in indices
        ]
        return visits, [_price_of(text) for _, charges in found.values() for text in charges]

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
    """Keep the visits and charges of a run that ends, for other runs of its training.

    As often as it is asked, and however far it came before.
    """
    if (training := store.get(run, _TRAINING)) is None:
        return
    visits, charges = _of_run(store, run)
    if visits:
        told = canonical([visits, charges]).encode()
        store.put(None, f"{_VISITS} {training.decode()} {run}", told)


def _of_run(store: SQLiteStore, run: int) -> list[list[Any]]:
    """Return a run's visits, by index, and its charges; each with its price as text."""
    # Charges first: one that is added in between is not counted, and its visit is.
    charges = [mark.view.decode() for mark in store.marks(run, _CHARGE).values()]
    visits = store.marks(run, _VISIT).items()
    return [[[number - 1, mark.view.decode()] for number, mark in visits], charges]


def _mark_of(terms_hash: bytes, price: Price) -> Mark:
    kind, multiplier = price
    return Mark(terms_hash, canonical([kind, multiplier.hex()]).encode())


def _price_of(text: str) -> Price:
    kind, multiplier = json.loads(text)
    return kind, float.fromhex(multiplier)
