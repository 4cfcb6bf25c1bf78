"""The one source of randomness for noise, sampling coins and every other secret choice.

AES-256 in counter mode, keyed by the operating system. A forked process draws its own key: two
workers never share a stream. NumPy's and torch's generators are predictable from their output and
belong in simulations, never in a privacy mechanism.

    >>> rng = SecureRandom()
    >>> rng.bernoulli(0.25, 8)  # eight secret coins

Reproducible tests and simulations give a seed. An adversary who knows the seed can subtract the
noise, so such a stream says what it is:

    >>> SecureRandom(insecure_seed=7).kind
    'insecure: AES-256-CTR keyed by a seed'

Real-valued draws keep their relative precision however small they are. A plain uniform can't: its
smallest value is 2^-53, and below 2^-30 only 22 bits distinguish values. Rare outcomes then get
visibly wrong probabilities.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from typing import ClassVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

CHUNK = 1 << 15
"""Number of draws at a time: the work arrays stay in the cache."""

PART = 4 * CHUNK
"""Number of draws whose rare cases are drawn together: a call for a few costs as for hundreds."""

_LN_2 = float(np.log(2.0))
_LONGEST_RUN = 1000  # 2^-1000 is still a normal float64, and no run is ever that long
_ZEROS = memoryview(bytes(8 * CHUNK))  # what is enciphered, by the chunk
_MANTISSA = np.uint64((1 << 52) - 1)
_HALF_TO_ONE = 1022  # biased float64 exponent of the numbers in [1/2, 1)


class SecureRandom:
    """A cryptographic stream of words, reals and coins; safe across threads and forks."""

    SECURE_KIND: ClassVar[str] = "aes-256-ctr, keyed by the operating system"
    INSECURE_KIND: ClassVar[str] = "insecure: AES-256-CTR keyed by a seed"

    def __init__(self, insecure_seed: int | None = None) -> None:
        """Key a fresh stream.

        Args:
            insecure_seed: None: the operating system keys it. A seed is for tests and simulations
                only: its reader knows the noise, so nothing drawn is private. Equal seeds give
                equal streams. A fork copies such a stream.

        Raises:
            ValueError: If the seed is not an integer from 0 on.
        """
        if insecure_seed is not None and (
            isinstance(insecure_seed, bool)
            or not isinstance(insecure_seed, int)
            or insecure_seed < 0
        ):
            # The seed itself stays out of messages: they end up in logs.
            raise ValueError("insecure_seed must be an integer from 0 on, or None for a secret key")
        self._lock = threading.Lock()
        self._pid = -1
        self._stream: CipherContext | None = None
        self._insecure = insecure_seed is not None
        if insecure_seed is not None:
            self._stream = _stream(hashlib.sha256(b"%d" % insecure_seed).digest())

    @property
    def insecure(self) -> bool:
        """Whether a seed keys the stream: then nothing drawn from it is private."""
        return self._insecure

    @property
    def kind(self) -> str:
        """The key's source, in words for the ledger; never the key or the seed."""
        return self.INSECURE_KIND if self._insecure else self.SECURE_KIND

    def words(self, count: int, *, room: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
        """`count` independent uniform 64-bit words, shape `(count,)`.

        `room` is memory for them, at least two words longer: the cipher needs another block.
        """
        drawn = np.empty(count + 2, dtype=np.uint64) if room is None else room
        memory = drawn.view(np.uint8).data
        with self._lock:
            stream = self._stream
            # A forked process would otherwise draw the same words as its parent.
            if stream is None or (self._pid != os.getpid() and not self._insecure):
                stream = self._stream = _stream(_fresh_key())
                self._pid = os.getpid()
            for start in range(0, count, CHUNK):
                stream.update_into(_ZEROS[: 8 * (count - start)], memory[8 * start :])
        return drawn[:count]

    def branch(self) -> SecureRandom:
        """A stream for another thread, keyed by 256 bits of this one.

        Both streams' words depend on this stream alone, not on threads. A forked process keys it
        afresh, as this one.
        """
        stream = SecureRandom()
        stream._insecure, stream._pid = self._insecure, os.getpid()
        stream._stream = _stream(self.words(4).tobytes())
        return stream

    def key(self) -> bytearray:
        """256 bits that key another cipher once: of the operating system, or of the seed's stream.

        Its reader knows all that the cipher gives: overwrite it.
        """
        return bytearray(self.words(4).tobytes() if self._insecure else _fresh_key())

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """`count` uniforms in the open interval (0, 1), on the grid of odd / 2^53."""
        # 53 bits and a half would round up to 1 at the top.
        return ((self.words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def coins(
        self, probabilities: NDArray[np.float64], words: NDArray[np.uint64] | None = None
    ) -> NDArray[np.bool_]:
        """One coin per probability in [0, 1], true with exactly that probability.

        A uniform is read 53 bits at a time until it differs from the probability. The first ones
        are the upper bits of `words`, or of fresh ones; the rest of `words` is not looked at.
        """
        scaled = probabilities * 2.0**53
        whole = scaled.astype(np.uint64)
        read = (self.words(scaled.size) if words is None else words) >> np.uint64(11)
        coins: NDArray[np.bool_] = read < whole
        undecided = np.flatnonzero(read == whole)
        if undecided.size:
            coins[undecided] = self.coins(scaled[undecided] - whole[undecided])
        return coins

    def exponentials(self, count: int) -> NDArray[np.float64]:
        """`count` standard exponentials, precise in both tails, never 0 nor infinity.

        An exponential is a whole number of halvings and an independent rest: fair coins count the
        halvings, one `log1p` of a fine uniform gives the rest. `P[E <= t]` near 0 and `P[E > t]`
        far out are right to a relative `(4 + t) * 2^-52`.
        """
        out = np.empty(count, dtype=np.float64)
        for start in range(0, count, CHUNK):
            part = out[start : start + CHUNK]
            words = self.words(part.size)
            halvings = self._runs(words, 6)
            small = self._runs(words >> np.uint64(6), 6)
            rest = _fraction(words >> np.uint64(12), small)
            np.log1p(-0.5 * rest, out=rest)
            np.subtract(_LN_2 * halvings, rest, out=part)
        return out

    def gumbels(self, count: int) -> NDArray[np.float64]:
        """`count` standard Gumbels, `-log` of `exponentials`, with their precision."""
        return -np.log(self.exponentials(count))

    def bernoulli(self, probability: float, count: int) -> NDArray[np.bool_]:
        """`count` independent coins, each true with at most `probability`.

        That is rounded down to a multiple of 2^-53: never more than was charged.

        Raises:
            ValueError: If `probability` is outside [0, 1].
        """
        if not 0.0 <= probability <= 1.0:
            raise ValueError(f"probability must lie in [0, 1], got {probability}")
        threshold = np.uint64(int(probability * 2.0**53))
        coins = np.empty(count, dtype=np.bool_)
        for start in range(0, count, CHUNK):
            chunk = coins[start : start + CHUNK]
            chunk[:] = (self.words(chunk.size) >> np.uint64(11)) < threshold
        return coins

    def _runs(self, words: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
        """Count the zeros before the first one in the low `bits`, going on in fresh words."""
        marked = words | np.uint64(1 << bits)  # ends every run
        # ~x & (x - 1) has a one for each zero below the first one of x.
        runs = np.bitwise_count(~marked & (marked - np.uint64(1))).astype(np.int64)
        unfinished = np.flatnonzero(runs == bits)
        if unfinished.size:
            longer = bits + self._runs(self.words(unfinished.size), 63)
            runs[unfinished] = np.minimum(longer, _LONGEST_RUN)
        return runs


def _fresh_key() -> bytes:
    """256 bits from the operating system; tests replace this function."""
    return secrets.token_bytes(32)


def _stream(key: bytes) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def _fraction(mantissa: NDArray[np.uint64], halvings: NDArray[np.int64]) -> NDArray[np.float64]:
    """Assemble numbers in [1/2, 1) / 2^halvings, each the midpoint of its cell of 51 bits."""
    exponent = (_HALF_TO_ONE - halvings).astype(np.uint64) << np.uint64(52)
    bits: NDArray[np.uint64] = exponent | (mantissa & _MANTISSA) | np.uint64(1)
    return bits.view(np.float64)
