"""A committee member's one answer to a sum: the shares that unmask the repliers' sum."""

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
        shares: By replier: its self seed's share, then those of its pair seeds with lost
            neighbours, in ascending order, 16 bytes each.
        unreadable: Repliers whose bundle does not decrypt. `shares` lacks them.
    """

    shares: dict[int, bytes] = field(repr=False)  # not into a node's logs
    unreadable: tuple[int, ...] = ()


def view_text(terms: SumTerms, online: Sequence[int], labels: Mapping[int, bytes]) -> bytes:
    """A view as members sign it: terms, repliers and their messages' labels."""
    messages = digest("labels", *(labels[client] for client in online))
    return frame("view", terms.hash, messages, *online)


def lost_neighbours(terms: SumTerms, client: int, online: frozenset[int]) -> list[tuple[int, int]]:
    """A replier's neighbours who did not reply, each with its seed's index."""
    neighbours = enumerate(terms.neighbours[client], 1)  # the self seed is the first of all
    return [(index, other) for index, other in neighbours if other not in online]


def opened_seeds(terms: SumTerms, client: int, online: frozenset[int]) -> list[int]:
    """Indices of a replier's seeds that a view opens: its own, and those with lost neighbours."""
    return [0, *(index for index, _ in lost_neighbours(terms, client, online))]


def needed_of(bundle: bytes, indices: Iterable[int]) -> bytes:
    """A bundle's nonce and its shares of some seeds, whose indices ascend."""
    pieces = (bundle[start : start + PIECE_BYTES] for start in _starts(indices))
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
    """Return a member's shares of the seeds that the repliers' sum needs, and unreadable bundles.

    For each replier: the self seed and the pair seeds with lost neighbours, never both masks of
    one client under one view. The caller has done all checks.

    `online` are the repliers' indices. `labels` are their messages' labels, to which bundles are
    bound. `bundles` has what the member needs of each (`needed_of`). `root` returns the secret
    that the member shares with a node.
    """
    alive, shares, unreadable = frozenset(online), {}, []
    for client in online:
        sealed, indices = bundles.get(client, b""), opened_seeds(terms, client, alive)
        if len(sealed) != NONCE_BYTES + PIECE_BYTES * len(indices):
            unreadable.append(client)
            continue
        nonce, cipher = sealed[:NONCE_BYTES], bundle_cipher(root(client), terms, client, member)
        bound = terms.hash + labels[client]
        pieces = []
        try:
            for index, start in zip(indices, _starts(range(len(indices))), strict=True):
                piece = sealed[start : start + PIECE_BYTES]
                pieces.append(cipher.decrypt(piece_nonce(nonce, index), piece, bound))
        except InvalidTag:
            unreadable.append(client)
        else:
            shares[client] = b"".join(pieces)
    return shares, tuple(unreadable)
