"""Shamir's secret sharing over GF(256), byte by byte (Shamir 1979).

A client's seeds are shared as one secret: one pass of `bytes.translate` multiplies them all. The
field is that of AES, x^8 + x^4 + x^3 + x + 1.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MOST_SHARES = 255  # the field's elements but 0, where the secret lies
_FIELD = 0x11B


def _powers() -> tuple[list[int], list[int]]:
    """Powers 0 .. 509 of 3, which generates the field, and the logarithms to base 3."""
    powers, logarithms, power = [0] * 510, [0] * 256, 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = power
        logarithms[power] = exponent
        power ^= power << 1
        if power & 0x100:
            power ^= _FIELD
    return powers, logarithms


_POWERS, _LOGARITHMS = _powers()


def times(a: int, b: int) -> int:
    """The product of two elements of the field."""
    if not a or not b:
        return 0
    return _POWERS[_LOGARITHMS[a] + _LOGARITHMS[b]]


def inverse(a: int) -> int:
    """The element whose product with `a` is 1.

    Raises:
        ZeroDivisionError: If `a` is 0.
    """
    if not a:
        raise ZeroDivisionError("0 has no inverse in GF(256)")
    return _POWERS[255 - _LOGARITHMS[a]]


# Row a turns bytes into their products with a, for `bytes.translate`.
_TIMES = [bytes(times(a, b) for b in range(256)) for a in range(256)]


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return shares for x = 1 .. count: any `threshold` of them give the secret, fewer nothing.

    The secret may have any length; each share is as long.

    Raises:
        ValueError: Not `1 <= threshold <= count <= 255`.
    """
    if not 1 <= threshold <= count <= MOST_SHARES:
        raise ValueError(
            f"sharing wants 1 <= threshold <= count <= {MOST_SHARES}, got threshold {threshold}, "
            f"count {count}"
        )
    drawn = secrets.token_bytes(len(secret) * (threshold - 1))
    # Coefficients of the polynomials, one row per power; that of x^0 is the secret.
    rows = np.frombuffer(secret + drawn, np.uint8).reshape(threshold, len(secret))
    shares = []
    for x in range(1, count + 1):
        share = rows[-1].tobytes()
        for row in rows[-2::-1]:  # Horner's rule
            share = (np.frombuffer(share.translate(_TIMES[x]), np.uint8) ^ row).tobytes()
        shares.append(share)
    return shares


def combine(points: Mapping[int, bytes]) -> bytes:
    """Return the secret from exactly `threshold` shares, by x, all of one length.

    With one fewer the result says nothing about the secret, and there is no error.

    Raises:
        ValueError: There is none, or lengths differ.
    """
    if len({len(share) for share in points.values()}) != 1:
        raise ValueError("shares must be at least one, and of one length")
    return interpolate(points, 0)


def interpolate(points: Mapping[int, bytes], at: int) -> bytes:
    """Value at `at` of the polynomial through some points; `at` is none of them."""
    weights = _weights(tuple(points), at)
    terms = (
        share.translate(_TIMES[weight])
        for weight, share in zip(weights, points.values(), strict=True)
    )
    joined = np.frombuffer(b"".join(terms), np.uint8).reshape(len(points), -1)
    total: NDArray[np.uint8] = np.bitwise_xor.reduce(joined)
    return total.tobytes()


@lru_cache(maxsize=1024)
def _weights(xs: Collection[int], at: int) -> tuple[int, ...]:
    """Lagrange's weights: prod (at - y) / (x - y) over the other points y."""
    weights = []
    for x in xs:
        weight = 1
        for y in xs:
            if y != x:
                weight = times(weight, times(at ^ y, inverse(x ^ y)))
        weights.append(weight)
    return tuple(weights)
