"""Inclusion receipts: a client's message, unchanged and once, is in the only sum that was opened.

Members sign the Merkle root of the repliers' labels. `threshold` signatures of one view mean that
too few honest members are left to open any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

Steps = tuple[tuple[bytes, bool], ...]
"""From a leaf to the root: the other node's hash, and whether that one stands left."""


class MerkleTree:
    """Hash tree over labels; an odd last node goes up as it is."""

    def __init__(self, labels: Sequence[bytes]) -> None:
        """Build it.

        Args:
            labels: At least one, in ascending order of their senders' places.
        """
        raise NotImplementedError

    @property
    def root(self) -> bytes:
        """The top, 32 bytes."""
        raise NotImplementedError

    def path(self, index: int) -> Steps:
        """Return the steps from one label to the root."""
        raise NotImplementedError


def view_text(terms_hash: bytes, root: bytes, online: Sequence[int]) -> bytes:
    """Return what members sign: terms, Merkle root of the labels, and repliers, ascending."""
    raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Proof for one client.

    Attributes:
        number: Of the sum.
        terms_hash: Of its terms.
        online: Places of the repliers.
        root: Of their labels.
        path: From the client's label to the root.
        signatures: Of the view, by member's place.
    """

    number: int
    terms_hash: bytes
    online: tuple[int, ...]
    root: bytes
    path: Steps
    signatures: Mapping[int, bytes]

    def to_json(self) -> str:
        """Return it as JSON text."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError: If it is anything else.
        """
        raise NotImplementedError

    def includes(self, place: int, label: bytes) -> bool:
        """Tell whether a label is that of a place in the view; signatures are not looked at."""
        raise NotImplementedError
