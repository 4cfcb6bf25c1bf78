"""Receipts: a client's message, unchanged and once, is in the only sum that was opened, or in none.

Members sign the Merkle root of the repliers' labels. `threshold` signatures of one view mean that
too few honest members are left to open any other: neither another sum, nor the message of a client
who is not among the repliers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Self

from .key_pairs import KEY_BYTES, SIGNATURE_BYTES
from .texts import (
    canonical,
    digest,
    frame,
    hex_bytes,
    object_of,
    require_integers,
)

_MOST_PLACES = 2**32 - 1
_MOST_NUMBERS = 2**63 - 1
_LONGEST, _LONGEST_SPAN = 50_000, 24  # characters: of signatures and path, and of one span


@lru_cache(maxsize=4)  # the same for everybody's receipts of a sum
def _spans(places: tuple[int, ...]) -> list[list[int]]:
    """Return ascending places as spans [first, last]."""
    starts = [at for at in range(1, len(places)) if places[at] != places[at - 1] + 1]
    ends = pairwise([0, *starts, len(places)])
    return [[places[first], places[end - 1]] for first, end in ends if end > first]


def _places(spans: list[list[Any]], count: int) -> tuple[int, ...]:
    """Return the places of spans, all below `count`.

    Raises:
        ValueError: If they are not what `_spans` returns.
    """
    after = -1
    for first, last in spans:  # before any is walked: a short text can stand for a million
        require_integers(max(0, after), count - 1, online=first)
        require_integers(first, count - 1, online=last)
        # One text for one set: spans that touch would be one.
        if first <= after:
            raise ValueError("online must be spans that do not touch")
        after = last + 1
    return tuple(place for first, last in spans for place in range(first, last + 1))


class MerkleTree:
    """Hash tree over labels; an odd last node goes up as it is.

    Attributes:
        root: The top, 32 bytes.
    """

    def __init__(self, labels: Sequence[bytes]) -> None:
        """Build it.

        Args:
            labels: At least one, in ascending order of their senders' places.
        """
        self._levels = [[digest("leaf", label) for label in labels]]
        while len(below := self._levels[-1]) > 1:
            pairs = [below[at : at + 2] for at in range(0, len(below), 2)]
            # An odd one is not doubled: two lists of labels would have one root.
            self._levels.append([digest("node", *p) if len(p) == 2 else p[0] for p in pairs])
        self.root = self._levels[-1][0]

    def path(self, index: int) -> tuple[bytes, ...]:
        """Return the other node at each level from a label to the root, where there is one."""
        path = []
        for level in self._levels[:-1]:
            if index ^ 1 < len(level):
                path.append(level[index ^ 1])
            index >>= 1
        return tuple(path)


def root_over(label: bytes, index: int, count: int, path: Sequence[bytes]) -> bytes | None:
    """Return the root that a path leads to from one of `count` labels; None if it does not fit.

    The index alone says which side each step is on: a label can't pass for another sender's.
    """
    node, steps = digest("leaf", label), list(path)
    while count > 1:
        if index ^ 1 < count:
            if not steps:
                return None
            other = steps.pop(0)
            node = digest("node", other, node) if index & 1 else digest("node", node, other)
        index, count = index >> 1, (count + 1) // 2
    return None if steps else node


def view_text(terms_hash: bytes, root: bytes, online: Sequence[int]) -> bytes:
    """Return what members sign: terms, Merkle root of the labels, and repliers, ascending."""
    return frame("view", terms_hash, root, *online)


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Proof for one client.

    Attributes:
        number: Of the sum.
        terms_hash: Of its terms.
        online: Places of the repliers, ascending.
        root: Of their labels.
        path: From the client's label to the root; empty for one that is not among the repliers.
        signatures: Of the view, by member's place.
    """

    number: int
    terms_hash: bytes
    online: tuple[int, ...]
    root: bytes
    path: tuple[bytes, ...]
    signatures: Mapping[int, bytes]

    def to_json(self) -> str:
        """Return it as JSON text, with the repliers as spans from one place to another."""
        return canonical(
            {
                "number": self.number,
                "terms_hash": self.terms_hash.hex(),
                "online": _spans(self.online),
                "root": self.root.hex(),
                "path": [step.hex() for step in self.path],
                "signatures": [[place, each.hex()] for place, each in self.signatures.items()],
            }
        )

    @classmethod
    def from_json(cls, text: str, *, places: int) -> Self:
        """Read what `to_json` wrote.

        Args:
            text: Of a peer.
            places: Entries of the directory: every replier has one.

        Raises:
            ValueError: If it is anything else.
        """
        keys = ("number", "terms_hash", "online", "root", "path", "signatures")
        fields = object_of(text, keys, "receipts", longest=_LONGEST + _LONGEST_SPAN * places)
        require_integers(1, _MOST_NUMBERS, number=fields["number"])
        lists = [fields[name] for name in ("online", "path", "signatures")]
        spans, pairs = fields["online"], fields["signatures"]
        if not all(isinstance(each, list) for each in lists) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in (*spans, *pairs)
        ):
            raise ValueError("online, path and signatures must be lists, online and those of pairs")
        for place, _ in pairs:
            require_integers(0, _MOST_PLACES, signatures=place)
        return cls(
            number=fields["number"],
            terms_hash=hex_bytes(fields["terms_hash"], KEY_BYTES, "terms_hash"),
            online=_places(spans, places),
            root=hex_bytes(fields["root"], KEY_BYTES, "root"),
            path=tuple(hex_bytes(step, KEY_BYTES, "path") for step in fields["path"]),
            signatures={
                place: hex_bytes(each, SIGNATURE_BYTES, "signatures") for place, each in pairs
            },
        )

    @property
    def view(self) -> bytes:
        """The text that its signatures are of."""
        return view_text(self.terms_hash, self.root, self.online)

    def accounts_for(self, terms_hash: bytes, place: int, label: bytes) -> bool:
        """Tell whether it is of these terms, and its view has this label at a place, or nothing."""
        if terms_hash != self.terms_hash:
            return False
        return not self.has(place) or self.includes(place, label)

    def has(self, place: int) -> bool:
        """Tell whether a place is among the repliers."""
        at = bisect_left(self.online, place)
        return at < len(self.online) and self.online[at] == place

    def includes(self, place: int, label: bytes) -> bool:
        """Tell whether a label is that of a place in the view; signatures are not looked at."""
        if not self.has(place):
            return False
        at = bisect_left(self.online, place)
        return root_over(label, at, len(self.online), self.path) == self.root
