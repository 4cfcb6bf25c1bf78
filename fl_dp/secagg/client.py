"""A client's one message to a sum: masked values, and shares of its seeds for the committee."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from .masks import SEED_BYTES, add_mask, pack, packed_bytes, word_dtype
from .shares import split
from .terms import SumTerms
from .texts import digest, prf

COMMITMENT_BYTES = 16
NONCE_BYTES = 8  # drawn for a message; a share's index completes the cipher's nonce
TAG_BYTES = 16
PIECE_BYTES = SEED_BYTES + TAG_BYTES  # of one share in a bundle


@dataclass(frozen=True)
class MaskedMessage:
    """All that a client sends for a sum.

    Attributes:
        masked: Packed, masked values; `packed_bytes(bits, size)` bytes.
        bundles: For each member in order, a nonce and the seeds' shares. Shares are encrypted one
            by one: the server hands on only those that a view needs.
        commitments: Commitments to the self seed and each pair seed, 16 bytes each.
    """

    masked: bytes
    bundles: list[bytes]
    commitments: bytes

    @property
    def label(self) -> bytes:
        """Hash of the masked values, 32 bytes. Bundles are bound to it."""
        return digest("masked", hashlib.sha256(self.masked).digest())

    def fits(self, terms: SumTerms, client: int) -> bool:
        """Tell whether it has the form of a client's message."""
        seeds = 1 + len(terms.neighbours[client])
        bundle_bytes = NONCE_BYTES + PIECE_BYTES * seeds
        return (
            len(self.masked) == packed_bytes(terms.bits, terms.size)
            and [len(bundle) for bundle in self.bundles] == [bundle_bytes] * len(terms.committee)
            and len(self.commitments) == COMMITMENT_BYTES * seeds
        )


def commitment(seed: bytes, terms: SumTerms, client: int) -> bytes:
    """A client's commitment to a seed, 16 bytes, which verifies a combined seed.

    It depends on sum and client: a guess can't be compared with all clients' at once.
    """
    return prf(seed, "commit", terms.hash, client)[:COMMITMENT_BYTES]


def piece_nonce(nonce: bytes, index: int) -> bytes:
    """The cipher's nonce, 12 bytes, for the share of seed `index`."""
    return nonce + index.to_bytes(4, "big")


def pair_seed(root: bytes, terms_hash: bytes, client: int, other: int) -> bytes:
    """The seed, 16 bytes, of two clients' common mask in one sum."""
    return prf(root, "pair", terms_hash, *sorted((client, other)))[:SEED_BYTES]


def sign_of(client: int, other: int) -> int:
    """The sign with which a client adds the mask that it shares with another."""
    return 1 if client < other else -1


def bundle_cipher(root: bytes, terms: SumTerms, client: int, member: int) -> AESGCM:
    """The cipher between a client and a member, for one sum and direction."""
    return AESGCM(prf(root, "bundle", terms.hash, client, member))


@dataclass(eq=False)
class Participation:
    """A client's part in one sum, from its mark on disk to its message. Usable once.

    Attributes:
        client: Its index in the directory.
    """

    terms: SumTerms
    client: int
    _root: Callable[[int], bytes] = field(repr=False)  # the secret that it shares with a node
    _used: bool = field(default=False, init=False)

    def message(self, values: NDArray[np.int64]) -> MaskedMessage:
        """Mask the values, noise included, and share the seeds.

        Values are in grid steps, int64 of shape `(terms.size,)`, taken modulo 2^bits.

        Raises:
            RuntimeError: On a second call: two messages under one mask reveal a difference.
            ValueError: Wrong shape or dtype.
        """
        if values.shape != (self.terms.size,) or values.dtype != np.int64:
            raise ValueError(
                f"values must be int64 of shape ({self.terms.size},), got {values.dtype} of shape "
                f"{values.shape}"
            )
        if self._used:
            raise RuntimeError("a participation sends one message")
        self._used = True
        terms, client = self.terms, self.client
        neighbours = terms.neighbours[client]
        own = secrets.token_bytes(SEED_BYTES)
        pairs = [pair_seed(self._root(other), terms.hash, client, other) for other in neighbours]
        # y = x + PRG(own) + sum over j of sign(i, j) PRG(s_ij) mod 2^b (Bonawitz et al. 2017).
        total = values.astype(word_dtype(terms.bits))  # wraps
        add_mask(total, own, sign=1)
        for other, seed in zip(neighbours, pairs, strict=True):
            add_mask(total, seed, sign=sign_of(client, other))
        committed = b"".join(commitment(seed, terms, client) for seed in (own, *pairs))
        message = MaskedMessage(pack(total, terms.bits), [], committed)
        bound = terms.hash + message.label
        shares = split(b"".join((own, *pairs)), terms.threshold, len(terms.committee))
        nonce = secrets.token_bytes(NONCE_BYTES)  # one for all members, as each has its own key
        nonces = [piece_nonce(nonce, index) for index in range(1 + len(pairs))]
        for member, share in zip(terms.committee, shares, strict=True):
            cipher = bundle_cipher(self._root(member), terms, client, member)
            starts = range(0, len(share), SEED_BYTES)
            pieces = (share[start : start + SEED_BYTES] for start in starts)
            sealed = map(cipher.encrypt, nonces, pieces, itertools.repeat(bound))
            message.bundles.append(nonce + b"".join(sealed))
        return message
