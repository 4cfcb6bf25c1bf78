"""Keys of nodes, the directory of a run that holds the public ones, and the roster of owners.

A node has an identity (Ed25519) for ever and a run key (X25519) for one run. The directory of a run
lists both for every node, each entry signed; a node's place in it is its name within sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric import ed25519, x25519


class Identity:
    """A node's signing key, Ed25519, which outlives runs. It keeps its secret out of `repr`."""

    def __init__(self, key: ed25519.Ed25519PrivateKey) -> None:
        """Take a key.

        Args:
            key: Its secret half.
        """
        self._key = key

    @classmethod
    def generate(cls) -> Self:
        """Return a fresh identity."""
        raise NotImplementedError

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """Read an identity.

        Raises:
            ValueError: If it is no Ed25519 key in PEM.
        """
        raise NotImplementedError

    @classmethod
    def load_or_create(cls, file: Path) -> Self:
        """Read a node's identity, or make one that only the owner reads (mode 0600).

        Raises:
            ValueError: If others can read the file, or it is no identity.
            OSError: If it can't be read or made.
        """
        raise NotImplementedError

    @property
    def public(self) -> bytes:
        """The public half, 32 bytes."""
        raise NotImplementedError

    def to_pem(self) -> bytes:
        """Return the secret key as PKCS #8 PEM, not encrypted."""
        raise NotImplementedError

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text, 64 bytes."""
        raise NotImplementedError


class RunKey:
    """A node's key for one run, X25519: deleted with the run, so that old sums stay closed."""

    def __init__(self, key: x25519.X25519PrivateKey) -> None:
        """Take a key.

        Args:
            key: Its secret half.
        """
        self._key = key

    @classmethod
    def generate(cls) -> Self:
        """Return a fresh key."""
        raise NotImplementedError

    @classmethod
    def from_bytes(cls, secret: bytes) -> Self:
        """Read what `secret` wrote."""
        raise NotImplementedError

    @property
    def public(self) -> bytes:
        """The public half, 32 bytes."""
        raise NotImplementedError

    @property
    def secret(self) -> bytes:
        """The secret half, 32 bytes, for the node's store alone."""
        raise NotImplementedError

    def root(self, other: bytes, mine: int, others: int) -> bytes:
        """Return the secret that two places share, 32 bytes.

        Args:
            other: Public run key of the other.
            mine: One's own place.
            others: The other's place; one's own for what nobody else knows.

        Raises:
            ValueError: If the other's key is one of those that fix the secret.
        """
        raise NotImplementedError


def signed(identity: bytes, signature: bytes, text: bytes) -> bool:
    """Tell whether a signature of a text is an identity's."""
    raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A node in the directory of a run.

    Attributes:
        name: Under which its owner is known, printable, at most 200 characters.
        identity: Public Ed25519 key, 32 bytes.
        run_key: Public X25519 key, 32 bytes.
        signature: The identity's, 64 bytes, over run, epoch, name and both keys.
        epoch: Of the directory that it first stands in.
    """

    name: str
    identity: bytes
    run_key: bytes
    signature: bytes
    epoch: int

    def to_dict(self) -> dict[str, str | int]:
        """Return it with bytes in hex, as JSON and a ConfigRecord take it."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, fields: object) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: If it is anything else.
        """
        raise NotImplementedError

    def is_signed(self, run: int) -> bool:
        """Tell whether it is signed for this run."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Directory:
    """Everybody's public keys in one run. A node's place is the index of its entry.

    Attributes:
        run: Flower's run id.
        epoch: 0, and one more each time that entries are appended.
        roster_hash: Of the roster that the server knows the nodes by, in hex; empty: none.
        entries: Those of epoch 0, then those of epoch 1, ...; within an epoch by identity.
    """

    run: int
    epoch: int
    roster_hash: str
    entries: tuple[Entry, ...]

    @classmethod
    def first(cls, run: int, entries: Sequence[Entry], *, roster_hash: str = "") -> Self:
        """Return the directory of epoch 0, its entries put in order."""
        raise NotImplementedError

    def extended(self, entries: Sequence[Entry]) -> Self:
        """Return the directory of the next epoch, with entries of nodes that are new or lost keys.

        Raises:
            ValueError: If there are none, or one is not of the next epoch.
        """
        raise NotImplementedError

    @property
    def hash(self) -> bytes:
        """What everybody who holds the same directory agrees on, 32 bytes."""
        raise NotImplementedError

    @property
    def current(self) -> tuple[int, ...]:
        """Places that count, ascending: of one identity the last."""
        raise NotImplementedError

    def place_of(self, identity: bytes) -> int:
        """Return the place of an identity's last entry.

        Raises:
            KeyError: If it has none.
        """
        raise NotImplementedError

    def committee(self, size: int, roster: Roster | None = None) -> tuple[int, ...]:
        """Return the places of those who hold shares, ascending.

        All up to 20; else those whom the roster names; else the `size` smallest hashes.

        Args:
            size: How many, where hashes decide.
            roster: Who may choose members.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Check what anybody can: order, signatures, and that no key or name stands for two.

        Raises:
            ValueError: What is wrong.
        """
        raise NotImplementedError

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


@dataclass(frozen=True, kw_only=True)
class Member:
    """A line of the roster.

    Attributes:
        name: Of a node.
        identity: Its public Ed25519 key, 32 bytes.
        committee: Whether people chose it to hold shares.
    """

    name: str
    identity: bytes
    committee: bool = False


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The nodes that owners know of, from a file that each keeps for itself.

    Attributes:
        federation: A name for it.
        members: Each name and identity once.
    """

    federation: str
    members: tuple[Member, ...]

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read `{"federation": ..., "members": [{"name", "identity" (hex), "committee"}]}`.

        Raises:
            OSError: If it can't be read.
            ValueError: If it is no roster, or a name or an identity stands in it twice.
        """
        raise NotImplementedError

    @property
    def hash(self) -> str:
        """Of what it says, in hex: neither the order nor the form of the file matters."""
        raise NotImplementedError

    def allows(self, name: str, identity: bytes) -> bool:
        """Tell whether a name goes with an identity."""
        raise NotImplementedError

    @property
    def chosen(self) -> frozenset[bytes]:
        """Identities that people chose for the committee."""
        raise NotImplementedError
