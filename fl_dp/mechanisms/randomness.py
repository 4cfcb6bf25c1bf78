"""The one source of randomness for noise, sampling coins and every other secret choice.

AES-256 in counter mode, keyed by the operating system. A forked process draws a key of its own, so
that two workers never share a stream. NumPy's and torch's generators are predictable from their
output and belong in simulations only, never in a privacy mechanism.

    >>> rng = SecureRandom()
    >>> rng.bernoulli(0.25, 8)  # eight secret coins
"""

from __future__ import annotations

import os
import secrets
import threading

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray


class SecureRandom:
    """A cryptographic stream of words, uniforms and coins; safe across threads and forks."""

    kind = "aes-256-ctr, keyed by the operating system"

    def __init__(self) -> None:
        """Key a fresh stream from the operating system."""
        self._lock = threading.Lock()
        self._pid = -1
        self._stream: CipherContext | None = None

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return `count` independent uniform 64-bit words, shape `(count,)`."""
        with self._lock:
            if self._stream is None or self._pid != os.getpid():
                self._stream = Cipher(
                    algorithms.AES(secrets.token_bytes(32)), modes.CTR(bytes(16))
                ).encryptor()
                self._pid = os.getpid()
            return np.frombuffer(self._stream.update(bytes(8 * count)), dtype=np.uint64)

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """Return `count` uniforms in the open interval (0, 1), on the grid of odd / 2^54."""
        return ((self.words(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def bernoulli(self, probability: float, count: int) -> NDArray[np.bool_]:
        """Return `count` independent coins, each true with at most `probability`.

        The probability is rounded down to a multiple of 2^-53: never more than what was charged.

        Raises:
            ValueError: If `probability` is outside [0, 1].
        """
        if not 0.0 <= probability <= 1.0:
            raise ValueError(f"probability must lie in [0, 1], got {probability}")
        threshold = np.uint64(int(probability * 2.0**53))
        coins: NDArray[np.bool_] = (self.words(count) >> np.uint64(11)) < threshold
        return coins
