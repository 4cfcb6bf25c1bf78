"""A committee member's one answer to a sum: shares of what unmasks the repliers' sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag

from .client import NONCE_BYTES, PIECE_BYTES, bundle_cipher, piece_nonce
from .terms import SumTerms
from .texts import digest, frame


@dataclass(frozen=True)
class Opened:
    """A member's answer.

    Attributes:
        shares: For each replier by place: shares of its self seed, then of its pair seeds with
            neighbours who did not reply, in ascending order, 16 bytes each.
        unreadable: Places of repliers whose bundle does not decrypt; left out of `shares`.
    """

    shares: dict[int, bytes] = field(repr=False)  # not into a node's logs
    unreadable: tuple[int, ...] = ()


def view_text(terms: SumTerms, online: Sequence[int], labels: Mapping[int, bytes]) -> bytes:
    """Return a view as members sign it: the terms, the repliers and labels of their messages.

    Args:
        terms: Of the sum.
        online: Places of the repliers, ascending.
        labels: Of their messages, by place.
    """
    sent = digest("labels", *(labels[place] for place in online))
    return frame("view", terms.hash, sent, *online)


def lost_neighbours(terms: SumTerms, place: int, online: frozenset[int]) -> list[tuple[int, int]]:
    """Return the neighbours of a replier who did not reply, each with its seed's index."""
    near = enumerate(terms.neighbours[place], 1)  # the self seed is the first of all
    return [(at, other) for at, other in near if other not in online]


def opened_seeds(terms: SumTerms, place: int, online: frozenset[int]) -> list[int]:
    """Return the indices of a replier's seeds that a view opens: its own, and with who are gone."""
    return [0, *(at for at, _ in lost_neighbours(terms, place, online))]


def needed_of(bundle: bytes, indices: Iterable[int]) -> bytes:
    """Return the part of a bundle that has the shares of some seeds, ascending."""
    pieces = (bundle[at : at + PIECE_BYTES] for at in _starts(indices))
    return bundle[:NONCE_BYTES] + b"".join(pieces)


def _starts(indices: Iterable[int]) -> list[int]:
    return [NONCE_BYTES + PIECE_BYTES * index for index in indices]


def open_bundles(
    terms: SumTerms,
    member: int,
    online: Sequence[int],
    labels: Mapping[int, bytes],
    bundles: Mapping[int, bytes],
    root: Callable[[int], bytes],
) -> tuple[dict[int, bytes], tuple[int, ...]]:
    """Return a member's shares of what the repliers' sum needs, and whose bundles don't decrypt.

    Of each replier it is the self seed and the pair seeds with those who are gone: never both
    masks of one client under one view. All that has to be checked before is checked by the caller.

    Args:
        terms: Of the sum.
        member: The member's place.
        online: Places of the repliers.
        labels: Of their messages, which bundles are bound to.
        bundles: What is needed of those for this member (`needed_of`), by the replier's place.
        root: Secret that the member shares with a place.
    """
    alive, shares, unreadable = frozenset(online), {}, []
    for place in online:
        sealed, wanted = bundles.get(place, b""), opened_seeds(terms, place, alive)
        if len(sealed) != NONCE_BYTES + PIECE_BYTES * len(wanted):
            unreadable.append(place)
            continue
        pieces = zip(wanted, _starts(range(len(wanted))), strict=True)
        nonce, cipher = sealed[:NONCE_BYTES], bundle_cipher(root(place), terms, place, member)
        bound = terms.hash + labels[place]
        try:
            shares[place] = b"".join(
                cipher.decrypt(piece_nonce(nonce, index), sealed[at : at + PIECE_BYTES], bound)
                for index, at in pieces
            )
        except InvalidTag:
            unreadable.append(place)
    return shares, tuple(unreadable)
