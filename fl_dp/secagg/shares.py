"""Shamir's secret sharing over GF(256), byte by byte."""

from __future__ import annotations

from collections.abc import Mapping


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return shares for x = 1 .. count, of which any `threshold` give the secret, fewer nothing.

    Raises:
        ValueError: If not `1 <= threshold <= count <= 255`.
    """
    raise NotImplementedError


def combine(points: Mapping[int, bytes]) -> bytes:
    """Return the secret of exactly as many shares as the threshold.

    Args:
        points: Share by x.
    """
    raise NotImplementedError
