"""Keys of a node: its identity, which signs, and its key for one run, which hides values."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fl_dp.files import write_text

from .texts import frame, prf

KEY_BYTES = 32  # of every public key
SIGNATURE_BYTES = 64
_OTHERS = 0o077


class Identity:
    """A node's signing key, Ed25519, which outlives runs."""

    def __init__(self, key: ed25519.Ed25519PrivateKey) -> None:
        """Store the key."""
        self._key = key

    @classmethod
    def generate(cls) -> Self:
        """A fresh identity."""
        return cls(ed25519.Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """Read an identity.

        Raises:
            ValueError: The text is no Ed25519 key in PEM without a password.
        """
        try:
            key = load_pem_private_key(pem, password=None)
        except (TypeError, ValueError, UnsupportedAlgorithm) as error:
            raise ValueError("an identity is an Ed25519 key in PEM without a password") from error
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise ValueError(f"an identity is an Ed25519 key, got {type(key).__name__}")
        return cls(key)

    @classmethod
    def load_or_create(cls, file: str | Path) -> Self:
        """Read a node's identity, or make one that only the owner can read (mode 0600).

        The file's folder must exist. Keep a copy: another identity needs a new roster.

        Raises:
            ValueError: Others can read the file, or it holds no identity.
            OSError: It can't be read or made.
        """
        file = Path(file)
        if not file.exists():
            # Linked, not renamed: of two processes that make one, both read the first one's.
            fresh = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
            write_text(fresh, cls.generate().to_pem().decode())
            try:
                file.hardlink_to(fresh)
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
        if os.name == "posix" and file.stat().st_mode & _OTHERS:
            raise ValueError(f"{file} is a secret key that others can read: chmod 600 it")
        try:
            return cls.from_pem(file.read_bytes())
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error

    @property
    def public(self) -> bytes:
        """The public half, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    def to_pem(self) -> bytes:
        """The secret key as PKCS #8 PEM, not encrypted."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign(self, text: bytes) -> bytes:
        """The signature of a text, 64 bytes."""
        return self._key.sign(text)

    def sealed(self, label: str, *parts: bytes | int) -> bytes:
        """A code of some parts, 32 bytes, that only the secret half can make."""
        return prf(self._key.private_bytes_raw(), f"sealed {label}", *parts)


class RunKey:
    """A node's key for one run, X25519. It is deleted with the run: old sums stay closed.

    Attributes:
        public: The public half, 32 bytes.
    """

    def __init__(self, key: x25519.X25519PrivateKey) -> None:
        """Store the key."""
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Self:
        """A fresh key."""
        return cls(x25519.X25519PrivateKey.generate())

    @classmethod
    def from_secret(cls, secret: bytes) -> Self:
        """Read what `secret` wrote."""
        return cls(x25519.X25519PrivateKey.from_private_bytes(secret))

    @property
    def secret(self) -> bytes:
        """The secret half, 32 bytes, for the node's store alone."""
        return self._key.private_bytes_raw()

    def root(self, other: bytes, *indices: int, shared_context: bytes = b"") -> bytes:
        """Return the secret that two nodes share, 32 bytes: HKDF-SHA256 of the X25519 secret.

        Args:
            other: The other's public run key. One's own gives a secret that nobody else knows.
            *indices: Both nodes' indices, in any order.
            shared_context: Digest of what both were told besides. Another gives another secret.

        Raises:
            ValueError: The other key is of low order: the secret would be public.
        """
        shared = self._key.exchange(x25519.X25519PublicKey.from_public_bytes(other))
        info = frame("root", *sorted(indices))
        salt = shared_context or None
        return HKDF(hashes.SHA256(), KEY_BYTES, salt=salt, info=info).derive(shared)


def is_signed(identity: bytes, signature: bytes, text: bytes) -> bool:
    """Tell whether an identity signed a text."""
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(identity).verify(signature, text)
    except (InvalidSignature, ValueError):  # ValueError: no key at all
        return False
    return True
